"""A managed agent's use of a tool: asked about or not, answered when, and running from when on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.traces.fields import text_id

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Event", "Stop", "Tool"]


@dataclass(frozen=True)
class Event:
    """An event with its time and its place in the document, which orders equal times."""

    raw: Mapping[str, Any]
    at: str
    time_ns: int

    @property
    def type(self) -> str:
        """What happened, such as ``agent.tool_use``."""
        return str(self.raw["type"])

    @property
    def id(self) -> str:
        """Its id.

        Raises:
            TraceError: it has none.
        """
        return text_id(self.raw.get("id"), f"{self.at}.id")

    @property
    def thread(self) -> str | None:
        """Thread of the session that it belongs to, where it names one."""
        thread = self.raw.get("session_thread_id")
        return thread if isinstance(thread, str) else None


@dataclass
class Tool:
    """A tool use with what became of it; ``asked`` is the stop at which its answer was asked for."""

    use: Event
    call: str | None
    asked: Stop | None = None
    confirmed: Event | None = None
    result: Event | None = None

    @property
    def custom(self) -> bool:
        """Whether the client runs it."""
        return self.use.type == "agent.custom_tool_use"

    @property
    def waits(self) -> bool:
        """Whether a person is asked before it runs."""
        return self.confirmed is not None or (not self.custom and self.asked is not None)

    @property
    def answered_ns(self) -> int | None:
        """When the user's side had answered."""
        answer = self.confirmed if self.waits else self.result
        return None if answer is None else answer.time_ns

    @property
    def answer_span(self) -> str:
        """Span that ends with that answer."""
        return f"{self.use.id}.confirmation" if self.waits else self.use.id

    def released(self) -> tuple[int, Tool] | None:
        """When a confirmed tool could begin, and whose answer came last; None if it has not begun.

        It waits for all answers that were asked for together, unless its result shows otherwise.
        """
        own = self.answered_ns
        last = self if self.asked is None else self.asked.last
        latest = None if last is None else last.answered_ns
        if own is None:
            return None
        if last is not None and latest is not None and latest > own:
            waited = self.result is None or latest <= self.result.time_ns
            return (latest, last) if waited else (own, self)
        return None if last is None and self.result is None else (own, self)


@dataclass
class Stop:
    """A moment at which a session, or one thread of it, went idle until its tools were answered."""

    time_ns: int
    tools: tuple[Tool, ...]

    @cached_property
    def last(self) -> Tool | None:
        """Tool whose answer came last; None while one is missing."""
        answers = [(at, one) for one in self.tools if (at := one.answered_ns) is not None]
        complete = len(answers) == len(self.tools)
        return max(answers, key=itemgetter(0))[1] if complete and answers else None
