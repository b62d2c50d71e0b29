"""Claude Code transcripts: session files (JSON lines) and exports of their ``loglines``.

A line has one time: when it was written. One answer of the model is spread over several lines, a
content block each, that share ``message.id``; a tool's result is a line of the user's. So:

    model call   the line before the answer → the answer's last line, with its final token count
    tool         the line with the ``tool_use`` block → the line with its result
    human wait   the agent's last line → the user's next prompt; tools that ask the user

No line tells the first token, so calls are of grade C, or D where the count is missing or not
final (it is repeated on every line and final only where ``stop_reason`` is set). A tool's time
may hide the wait for a person's permission. Lines order themselves by ``parentUuid``, by time and
place where that is missing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanLink, Trace, assemble
from gatekeeper_adapters.traces.fields import iso_ns, listed, name_of
from gatekeeper_adapters.traces.session_attributes import (
    CALL,
    HUMAN_WAIT,
    MAY_HIDE_HUMAN,
    SESSION,
    TOOL,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "ClaudeTranscriptFormat"]

_ROOT = "session"
_EXPORTED = "loglines"
_ASKS_USER = frozenset({"AskUserQuestion", "ExitPlanMode"})
"""Tools that do nothing but wait for the user's answer."""

_SYNTHETIC = "<synthetic>"
"""Model name of lines that Claude Code wrote in the model's place, such as an API error."""


class ClaudeTranscriptFormat:
    """Sessions with their sub-agents; files of one session share its trace id."""

    name = "claude_transcripts"

    def accepts(self, document: Document) -> bool:
        """Whether a line is a dated message of the user or the assistant."""
        return document.values is not None and any(
            map(_is_message, listed(document.values, _EXPORTED))
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document: one a session. Texts of messages are left out."""
        unnamed = f"transcript-{hashlib.sha256(document.data).hexdigest()[:16]}"
        repairs: dict[str, list[str]] = defaultdict(list)
        sessions: dict[str, dict[str, _Line]] = defaultdict(dict)
        for n, raw in enumerate(listed(document.values or (), _EXPORTED)):
            if _is_message(raw):
                line = _line(raw, f"line[{n}]", unnamed, repairs)
                sessions[line.session].setdefault(line.id, line)
        spans = [
            span
            for name, lines in sessions.items()
            for span in _Session(name, list(lines.values()), repairs[name]).spans()
        ]
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = ClaudeTranscriptFormat()
"""Entry point of group ``gatekeeper.traces``."""


@dataclass(frozen=True)
class _Line:
    """A message's line; ``id`` is its uuid, or its place where it has none."""

    raw: Mapping[str, Any]
    id: str
    session: str
    time_ns: int

    @property
    def by_model(self) -> bool:
        return bool(self.raw["type"] == "assistant")

    @property
    def message(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.raw["message"]
        return found

    @property
    def answer(self) -> str:
        """What the lines of one answer share."""
        own = self.message.get("id")
        return own if isinstance(own, str) and own else self.id

    @property
    def parent(self) -> str | None:
        parent = self.raw.get("parentUuid")
        return parent if isinstance(parent, str) else None

    def blocks(self, kind: str) -> list[Mapping[str, Any]]:
        content = self.message.get("content")
        written = content if isinstance(content, list) else []
        return [block for block in written if isinstance(block, dict) and block.get("type") == kind]


def _is_message(raw: Mapping[str, Any]) -> bool:
    kind, message = raw.get("type"), raw.get("message")
    known = kind in ("user", "assistant") and "timestamp" in raw
    return known and isinstance(message, dict) and message.get("role") == kind


def _line(raw: Mapping[str, Any], at: str, unnamed: str, repairs: Mapping[str, list[str]]) -> _Line:
    session, own = raw.get("sessionId"), raw.get("uuid")
    session = session if isinstance(session, str) and session else unnamed
    time_ns, naive = iso_ns(raw["timestamp"], f"{at}.timestamp")
    if naive:
        repairs[session].append("times without a time zone: read as UTC")
    return _Line(raw, own if isinstance(own, str) and own else at, session, time_ns)


@dataclass
class _Call:
    """One answer of the model and the lines it is spread over."""

    start_ns: int
    lines: list[_Line]
    after: list[str]


@dataclass
class _Tool:
    """A tool use, the call that asked for it, and the line with its result."""

    name: str
    line: _Line
    call: str
    agent: str | None
    result: _Line | None = None

    @property
    def spawned(self) -> str | None:
        """Id of the sub-agent that this tool ran, where its result says so."""
        told = self.result.raw.get("toolUseResult") if self.result else None
        agent = told.get("agentId") if isinstance(told, dict) else None
        return agent if isinstance(agent, str) else None


@dataclass
class _Agent:
    """What is known of one agent while its lines are read in order."""

    lines: list[_Line] = field(default_factory=list)
    calls: dict[str, _Call] = field(default_factory=dict)
    open_tools: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    last_result_ns: int | None = None


class _Session:
    """Reads the lines of one session, each agent's in order of time, and makes spans of them."""

    def __init__(self, session_id: str, lines: list[_Line], notes: list[str]) -> None:
        self.session_id = session_id
        self.notes = notes
        self.lines = sorted(lines, key=lambda line: line.time_ns)
        self.by_id = {line.id: line for line in lines}
        self.agents: dict[str | None, _Agent] = defaultdict(_Agent)
        self.tools: dict[str, _Tool] = {}
        self.found: list[Span] = []

    def spans(self) -> list[Span]:
        roots: dict[str, str | None] = {}
        for line in self.lines:
            name = self._agent_of(line, roots)
            agent = self.agents[name]
            if line.by_model:
                self._answer(line, name, agent)
            else:
                self._told(line, name, agent)
            agent.lines.append(line)
        for name, agent in self.agents.items():
            self._container(name, agent)
            for answer, call in agent.calls.items():
                self._call(answer, call, _span_of(name))
        for use, tool in self.tools.items():
            self._tool(use, tool)
        return self.found

    def _agent_of(self, line: _Line, roots: dict[str, str | None]) -> str | None:
        """Sub-agent of a side-chain line: by its id, in old files by the chain's first line."""
        if not line.raw.get("isSidechain"):
            return None
        own = line.raw.get("agentId")
        if isinstance(own, str) and own:
            return own
        trail, at = {line.id}, line
        while at.id not in roots:
            above = self.by_id.get(at.parent or "")
            if above is None or above.id in trail or not above.raw.get("isSidechain"):
                roots[at.id] = at.id
                break
            at = above
            trail.add(at.id)
        roots.update(dict.fromkeys(trail, roots[at.id]))
        return roots[at.id]

    def _answer(self, line: _Line, name: str | None, agent: _Agent) -> None:
        if line.message.get("model") == _SYNTHETIC:
            self.notes.append("line written in the model's place: not a model call")
            return
        call = agent.calls.get(line.answer)
        if call is None:
            start = self._asked_ns(line, agent)
            call = agent.calls[line.answer] = _Call(start, [], agent.done)
            agent.done = []
        if not call.lines:
            agent.done.append(line.answer)
        call.lines.append(line)
        for block in line.blocks("tool_use"):
            use = block.get("id")
            if isinstance(use, str) and use and use not in self.tools:
                self.tools[use] = _Tool(name_of(block.get("name")), line, line.answer, name)
                agent.open_tools.add(use)

    def _asked_ns(self, line: _Line, agent: _Agent) -> int:
        """When the model was asked: its line's parent, or the last tool result, if later."""
        parent = self.by_id.get(line.parent or "")
        times = [t for t in (agent.last_result_ns,) if t is not None]
        if parent is not None and parent.time_ns <= line.time_ns:
            times.append(parent.time_ns)
        elif agent.lines:
            self.notes.append("answer without a parent line: taken as following the line before it")
            times.append(agent.lines[-1].time_ns)
        if not times:
            self.notes.append("answer with nothing before it: its call counts from its first line")
        return max(times, default=line.time_ns)

    def _told(self, line: _Line, name: str | None, agent: _Agent) -> None:
        """A user's line: results of tools, or a prompt for which the agent had been waiting."""
        results = line.blocks("tool_result")
        for block in results:
            use = block.get("tool_use_id")
            tool = self.tools.get(use) if isinstance(use, str) else None
            if tool is None or tool.result is not None:
                self.notes.append("result of a tool use that is not in this log: left out")
                continue
            tool.result = line
            agent.open_tools.discard(str(use))
            agent.last_result_ns = line.time_ns
            agent.done.append(_tool_span(str(use), tool))
        written = not line.raw.get("isMeta") and not line.raw.get("isCompactSummary")
        if results or not written or name is not None or agent.open_tools or not agent.lines:
            return
        wait = f"{line.id}.wait"
        times = (agent.lines[-1].time_ns, line.time_ns)
        self._add(wait, _ROOT, "waiting for the user", times, HUMAN_WAIT, after=agent.done)
        agent.done = [wait]

    def _container(self, name: str | None, agent: _Agent) -> None:
        bounds = (agent.lines[0].time_ns, agent.lines[-1].time_ns)
        first = agent.lines[0].raw
        attributes = {
            **SESSION,
            "gen_ai.conversation.id": self.session_id,
            **{f"claude_code.{k}": v for k, v in first.items() if k in ("version", "agentId")},
        }
        if name is None:
            self._add(_ROOT, None, "session", bounds, attributes)
        else:
            self._add(_span_of(name), self._above(name, bounds), "sub-agent", bounds, attributes)

    def _above(self, name: str, bounds: tuple[int, int]) -> str | None:
        """Span that a sub-agent ran in: the tool that names it, else the shortest around it."""
        for use, tool in self.tools.items():
            if tool.spawned == name:
                return _tool_span(use, tool)
        around = [
            (tool.result.time_ns - tool.line.time_ns, use)
            for use, tool in self.tools.items()
            if tool.result is not None and tool.agent != name and tool.spawned is None
            if tool.line.time_ns <= bounds[0] and bounds[1] <= tool.result.time_ns
        ]
        if around:
            return min(around)[1]
        return _ROOT if None in self.agents else _spawn_span(name)

    def _call(self, answer: str, call: _Call, parent: str) -> None:
        message = max((one.message for one in call.lines), key=_final_tokens)
        reported = usage(message.get("usage"))
        if reported and not _final(message):
            reported.pop("gen_ai.usage.output_tokens", None)
            self.notes.append("token count of an unfinished answer: not used")
        model = message.get("model")
        attributes: dict[str, Any] = {**CALL, **reported}
        if isinstance(model, str):
            attributes["gen_ai.request.model"] = model
        if isinstance(message.get("stop_reason"), str):
            attributes["gen_ai.response.finish_reasons"] = [message["stop_reason"]]
        request = call.lines[0].raw.get("requestId")
        if isinstance(request, str):
            attributes["gen_ai.response.id"] = request
        name = f"chat {model}" if isinstance(model, str) else "chat"
        times = (min(call.start_ns, call.lines[0].time_ns), call.lines[-1].time_ns)
        self._add(answer, parent, name, times, attributes, after=call.after)

    def _tool(self, use: str, tool: _Tool) -> None:
        kind = HUMAN_WAIT if tool.name in _ASKS_USER else {**TOOL, **MAY_HIDE_HUMAN}
        attributes = {**kind, "gen_ai.tool.name": tool.name, "gen_ai.tool.call.id": use}
        times = (tool.line.time_ns, tool.result.time_ns if tool.result else None)
        parent = _span_of(tool.agent)
        self._add(_tool_span(use, tool), parent, tool.name, times, attributes, after=[tool.call])

    def _add(
        self,
        span_id: str,
        parent: str | None,
        name: str,
        times: tuple[int, int | None],
        attributes: Mapping[str, Any],
        *,
        after: Iterable[str] = (),
    ) -> None:
        self.found.append(
            Span(
                trace_id=self.session_id,
                span_id=span_id,
                name=name,
                start_ns=times[0],
                end_ns=times[1],
                parent_id=parent,
                attributes=attributes,
                links=tuple(SpanLink(self.session_id, one) for one in dict.fromkeys(after)),
            )
        )


def _span_of(agent: str | None) -> str:
    return _ROOT if agent is None else f"agent-{agent}"


def _spawn_span(agent: str) -> str:
    """Span id of the tool that ran a sub-agent: the same from the session's file and its own."""
    return f"spawn-{agent}"


def _tool_span(use: str, tool: _Tool) -> str:
    return use if tool.spawned is None else _spawn_span(tool.spawned)


def _final(message: Mapping[str, Any]) -> bool:
    return message.get("stop_reason", "unsaid") is not None


def _final_tokens(message: Mapping[str, Any]) -> tuple[bool, int]:
    count = usage(message.get("usage")).get("gen_ai.usage.output_tokens", -1)
    return _final(message), count
