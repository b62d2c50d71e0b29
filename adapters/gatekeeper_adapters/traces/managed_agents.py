"""Events of Claude managed-agent sessions: as listed, as streamed, or as a client's calls recorded.

Every event has one time, ``processed_at``, to the microsecond. Spans are made of pairs:

    model call   span.model_request_start → _end, with its tokens. ``agent.message`` and
                 ``agent.thinking`` come when their block is complete: none is the first token.
    tool         agent.tool_use (or _custom_, _mcp_) → its result
    human wait   session idle with ``requires_action`` → user.tool_confirmation: exact, and the tool
                 runs only after it. Also session idle after a turn → what wakes it up.
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
from gatekeeper_adapters.traces.fields import iso_ns, name_of, text_id
from gatekeeper_adapters.traces.session_attributes import (
    CALL,
    HUMAN_WAIT,
    MAY_HIDE_HUMAN,
    SESSION,
    TOOL,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
        return document.values is not None and any(
            _is_event(one) for one, _ in _objects(document.values)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document: one a session. Texts of messages are left out."""
        logs = _logs(document.values or ())
        spans = [span for log in logs.values() for span in log.spans()]
        repairs = {name: log.notes for name, log in logs.items()}
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = ManagedAgentsFormat()
"""Entry point of group ``gatekeeper.traces``."""


@dataclass(frozen=True)
class _Event:
    """An event with its time and its place in the document, which orders equal times."""

    raw: Mapping[str, Any]
    at: str
    time_ns: int

    @property
    def type(self) -> str:
        return str(self.raw["type"])

    @property
    def id(self) -> str:
        return text_id(self.raw.get("id"), f"{self.at}.id")

    @property
    def thread(self) -> str | None:
        thread = self.raw.get("session_thread_id")
        return thread if isinstance(thread, str) else None


def _objects(values: Iterable[Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Events and session objects with the session that a recorded call names, in order."""
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, list):
                # The arguments of a recorded call: the session's id, then what was sent to it.
                known = one[0] if one and isinstance(one[0], str) else None
                yield from ((sent, known) for sent in one if isinstance(sent, dict))
            elif isinstance(one, dict):
                inner = one.get("data", one.get("events"))
                listed = inner if isinstance(inner, list) and not _is_event(one) else [one]
                yield from ((event, None) for event in listed if isinstance(event, dict))


def _is_event(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and "processed_at" in value and bool(_TYPE.fullmatch(kind))


def _logs(values: Iterable[Any]) -> dict[str, _Log]:
    """Events by session, sorted by time; what a client sent has no time and only names it."""
    sessions: dict[str, Mapping[str, Any]] = {}
    events: dict[str | None, list[_Event]] = defaultdict(list)
    queued = 0
    for n, (one, named) in enumerate(_objects(values)):
        at = f"events[{n}]"
        if one.get("type") == "session":
            sessions[text_id(one.get("id"), f"{at}.id")] = one
        elif _is_event(one):
            if one["processed_at"] is None:
                queued += 1
                continue
            time_ns, _ = iso_ns(one["processed_at"], f"{at}.processed_at")
            own = one.get("session_id")
            events[own if isinstance(own, str) else None].append(_Event(one, at, time_ns))
        elif named:
            sessions.setdefault(named, {})
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


def _only(sessions: Mapping[str, Any], events: list[_Event]) -> str:
    if len(sessions) > 1:
        raise TraceError(
            "events do not say to which of several sessions they belong",
            field="session_id",
            value=", ".join(sorted(sessions)),
            remedy="write one session a file",
        )
    return next(iter(sessions), min(events, key=lambda e: e.time_ns).id)


@dataclass
class _Tool:
    """A tool use with what became of it."""

    use: _Event
    call: str | None
    asked_ns: int | None = None
    confirmed: _Event | None = None
    result: _Event | None = None


@dataclass
class _Log:
    """One session's events in order of time, paired into spans."""

    session_id: str
    events: list[_Event]
    session: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    found: list[Span] = field(default_factory=list)
    opened: dict[str, _Event] = field(default_factory=dict)
    tools: dict[str, _Tool] = field(default_factory=dict)
    last_call: dict[str | None, str] = field(default_factory=dict)
    causes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    done: list[str] = field(default_factory=list)
    other: list[SpanEvent] = field(default_factory=list)
    idle: _Event | None = None

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
            "gen_ai.conversation.id": self.session_id,
            **({"gen_ai.agent.name": named} if isinstance(named, str) else {}),
        }
        bounds = (self.events[0].time_ns, self.events[-1].time_ns)
        self._add(_ROOT, "session", bounds, root, events=tuple(self.other))
        return self.found

    def _take(self, event: _Event) -> None:
        kind = event.type
        self._wake(event)
        if edge := _SPAN.fullmatch(kind):
            self._edge(event, edge["what"], edge["edge"])
        elif _TOOL_USE.fullmatch(kind):
            self.tools[event.id] = _Tool(
                event, self.last_call.get(event.thread, self.last_call.get(None))
            )
        elif kind == "user.tool_confirmation" or _TOOL_RESULT.fullmatch(kind):
            self._answer(event)
        else:
            if kind in ("session.status_idle", "session.thread_status_idle"):
                self._stop(event)
            self.other.append(SpanEvent(kind, event.time_ns, _rest(event.raw)))

    def _edge(self, event: _Event, what: str, edge: str) -> None:
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

    def _pair(self, start: _Event, end: _Event | None) -> None:
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

    def _answer(self, event: _Event) -> None:
        use = next((event.raw[key] for key in _TOOL_ID if event.raw.get(key)), None)
        tool = self.tools.get(str(use))
        if tool is None:
            self.notes.append(f"{event.type} for a tool use that is not in this log: left out")
        elif event.type == "user.tool_confirmation":
            tool.confirmed = event
        else:
            tool.result = event
            self.done.append(tool.use.id)

    def _stop(self, event: _Event) -> None:
        """The session, or one thread of it, has gone idle: for an answer, or at a turn's end."""
        reason = event.raw.get("stop_reason")
        reason = reason if isinstance(reason, dict) else {}
        if reason.get("type") == "requires_action":
            blocking = reason.get("event_ids")
            for use in blocking if isinstance(blocking, list) else []:
                tool = self.tools.get(str(use))
                if tool is not None and tool.asked_ns is None:
                    tool.asked_ns = event.time_ns
        elif event.type == "session.status_idle":
            self.idle = event

    def _wake(self, event: _Event) -> None:
        """A session at rest is woken by the user: their message, or running again for it."""
        domain, _, _ = event.type.partition(".")
        if self.idle is None or not (domain == "user" or event.type == "session.status_running"):
            return
        idle, self.idle = self.idle, None
        span_id = f"{idle.id}.wait"
        times = (idle.time_ns, event.time_ns)
        self._add(span_id, "waiting for the user", times, HUMAN_WAIT, after=self.done)
        self.done = [span_id]

    def _tool(self, tool: _Tool) -> None:
        """Spans of a tool use: the wait for its confirmation, if any, and the tool itself."""
        use, asked = tool.use, tool.asked_ns
        name = name_of(use.raw.get("name"))
        cause = [tool.call] if tool.call else []
        start = use.time_ns
        custom = use.type == "agent.custom_tool_use"
        if tool.confirmed is not None or (not custom and asked is not None):
            end = tool.confirmed.time_ns if tool.confirmed else None
            wait = f"{use.id}.confirmation"
            times = (start if asked is None else asked, end)
            self._add(wait, f"confirmation of {name}", times, HUMAN_WAIT, after=cause)
            cause = [wait]
            if end is None:
                return  # the log ends before anybody has answered: the tool has not begun
            start = end
        attributes = _rest(use.raw)
        if tool.confirmed is not None and tool.confirmed.raw.get("result") == "deny":
            name = f"{name} denied"  # it never ran: what is left is the way back to the agent
        else:
            attributes |= {**TOOL, "gen_ai.tool.name": name, "gen_ai.tool.call.id": use.id}
        if custom:
            attributes |= MAY_HIDE_HUMAN
            self._note_client(name, asked, tool.result)
        if tool.result is not None:
            attributes |= _rest(tool.result.raw)
        end = None if tool.result is None else tool.result.time_ns
        self._add(use.id, name, (start, end), attributes, after=cause)

    def _note_client(self, name: str, asked_ns: int | None, result: _Event | None) -> None:
        if asked_ns is not None and result is not None:
            self.notes.append(
                f"human wait of up to {(result.time_ns - asked_ns) / 1e9:.3f} s: the session was "
                f"idle until the client answered {name}; counted as tool"
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


def _unasked(tool: _Tool) -> bool:
    return tool.use.raw.get("evaluated_permission") == "allow" and tool.confirmed is None


def _model(session: Mapping[str, Any]) -> str | None:
    agent = session.get("agent")
    model = agent.get("model") if isinstance(agent, dict) else None
    model = model.get("id") if isinstance(model, dict) else model
    return model if isinstance(model, str) else None


def _rest(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields without a place of their own; the texts of messages and results are not kept."""
    return {f"managed_agents.{key}": value for key, value in raw.items() if key not in _PLACED}
