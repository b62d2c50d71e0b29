"""One question to a server, and what came back: read leniently, since the servers are not ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Ask", "Choice", "Reply", "Stage", "Token"]

_TEXTS = ("reasoning_content", "reasoning")
_OK, _REFUSED = range(200, 300), range(400, 500)
_BUSY = (408, 425, 429, 503)


@dataclass(frozen=True)
class Ask:
    """A request: ``POST`` of a JSON ``body`` to ``path``, or ``GET`` where there is none.

    ``leave_after`` closes the connection after so many events of a stream. ``may_refuse``: the item
    reads a refusal itself; elsewhere one makes the item not applicable. ``may_be_missing``: the item
    reads whatever comes back, an unknown path included.
    """

    path: str
    body: Mapping[str, Any] | None = None
    leave_after: int | None = None
    may_refuse: bool = False
    may_be_missing: bool = False

    @property
    def stream(self) -> bool:
        """Whether the answer comes as events."""
        return bool((self.body or {}).get("stream"))

    def but(self, **fields: Any) -> Ask:  # noqa: ANN401 - any JSON
        """The same with other fields in its body."""
        return replace(self, body={**(self.body or {}), **fields})

    def to_dict(self) -> dict[str, Any]:
        """What is needed to send it again."""
        found: dict[str, Any] = {
            "method": "GET" if self.body is None else "POST",
            "path": self.path,
        }
        if self.body is not None:
            found["body"] = dict(self.body)
        if self.leave_after is not None:
            found["leave_after_events"] = self.leave_after
        return found


@dataclass(frozen=True)
class Stage:
    """Requests sent one after the other, or all at once; ``pause_s`` seconds pass before."""

    asks: tuple[Ask, ...]
    together: bool = False
    pause_s: float = 0.0


@dataclass(frozen=True)
class Token:
    """An emitted token as text, its log-probability (nats), and the likeliest there, best first."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Choice:
    """One answer of a reply, whole or put together from its events."""

    text: str
    reasoning: str
    finish: str | None
    tokens: tuple[Token, ...]
    calls: tuple[tuple[str, str], ...]
    """Name and arguments (JSON as text) of each tool call."""


@dataclass(frozen=True)
class Reply:
    """What came back: ``status`` 0 and ``trouble`` where the answer broke off or never came.

    ``document`` is the JSON of a whole answer, ``events`` those of a stream in order; ``closed``
    tells that ``[DONE]`` came, and ``after_done`` how many events followed it. ``text`` is a body
    that is not JSON.
    """

    ask: Ask
    status: int
    document: Any = None
    events: tuple[Mapping[str, Any], ...] = ()
    closed: bool = False
    after_done: int = 0
    trouble: str | None = None
    text: str = ""

    @property
    def good(self) -> bool:
        """Whether an answer came whole."""
        return self.status in _OK and self.trouble is None and not self.failed_midway

    @property
    def failed_midway(self) -> bool:
        """Whether the stream told an error."""
        return any("error" in event for event in self.events)

    @property
    def refused(self) -> bool:
        """Whether the server says that it does not do this."""
        return self.status in {*_REFUSED, 501} and self.status not in _BUSY

    @property
    def busy(self) -> bool:
        """Whether it says to come again."""
        return self.status in _BUSY

    @cached_property
    def why(self) -> str:
        """One line of what went wrong."""
        if self.trouble is not None:
            return self.trouble
        said = self.document.get("error", self.document) if self.is_mapping else self.text
        said = said.get("message", said) if isinstance(said, dict) else said
        return f"HTTP {self.status}: {' '.join(str(said).split())[:160]}"

    @property
    def is_mapping(self) -> bool:
        """Whether a JSON object came."""
        return isinstance(self.document, dict)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Every choice in order of its index."""
        if self.ask.stream:
            return tuple(_joined(parts) for _, parts in sorted(self.by_choice.items()))
        rows = self.document.get("choices") if self.is_mapping else None
        found = [row for row in _list(rows) if isinstance(row, dict)]
        return tuple(_joined([row]) for row in sorted(found, key=_index))

    @cached_property
    def by_choice(self) -> dict[int, list[Mapping[str, Any]]]:
        """The pieces of a stream by the index of their choice, in order of arrival."""
        found: dict[int, list[Mapping[str, Any]]] = {}
        for event in self.events:
            for row in _list(event.get("choices")):
                if isinstance(row, dict):
                    found.setdefault(_index(row), []).append(row)
        return found

    @property
    def first(self) -> Choice:
        """The first choice; an empty one where there is none."""
        return self.choices[0] if self.choices else Choice("", "", None, (), ())

    @cached_property
    def usage(self) -> Mapping[str, int]:
        """The last usage record, its whole numbers."""
        found: dict[str, int] = {}
        for one in (self.document, *self.events):
            given = one.get("usage") if isinstance(one, dict) else None
            if isinstance(given, dict):
                found = {k: v for k, v in given.items() if type(v) is int}
        return found

    @property
    def made(self) -> int | None:
        """Completion tokens by usage; None where it is not told."""
        return self.usage.get("completion_tokens")

    @cached_property
    def drafts(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted, as llama.cpp and our engine tell; None elsewhere."""
        found = None
        for one in (self.document, *self.events):
            given = one.get("timings") if isinstance(one, dict) else None
            if isinstance(given, dict) and type(given.get("draft_n")) is int:
                accepted = given.get("draft_n_accepted")
                found = given["draft_n"], accepted if type(accepted) is int else 0
        return found


def _joined(rows: Sequence[Mapping[str, Any]]) -> Choice:
    parts = [_part(row) for row in rows]
    calls: dict[int, list[str]] = {}
    for part in parts:
        for place, call in enumerate(_list(part.get("tool_calls"))):
            if isinstance(call, dict):
                named = call.get("index")
                kept = calls.setdefault(named if type(named) is int else place, ["", ""])
                function = call.get("function")
                function = function if isinstance(function, dict) else {}
                kept[0] += str(function.get("name") or "")
                kept[1] += str(function.get("arguments") or "")
    finishes = [row["finish_reason"] for row in rows if row.get("finish_reason") is not None]
    return Choice(
        "".join(str(part.get("content", part.get("text")) or "") for part in parts),
        "".join(str(part.get(name) or "") for part in parts for name in _TEXTS),
        str(finishes[-1]) if finishes else None,
        tuple(token for row in rows for token in _tokens(row.get("logprobs"))),
        tuple((name, arguments) for _, (name, arguments) in sorted(calls.items())),
    )


def _part(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the text stands: in a delta, in a message, or beside the index."""
    for name in ("delta", "message"):
        if name in row:
            return row[name] if isinstance(row[name], dict) else {}
    return row


def _tokens(logprobs: object) -> tuple[Token, ...]:
    """Scored tokens in either form: a list of records (chat), or parallel lists (completions)."""
    if not isinstance(logprobs, dict):
        return ()
    try:
        if isinstance(logprobs.get("content"), list):
            return tuple(
                Token(str(one["token"]), float(one["logprob"]), _top(one.get("top_logprobs")))
                for one in logprobs["content"]
            )
        tokens, values = _list(logprobs.get("tokens")), _list(logprobs.get("token_logprobs"))
        tops = _list(logprobs.get("top_logprobs")) or [None] * len(tokens)
        return tuple(
            Token(str(token), float(value), _top(top))
            for token, value, top in zip(tokens, values, tops, strict=True)
            if value is not None
        )
    except (KeyError, TypeError, ValueError):
        return ()  # no log-probabilities of this API: the item on them says so


def _top(given: object) -> tuple[tuple[str, float], ...]:
    if isinstance(given, dict):
        rows = [(str(token), float(value)) for token, value in given.items()]
    else:
        rows = [(str(one["token"]), float(one["logprob"])) for one in _list(given)]
    return tuple(sorted(rows, key=lambda row: -row[1]))


def _index(row: Mapping[str, Any]) -> int:
    index = row.get("index")
    return index if type(index) is int else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
