"""Events of Claude managed-agent sessions: as listed, as streamed, or as a client's calls recorded.

Every event has one time, ``processed_at``, to the microsecond. Spans are made of pairs:

    model call   span.model_request_start → _end, with its tokens. ``agent.message`` and
                 ``agent.thinking`` come when their block is complete: none is the first token.
    tool         agent.tool_use (or _custom_, _mcp_) → its result
    human wait   session idle with ``requires_action`` → user.tool_confirmation, or the interrupt
                 that came instead: exact. Nothing runs before all that was asked for together is
                 answered. Also session idle after a turn → what wakes it up.
    verification span.outcome_evaluation_start → _end

A custom tool is run by the client while the session is idle; whether a program or a person
answers is not in the log, so it counts as a tool that may hide a person.
Source: Managed Agents API, session events.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanEvent, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import iso_ns, listed, name_of, text_id
from gatekeeper_adapters.traces.managed_agent_tools import Event, Stop, Tool
from gatekeeper_adapters.traces.session_attributes import (
    CALL,
    HUMAN_WAIT,
    MAY_HIDE_HUMAN,
    SESSION,
    TOOL,
    WAITS_APART,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "ManagedAgentsFormat"]

_ROOT = "session"
_TYPE = re.compile(r"(session|agent|span|user)\.[a-z_]+")
_TOOL_USE = re.compile(r"agent\.(mcp_|custom_)?tool_use")
_TOOL_RESULT = re.compile(r"(agent|user)\.(mcp_|custom_)?tool_result")
_SPAN = re.compile(r"span\.(?P<what>[a-z_]+)_(?P<edge>start|end)")
_TOOL_ID = ("tool_use_id", "custom_tool_use_id", "mcp_tool_use_id")
_PLACED = frozenset(
    {"id", "type", "processed_at", "content", "model_usage", "usage", "name", *_TOOL_ID}
)


class ManagedAgentsFormat:
    """One session, or several whose events name theirs."""

    name = "managed_agents"

    def accepts(self, document: Document) -> bool:
        """Whether it holds an event with a managed agent's type and ``processed_at``."""
        return document.values is not None and any(map(_is_event, _objects(document.values)))

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document: one a session. Texts of messages are left out."""
        logs = _logs(document.values or ())
        spans = [span for log in logs.values() for span in log.spans()]
        repairs = {name: log.notes for name, log in logs.items()}
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = ManagedAgentsFormat()
"""Entry point of group ``gatekeeper.traces``."""


def _objects(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Events and session objects, in order, of whatever lists them."""
    return listed(values, "data", "events")


def _addressed(values: Iterable[Any]) -> list[str]:
    """Sessions that recorded calls name: the first argument of whatever was sent to one."""
    calls = [value for value in values if isinstance(value, list)]
    arguments = [one for call in calls for one in call if isinstance(one, list) and one]
    return [one[0] for one in arguments if isinstance(one[0], str)]


def _is_event(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and "processed_at" in value and bool(_TYPE.fullmatch(kind))


def _logs(values: Iterable[Any]) -> dict[str, _Log]:
    """Events by session, sorted by time; what a client sent has no time and only names it."""
    sessions: dict[str, Mapping[str, Any]] = {one: {} for one in _addressed(values)}
    events: dict[str | None, list[Event]] = defaultdict(list)
    queued = 0
    for n, one in enumerate(_objects(values)):
        at = f"events[{n}]"
        if one.get("type") == "session":
            sessions[text_id(one.get("id"), f"{at}.id")] = one
        elif _is_event(one):
            if one["processed_at"] is None:
                queued += 1
                continue
            time_ns, _ = iso_ns(one["processed_at"], f"{at}.processed_at")
            own = one.get("session_id")
            events[own if isinstance(own, str) else None].append(Event(one, at, time_ns))
    unnamed = events.pop(None, [])
    if unnamed:
        events[_only(sessions, unnamed)] += unnamed
    logs = {
        name: _Log(name, sorted(own, key=lambda e: e.time_ns), sessions.get(name, {}))
        for name, own in events.items()
        if name is not None
    }
    for log in logs.values():
        log.notes += ["events without a time (processed_at null): left out"] * queued
    return logs


def _only(sessions: Mapping[str, Any], events: list[Event]) -> str:
    if len(sessions) > 1:
        raise TraceError(
            "events do not say to which of several sessions they belong",
            field="session_id",
            value=", ".join(sorted(sessions)),
            remedy="write one session a file",
        )
    return next(iter(sessions), min(events, key=lambda e: e.time_ns).id)


@dataclass
class _Log:
    """One session's events in order of time, paired into spans."""

    session_id: str
    events: list[Event]
    session: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    found: list[Span] = field(default_factory=list)
    opened: dict[str, Event] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    last_call: dict[str | None, str] = field(default_factory=dict)
    causes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    done: list[str] = field(default_factory=list)
    other: list[SpanEvent] = field(default_factory=list)
    idle: Event | None = None
    asked: list[Tool] = field(default_factory=list)

    def spans(self) -> list[Span]:
        """All spans of the session under one that lasts from its first event to its last."""
        seen: set[str] = set()
        for event in self.events:
            if event.id not in seen:  # a stream that reconnects repeats events
                seen.add(event.id)
                self._take(event)
        for opened in self.opened.values():
            self._pair(opened, None)
        for tool in self.tools.values():
            self._tool(tool)
        if self.tools and all(map(_unasked, self.tools.values())):
            self.notes.append("human wait of 0.000 s in tools: each was allowed without asking")
        agent = self.session.get("agent")
        named = agent.get("name") if isinstance(agent, dict) else None
        root = {
            **SESSION,
            **WAITS_APART,
            "gen_ai.conversation.id": self.session_id,
            **({"gen_ai.agent.name": named} if isinstance(named, str) else {}),
        }
        bounds = (self.events[0].time_ns, self.events[-1].time_ns)
        self._add(_ROOT, "session", bounds, root, events=tuple(self.other))
        return self.found

    def _take(self, event: Event) -> None:
        kind = event.type
        self._wake(event)
        if edge := _SPAN.fullmatch(kind):
            self._edge(event, edge["what"], edge["edge"])
        elif _TOOL_USE.fullmatch(kind):
            self.tools[event.id] = Tool(
                event, self.last_call.get(event.thread, self.last_call.get(None))
            )
        elif kind == "user.tool_confirmation" or _TOOL_RESULT.fullmatch(kind):
            self._answer(event)
        else:
            if kind == "user.interrupt":
                self._interrupt(event)
            if kind in ("session.status_idle", "session.thread_status_idle"):
                self._stop(event)
            self.other.append(SpanEvent(kind, event.time_ns, _rest(event.raw)))

    def _edge(self, event: Event, what: str, edge: str) -> None:
        if edge == "start":
            self.opened[event.id] = event
            self.causes[event.id], self.done = self.done, []
            if what == "model_request":
                self.last_call[event.thread] = event.id
                self.last_call[None] = event.id
            return
        start = self.opened.pop(str(event.raw.get(f"{what}_start_id")), None)
        if start is None:
            self.notes.append(f"{event.type} without its start: left out")
        else:
            self._pair(start, event)

    def _pair(self, start: Event, end: Event | None) -> None:
        """Span of a start and an end; one that has not ended is kept as unfinished."""
        match = _SPAN.fullmatch(start.type)
        what = match["what"] if match else start.type
        attributes: dict[str, Any] = {**_rest(start.raw), **(_rest(end.raw) if end else {})}
        reported = usage(end.raw.get("model_usage", end.raw.get("usage"))) if end else {}
        if what == "model_request":
            model = _model(self.session)
            name = f"chat {model}" if model else "chat"
            attributes.update(CALL, **({"gen_ai.request.model": model} if model else {}))
        else:
            name = what
            if what == "outcome_evaluation":
                attributes["gatekeeper.kind"] = "verification"
        attributes.update(reported)
        times = (start.time_ns, end.time_ns if end else None)
        self._add(start.id, name, times, attributes, after=self.causes[start.id])
        self.done.append(start.id)

    def _answer(self, event: Event) -> None:
        use = next((event.raw[key] for key in _TOOL_ID if event.raw.get(key)), None)
        tool = self.tools.get(str(use))
        if tool is None:
            self.notes.append(f"{event.type} for a tool use that is not in this log: left out")
        elif event.type == "user.tool_confirmation":
            tool.confirmed = event
        else:
            tool.result = event
            self.done.append(tool.use.id)

    def _interrupt(self, event: Event) -> None:
        """A person who interrupts will not answer any more; the client's own tools are left alone."""
        still = []
        for tool in self.asked:
            if event.thread not in (None, tool.use.thread):
                still.append(tool)
            elif tool.confirmed is None and tool.result is None:
                tool.confirmed = event
        self.asked = still

    def _stop(self, event: Event) -> None:
        """The session, or one thread of it, has gone idle: for an answer, or at a turn's end."""
        reason = event.raw.get("stop_reason")
        reason = reason if isinstance(reason, dict) else {}
        if reason.get("type") == "requires_action":
            blocking = reason.get("event_ids")
            named = dict.fromkeys(map(str, blocking)) if isinstance(blocking, list) else {}
            stop = Stop(event.time_ns, tuple(self.tools[u] for u in named if u in self.tools))
            for tool in stop.tools:
                if tool.asked is None:
                    tool.asked = stop
                    if tool.waits:
                        self.asked.append(tool)
        elif event.type == "session.status_idle":
            self.idle = event

    def _wake(self, event: Event) -> None:
        """A session at rest is woken by the user: their message, or running again for it."""
        domain, _, _ = event.type.partition(".")
        if self.idle is None or not (domain == "user" or event.type == "session.status_running"):
            return
        idle, self.idle = self.idle, None
        span_id = f"{idle.id}.wait"
        times = (idle.time_ns, event.time_ns)
        self._add(span_id, "waiting for the user", times, HUMAN_WAIT, after=self.done)
        self.done = [span_id]

    def _tool(self, tool: Tool) -> None:
        """Spans of a tool use: the wait for its confirmation, if any, and the tool itself."""
        use, confirmed = tool.use, tool.confirmed
        name = name_of(use.raw.get("name"))
        cause = [tool.call] if tool.call else []
        start = use.time_ns
        if tool.waits:
            times = (tool.asked.time_ns if tool.asked else start, tool.answered_ns)
            self._add(tool.answer_span, f"confirmation of {name}", times, HUMAN_WAIT, after=cause)
            released = tool.released()
            if released is None:
                return  # the log ends before everybody has answered: the tool has not begun
            start, last = released
            cause = list(dict.fromkeys((tool.answer_span, last.answer_span)))
        attributes = _rest(use.raw)
        if confirmed is not None and confirmed.raw.get("result") == "deny":
            name = f"{name} denied"  # it never ran: what is left is the way back to the agent
        elif confirmed is not None and confirmed.type == "user.interrupt":
            name = f"{name} interrupted"
        else:
            attributes |= {**TOOL, "gen_ai.tool.name": name, "gen_ai.tool.call.id": use.id}
        if tool.custom:
            attributes |= MAY_HIDE_HUMAN
            self._note_client(name, tool)
        if tool.result is not None:
            attributes |= _rest(tool.result.raw)
        end = None if tool.result is None else tool.result.time_ns
        self._add(use.id, name, (start, end), attributes, after=cause)

    def _note_client(self, name: str, tool: Tool) -> None:
        if tool.asked is not None and tool.result is not None:
            waited = tool.result.time_ns - tool.asked.time_ns
            self.notes.append(
                f"human wait of up to {waited / 1e9:.3f} s: the session was idle until the client "
                f"answered {name}; counted as tool"
            )

    def _add(
        self,
        span_id: str,
        name: str,
        times: tuple[int, int | None],
        attributes: Mapping[str, Any],
        *,
        after: Iterable[str] = (),
        events: tuple[SpanEvent, ...] = (),
    ) -> None:
        self.found.append(
            Span(
                trace_id=self.session_id,
                span_id=span_id,
                name=name,
                start_ns=times[0],
                end_ns=times[1],
                parent_id=None if span_id == _ROOT else _ROOT,
                attributes=attributes,
                events=events,
                links=tuple(SpanLink(self.session_id, one) for one in after),
            )
        )


def _unasked(tool: Tool) -> bool:
    return tool.use.raw.get("evaluated_permission") == "allow" and tool.confirmed is None


def _model(session: Mapping[str, Any]) -> str | None:
    agent = session.get("agent")
    model = agent.get("model") if isinstance(agent, dict) else None
    model = model.get("id") if isinstance(model, dict) else model
    return model if isinstance(model, str) else None


def _rest(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields without a place of their own; the texts of messages and results are not kept."""
    return {f"managed_agents.{key}": value for key, value in raw.items() if key not in _PLACED}
