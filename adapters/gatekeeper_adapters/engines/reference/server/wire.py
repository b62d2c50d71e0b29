"""Request bodies of OpenAI's API, read strictly into what the engine is asked.

Unknown fields are refused by name; ``IGNORED`` are those that clients send and that change nothing
here. A null counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - documents.read() resolves it
from dataclasses import dataclass
from typing import Any, TypeVar

from gatekeeper.core.decoding import Constraint, DecodeRequest, SamplingSettings
from gatekeeper.core.documents import check, read
from gatekeeper.errors import InputError
from gatekeeper_adapters.engines.reference.server.reading import are_tokens, unknown

__all__ = ["IGNORED", "Body", "ChatBody", "CompletionBody", "Defaults", "Message", "read_body"]

IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention"),
)
"""Fields that say nothing about the answer."""

MAX_CHOICES, MAX_TOP, MAX_GAMMA = 16, 20, 64
MAX_STOPS, MAX_STOP_CHARACTERS, MAX_BIASES = 16, 256, 1024
_SEEDS = 2**63

_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}

_B = TypeVar("_B", bound="Body")


@dataclass(frozen=True)
class Defaults:
    """What the server adds to a request: its window, where an answer ends, its limit."""

    gamma: int
    end_tokens: tuple[int, ...]
    max_context: int


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Body:
    """Fields of chat and text completions: OpenAI's, then those of other servers, then ours.

    ``gamma`` 0 is ordinary decoding; ``adaptive`` lets the engine shorten the window; ``proposer``
    names one of several. Without ``seed`` every request draws its own; choice i adds i to it.
    ``return_token_ids`` adds ``token_ids`` to each choice, end tokens included, as vLLM has it.
    """

    model: str | None = None
    stream: bool = False
    stream_options: Mapping[str, bool] | None = None
    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] | None = None
    seed: int | None = None
    stop: Any = None
    response_format: Mapping[str, Any] | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    regex: str | None = None
    return_token_ids: bool = False
    gamma: int | None = None
    adaptive: bool = False
    proposer: str | None = None

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to tell at each place; None for no log-probabilities."""
        return None

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, where the request says."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    def check(self) -> None:
        """Refuse values out of range that nothing further on would name.

        Raises:
            InputError: the first of them.
        """
        for name in self.stream_options or {}:
            if name != "include_usage":
                unknown(f"stream_options.{name}", "use include_usage")
        limit, gamma, seed = self.limit, self.gamma, self.seed
        check(
            [
                ("n", self.n, 1 <= self.n <= MAX_CHOICES, f"use 1 to {MAX_CHOICES}"),
                ("max_tokens", limit, limit is None or limit >= 1, "ask for at least one"),
                ("min_tokens", self.min_tokens, self.min_tokens >= 0, "use 0 or more"),
                (
                    "gamma",
                    gamma,
                    gamma is None or 0 <= gamma <= MAX_GAMMA,
                    f"use 0 (no speculation) to {MAX_GAMMA}",
                ),
                (
                    "seed",
                    seed,
                    seed is None or -_SEEDS <= seed < _SEEDS,
                    "use a signed number of 64 bits",
                ),
                ("logprobs", self.top, 0 <= (self.top or 0) <= MAX_TOP, f"use 0 to {MAX_TOP}"),
            ]
        )

    def requests(
        self, answer_id: str, prompt: tuple[int, ...], defaults: Defaults, *, seed: int
    ) -> tuple[DecodeRequest, ...]:
        """One request for each choice; ``seed`` stands in where the body gives none.

        Raises:
            InputError: a value out of range, or one of the wrong form.
        """
        room = max(1, defaults.max_context - len(prompt))
        first = seed if self.seed is None else self.seed
        common: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": room if self.limit is None else self.limit,
            "sampling": self._sampling(),
            "gamma": defaults.gamma if self.gamma is None else self.gamma,
            "min_tokens": self.min_tokens,
            "end_tokens": defaults.end_tokens,
            "stop": self._stops(),
            "logprobs": self.top,
            "constraint": self._constraint(),
            "adaptive": self.adaptive,
            "proposer": self.proposer,
        }
        return tuple(
            DecodeRequest(f"{answer_id}.{index}", seed=first + index, **common)
            for index in range(self.n)
        )

    def _sampling(self) -> SamplingSettings:
        return SamplingSettings(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self._bias(),
        )

    def _bias(self) -> tuple[tuple[int, float], ...]:
        given = self.logit_bias or {}
        if len(given) > MAX_BIASES:
            raise InputError(
                "has too many entries",
                field="logit_bias",
                value=len(given),
                remedy=f"use at most {MAX_BIASES}",
            )
        for token in given:
            if not (token.isascii() and token.isdigit() and len(token) <= len(str(_SEEDS))):
                raise InputError(
                    "is not a token id", field="logit_bias", value=token, remedy="use whole numbers"
                )
        return tuple((int(token), bias) for token, bias in given.items())

    def _stops(self) -> tuple[str, ...]:
        given = self.stop
        stops = [] if given is None else [given] if isinstance(given, str) else given
        good = isinstance(stops, list) and len(stops) <= MAX_STOPS
        if not good or not all(
            isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARACTERS for s in stops
        ):
            raise InputError(
                "is not a stop text, or a list of them",
                field="stop",
                value=given,
                remedy=f"use up to {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters",
            )
        return tuple(dict.fromkeys(stops))

    def _constraint(self) -> Constraint | None:
        schema = _schema(self.response_format)
        if schema is None and self.regex is None:
            return None
        return Constraint(json_schema=schema, regex=self.regex)


@dataclass(frozen=True, kw_only=True)
class ChatBody(Body):
    """``POST /v1/chat/completions``."""

    messages: tuple[Mapping[str, Any], ...]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None

    @property
    def top(self) -> int | None:
        """As in ``Body``."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """As in ``Body``; the newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        """As in ``Body``; and likeliest tokens go with log-probabilities only."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError(
                "needs logprobs",
                field="top_logprobs",
                value=self.top_logprobs,
                remedy="set logprobs to true, or leave it out",
            )

    def turns(self) -> tuple[Message, ...]:
        """The conversation, its parts of text joined.

        Raises:
            InputError: no messages, an unknown role, or content that is no text.
            UnknownKey: a field of a message that nothing reads.
        """
        if not self.messages:
            raise InputError("is empty", field="messages", remedy="say something")
        return tuple(
            _message({k: v for k, v in one.items() if v is not None}, f"messages[{place}]")
            for place, one in enumerate(self.messages)
        )


@dataclass(frozen=True, kw_only=True)
class CompletionBody(Body):
    """``POST /v1/completions``; ``prompt`` is a text or a list of token ids."""

    prompt: Any
    logprobs: int | None = None

    @property
    def top(self) -> int | None:
        """As in ``Body``."""
        return self.logprobs

    def text_or_tokens(self) -> str | tuple[int, ...]:
        """The prompt.

        Raises:
            InputError: it is neither, or a batch.
        """
        given = self.prompt
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
            return given[0]
        if isinstance(given, str):
            return given
        if are_tokens(given):
            return tuple(given)
        raise InputError(
            "is neither a text nor a list of token ids",
            field="prompt",
            value=given,
            remedy="send one request for each prompt",
        )


def read_body(kind: type[_B], document: Mapping[str, Any]) -> _B:
    """Read a document into the body of an endpoint.

    Raises:
        UnknownKey: a field that nothing reads and that is not in ``IGNORED``.
        InputError: a field is missing, of the wrong type or out of range.
    """
    given = {k: v for k, v in document.items() if v is not None and k not in IGNORED}
    body = read(kind, given, field="")
    body.check()
    return body


def _message(given: Mapping[str, Any], at: str) -> Message:
    for name in given:
        if name not in {"role", "content", "name"}:
            unknown(f"{at}.{name}", "use role and content")
    role = given.get("role")
    if role not in _ROLES:
        raise InputError(
            "is not a role", field=f"{at}.role", value=role, remedy=f"use {', '.join(_ROLES)}"
        )
    return Message(_ROLES[role], _content(given.get("content"), f"{at}.content"))


def _content(given: object, at: str) -> str:
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [None]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ]
    if len(texts) != len(parts):
        raise InputError(
            "is neither a text nor a list of text parts",
            field=at,
            value=given,
            remedy='use a text, or [{"type": "text", "text": "…"}]',
        )
    return "".join(texts)


def _schema(given: Mapping[str, Any] | None) -> str | None:
    """The JSON schema that a ``response_format`` asks for, as JSON; None for plain text."""
    kind = None if given is None else given.get("type")
    if given is None or given == {"type": "text"}:
        return None
    if given == {"type": "json_object"}:
        return '{"type": "object"}'
    described = given.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind != "json_schema" or not isinstance(schema, (dict, bool)):
        raise InputError(
            "is not a format that can be enforced",
            field="response_format",
            value=dict(given),
            remedy='use type text, json_object, or json_schema with {"json_schema": {"schema": …}}',
        )
    return json.dumps(schema)
