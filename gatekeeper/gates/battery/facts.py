"""What a server says of itself before anything is judged: endpoints, context, tokenizer, gauges."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.exchange import Ask, Reply, Stage

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["CHAT", "COMPLETIONS", "Facts", "learn"]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

_FEW, _MANY = 5, 20
_END_TEXTS = ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
_RUNNING = re.compile(
    r"^(?:vllm:num_requests_running|llamacpp:requests_processing|gatekeeper:num_requests_running"
    r"|sglang:num_running_reqs)(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Facts:
    """What is offered. ``context`` in tokens; ``ends`` are end tokens as (id, text).

    None or empty where the server does not tell. ``most_logprobs``: likeliest tokens it gives at most.
    """

    model: str
    completions: bool
    chat: bool
    context: int | None = None
    tokenises: bool = False
    ends: tuple[tuple[int, str], ...] = ()
    counts_running: bool = False
    most_logprobs: int = _FEW

    def ask(self, prompt: str, max_tokens: int, **fields: Any) -> Ask:  # noqa: ANN401 - any JSON
        """Continue a text: as it stands where the server has completions, else as a turn.

        ``logprobs=N`` asks for N likeliest tokens in either API's words.
        """
        if not self.completions:
            return self.chat_ask([{"role": "user", "content": prompt}], max_tokens, **fields)
        return Ask(COMPLETIONS, {**self._common(max_tokens), "prompt": prompt, **fields})

    def chat_ask(self, messages: list[dict[str, Any]], max_tokens: int, **fields: Any) -> Ask:  # noqa: ANN401 - any JSON
        """Answer a conversation."""
        top = fields.pop("logprobs", None)
        if top is not None:
            fields |= {"logprobs": True, "top_logprobs": top}
        return Ask(CHAT, {**self._common(max_tokens), "messages": messages, **fields})

    def count_ask(self, text: str) -> Ask:
        """Count a text's tokens; both spellings, llama.cpp's and vLLM's."""
        said = {"content": text, "prompt": text, "add_special_tokens": False}
        return Ask("/tokenize", {"model": self.model, **said}, may_be_missing=True)

    def running_asks(self) -> tuple[Ask, ...]:
        """How many requests run now."""
        return (Ask("/metrics", may_be_missing=True),)

    def _common(self, max_tokens: int) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "seed": 1}


def learn(model: str) -> Generator[Stage, tuple[Reply, ...], Facts]:
    """Ask what is needed for the facts."""
    bare = Facts(model, completions=True, chat=True)
    asks = (
        bare.ask("one two one two", 2),
        bare.chat_ask([{"role": "user", "content": "one two"}], 2),
        bare.ask("one two one two", 1, logprobs=_MANY),
        Ask("/v1/models"),
        Ask("/props"),
        Ask("/metrics"),
        *(bare.count_ask(text) for text in ("one two", *_END_TEXTS)),
    )
    text, chat, scored, models, props, metrics, plain, *ends = yield Stage(
        tuple(replace(ask, may_be_missing=True) for ask in asks)
    )
    known = [
        (ids[0], end)
        for end, reply in zip(_END_TEXTS, ends, strict=True)
        if (ids := token_ids(reply)) is not None and len(ids) == 1
    ]
    forced = yield Stage(
        tuple(
            replace(asks[0].but(logit_bias={str(token): 100}), may_be_missing=True)
            for token, _ in known
        )
    )
    return Facts(
        model,
        completions=text.good and bool(text.choices),
        chat=chat.good and bool(chat.choices),
        context=_context(model, models, props),
        tokenises=token_ids(plain) is not None,
        ends=tuple(
            one
            for one, reply in zip(known, forced, strict=True)
            if reply.first.finish == "stop" != text.first.finish
        ),
        counts_running=running(metrics) is not None,
        most_logprobs=_MANY if any(len(t.top) > _FEW for t in scored.first.tokens) else _FEW,
    )


def token_ids(reply: Reply) -> list[int] | None:
    """The ids in an answer of ``/tokenize``; None where it is none."""
    given = reply.document.get("tokens") if reply.good and reply.is_mapping else None
    if not isinstance(given, list) or not all(type(one) is int for one in given):
        return None
    return given


def running(reply: Reply) -> int | None:
    """How many requests the server says it works on; None where it does not tell."""
    found = _RUNNING.findall(reply.text) if reply.good else []
    try:
        return round(sum(float(value) for value in found)) if found else None
    except (ValueError, OverflowError):
        return None


def _context(model: str, models: Reply, props: Reply) -> int | None:
    """Tokens of one request's context: llama.cpp's slots share what it was started with."""
    rows = models.document.get("data") if models.is_mapping else None
    mine = [row for row in rows or () if isinstance(row, dict) and row.get("id") == model]
    given: list[Any] = [row.get("max_model_len") for row in mine]
    if props.good and props.is_mapping:
        settings = props.document.get("default_generation_settings")
        given.append(_mapping(settings).get("n_ctx"))
    return next((one for one in given if type(one) is int and one > 0), None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
