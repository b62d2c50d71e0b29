"""What goes over the wire: request bodies, streamed events, counters. No connection is made here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import InputError
from gatekeeper.protocols import Delta, DraftCounters, Ending, ScoredText

if TYPE_CHECKING:
    from gatekeeper.protocols import ServerRequest

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "PATHS",
    "UNREADABLE",
    "Reader",
    "body",
    "counters",
    "document_of",
    "event_of",
    "messages",
]

CHAT, COMPLETIONS = "chat", "completions"
PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
_SAMPLE = re.compile(
    r"^(?:vllm|llamacpp|gatekeeper):spec_decode_num_(drafts|draft_tokens|accepted_tokens)(?:_total)?"
    r"(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)
_LARGEST = 2**53
"""Largest count that is one: beyond it a float, as Prometheus has them, skips numbers."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""What reading an event raises that is not of this API."""

_DATA, _DONE = "data:", "[DONE]"
_TEXT_FIELDS = ("reasoning_content", "reasoning", "content", "refusal")


def messages(text: str) -> list[dict[str, str]]:
    """Turns of a ChatML text, as chat messages that every template takes.

    Tool results become a person's words, and turns of one speaker in a row one message: many
    templates know no tools and insist on alternation.
    """
    said: list[dict[str, str]] = []
    for role, content in _TURN.findall(text):
        speaker = "user" if role == "tool" else role
        if said and said[-1]["role"] == speaker:
            said[-1]["content"] += f"\n{content}"
        else:
            said.append({"role": speaker, "content": content})
    return said


def body(request: ServerRequest, *, model: str, api: str) -> dict[str, Any]:
    """Return a streaming request with usage; nothing that a strict server would not know.

    Raises:
        InputError: a sampling setting that OpenAI's API has no word for.
    """
    sampling = request.sampling
    for name, off in (("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        if getattr(sampling, name) != off:
            raise InputError(
                "has no word in OpenAI's API",
                field=f"sampling.{name}",
                value=getattr(sampling, name),
                remedy="use temperature, top_p and the presence and frequency penalties",
            )
    if sampling.logit_bias or sampling.forbidden_tokens:
        raise InputError(
            "needs the server's token ids, which it does not disclose",
            field="sampling.logit_bias",
            remedy="leave logit bias and forbidden tokens out",
        )
    document: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "seed": request.seed,
    }
    for name, off in (("top_p", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(sampling, name) != off:
            document[name] = getattr(sampling, name)
    if api == CHAT:
        document["messages"] = messages(request.text)
        if request.top:
            document |= {"logprobs": True, "top_logprobs": request.top}
    else:
        document["prompt"] = request.text
        if request.top:
            document["logprobs"] = request.top
    return document


@dataclass
class Reader:
    """Reads the events of one answer; what it needs of usage and timings it keeps for the end."""

    finish: str | None = None
    failed: bool = False
    _counts: dict[str, int] = field(default_factory=dict)

    def read(self, event: dict[str, Any]) -> Delta | None:
        """Return the piece of text in an event, None where it carries none."""
        if "error" in event:
            self.failed = True
            return None
        self._keep(event)
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        choice = choices[0]
        if choice.get("finish_reason") is not None:
            self.finish = str(choice["finish_reason"])
        text = _text(choice)
        scored = _scored(choice.get("logprobs"))
        return Delta(text, scored) if text or scored else None

    def ending(self) -> Ending:
        """How the answer ended, once the stream has."""
        if self.failed:
            return Ending("server error")
        if self.finish is None:
            return Ending("dropped")
        # tool calls and the like end an answer as the model's own stop does
        reason = "length" if self.finish == "length" else "stop"
        counts = self._counts
        return Ending(
            reason,
            prompt_tokens=counts.get("prompt_tokens"),
            tokens=counts.get("completion_tokens"),
            drafted=counts.get("draft_n"),
            accepted=counts.get("draft_n_accepted"),
        )

    def _keep(self, event: dict[str, Any]) -> None:
        for section, names in (
            ("usage", ("prompt_tokens", "completion_tokens")),
            ("timings", ("draft_n", "draft_n_accepted")),
        ):
            given = event.get(section)
            if isinstance(given, dict):
                for name in names:
                    if type(given.get(name)) is int and 0 <= given[name] <= _LARGEST:
                        self._counts[name] = given[name]


def event_of(line: str) -> dict[str, Any] | None:
    """Return the document in one line of an event stream; None for comments, blanks and the end.

    Raises:
        ValueError: it is no JSON object.
    """
    if not line.startswith(_DATA):
        return None
    text = line.removeprefix(_DATA).strip()
    if not text or text == _DONE:
        return None
    event = document_of(text)
    if not isinstance(event, dict):
        raise ValueError(text[:80])  # noqa: TRY004 - json raises ValueError too: one kind to catch
    return event


def document_of(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Read JSON that a server sent.

    Raises:
        ValueError: it is none, or nested beyond reading.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def counters(text: str) -> DraftCounters | None:
    """Read the totals of drafts from Prometheus text; None where a series is absent.

    Series of several engines in one server add up.
    """
    totals: dict[str, int] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            return None
        if not 0 <= number <= _LARGEST:  # NaN fails too
            return None
        totals[name] = totals.get(name, 0) + int(number)
    if totals.keys() != {"drafts", "draft_tokens", "accepted_tokens"}:
        return None
    return DraftCounters(totals["drafts"], totals["draft_tokens"], totals["accepted_tokens"])


def _text(choice: dict[str, Any]) -> str:
    """Text of any kind in a choice: content, reasoning, tool calls."""
    if "delta" not in choice:
        return str(choice.get("text") or "")
    delta = choice["delta"] if isinstance(choice["delta"], dict) else {}
    pieces = [str(delta[name]) for name in _TEXT_FIELDS if delta.get(name)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            pieces += [str(function[name]) for name in ("name", "arguments") if function.get(name)]
    return "".join(pieces)


def _scored(logprobs: object) -> tuple[ScoredText, ...]:
    """Scored tokens in either form: a list of records (chat), or parallel lists (completions)."""
    if not isinstance(logprobs, dict):
        return ()
    if isinstance(logprobs.get("content"), list):
        return tuple(
            ScoredText(
                str(one["token"]),
                float(one["logprob"]),
                tuple((str(t["token"]), float(t["logprob"])) for t in one.get("top_logprobs", ())),
            )
            for one in logprobs["content"]
        )
    if not isinstance(logprobs.get("tokens"), list):
        return ()
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    return tuple(
        ScoredText(
            str(token),
            float(logprob),
            tuple(sorted(((str(t), float(v)) for t, v in top.items()), key=lambda pair: -pair[1])),
        )
        for token, logprob, top in rows
        if logprob is not None and top
    )
