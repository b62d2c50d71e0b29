"""Sessions of kv-cache-tester: the requests of one coding agent, with sub-agents nested.

Each request has its start ``t`` on a clock of whole seconds, its length ``api_time`` to 10 ms,
what stopped it, its tokens and, where it was streamed, its time to first token. Turns follow one
another, so what lies between two requests is known by what ended the first: after ``tool_use``
tools ran (and a person may have been asked first), after ``end_turn`` a person was waited for.

A sub-agent's ``t`` is when it reported back: in all twelve sub-agents of the twelve sessions
looked at, ``t - duration_ms`` lies 0.2 to 1.0 s after the request that launched it. Source of the
fields: "Trace Format" of kv-cache-tester's trace replay documentation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import integer, listed, name_of, objects, text_id
from gatekeeper_adapters.traces.session_attributes import (
    CALL,
    HUMAN_WAIT,
    MAY_HIDE_HUMAN,
    SESSION,
    TOOL,
    seconds_ns,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "KvCacheFormat"]

_CLOCK_NS = 10**9
_MILLISECOND = 10**6
_ROOT = "session"
_SUBAGENT = "subagent"
_READ = frozenset({"t", "model", "in", "out", "stop", "api_time", "ttft", "hash_ids", "requests"})


class KvCacheFormat:
    """One session per document or line."""

    name = "kv_cache"

    def accepts(self, document: Document) -> bool:
        """Whether a value has a list of requests that give their tokens as ``in`` and ``out``."""
        return document.values is not None and any(_sessions(document.values))

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document. Times count from the start of the session."""
        repairs: dict[str, list[str]] = defaultdict(list)
        spans: list[Span] = []
        for session in _sessions(document.values or ()):
            trace_id = text_id(session.get("id"), "id")
            spans += _Session(trace_id, repairs[trace_id]).read(session)
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = KvCacheFormat()
"""Entry point of group ``gatekeeper.traces``."""


def _sessions(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [one for one in listed(values) if _is_session(one)]


def _is_session(value: Mapping[str, Any]) -> bool:
    requests = value.get("requests")
    return isinstance(requests, list) and any(
        isinstance(one, dict) and ({"t", "in", "out"} <= one.keys() or _is_subagent(one))
        for one in requests
    )


def _is_subagent(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == _SUBAGENT and "requests" in entry


@dataclass
class _Agent:
    """An agent whose requests are still to be placed; ``start_ns`` is when its clock was 0."""

    span_id: str
    at: str
    requests: list[dict[str, Any]]
    start_ns: int


class _Session:
    """Collects the spans of one session; a loop over agents, so that any nesting fits."""

    def __init__(self, trace_id: str, notes: list[str]) -> None:
        self.trace_id = trace_id
        self.notes = notes
        self.spans: list[Span] = []
        self.todo: list[_Agent] = []

    def read(self, session: Mapping[str, Any]) -> list[Span]:
        top = objects(session.get("requests"), "requests")
        self.todo.append(_Agent(_ROOT, "requests", top, 0))
        for agent in self.todo:  # grows while it is read
            self._agent(agent)
        calls = [
            span for span in self.spans if span.attributes.get("gen_ai.operation.name") == "chat"
        ]
        if not any(span.end_ns is not None for span in calls):
            raise TraceError(
                "gives no request's duration, so how long anything took is unknown",
                field="requests[].api_time",
                value="absent",
                remedy="export the session with api_time, the seconds each request took",
            )
        total = _output_total(session)
        self._add(
            _ROOT,
            None,
            "session",
            (min(s.start_ns for s in self.spans), max(s.end_ns or s.start_ns for s in self.spans)),
            {
                **SESSION,
                "gen_ai.conversation.id": self.trace_id,
                **({} if total is None else {"gen_ai.usage.output_tokens": total}),
                **_rest(session),
            },
        )
        return self.spans

    def _agent(self, agent: _Agent) -> None:
        """Requests of one agent in order, and what lies between them."""
        before: _Placed | None = None
        launched: list[tuple[str, Mapping[str, Any]]] = []
        for n, entry in enumerate(agent.requests):
            at = f"{agent.at}[{n}]"
            if _is_subagent(entry):
                launched.append((at, entry))
                continue
            placed = self._place(agent, entry, at, before)
            gap = self._gap(agent, before, placed, at)
            self._call(agent, placed, at, after=gap or (before.span_id if before else None))
            for where, subagent in launched:
                self._launch(gap or agent.span_id, subagent, where, before)
            before, launched = placed, []
        for where, subagent in launched:
            self._launch(agent.span_id, subagent, where, before)

    def _place(
        self, agent: _Agent, entry: Mapping[str, Any], at: str, before: _Placed | None
    ) -> _Placed:
        """Start and end of a request; turns that overlap by less than the clock touch instead."""
        start = agent.start_ns + seconds_ns(entry.get("t"), f"{at}.t")
        if before is not None and before.end_ns is not None:
            early = before.end_ns - start
            if 0 < early < _CLOCK_NS:
                start = before.end_ns
                self.notes.append(
                    "request starts before the one before it ends, by less than its clock of "
                    "1 s: placed right after it"
                )
            elif early > 0:
                self.notes.append("request overlaps the one before it: kept as parallel")
        length = entry.get("api_time")
        end = None if length is None else start + seconds_ns(length, f"{at}.api_time")
        return _Placed(at, entry, start, end)

    def _call(self, agent: _Agent, placed: _Placed, at: str, *, after: str | None) -> None:
        entry = placed.entry
        attributes: dict[str, Any] = {
            **CALL,
            "gen_ai.usage.input_tokens": integer(entry.get("in"), f"{at}.in"),
            "gen_ai.usage.output_tokens": integer(entry.get("out"), f"{at}.out"),
            **_rest(entry),
        }
        if isinstance(entry.get("model"), str):
            attributes["gen_ai.request.model"] = entry["model"]
        if entry.get("stop"):
            attributes["gen_ai.response.finish_reasons"] = [entry["stop"]]
        if entry.get("ttft") is not None:
            attributes["gen_ai.request.stream"] = True
            attributes["gen_ai.response.time_to_first_chunk"] = entry["ttft"]
        times = (placed.start_ns, placed.end_ns)
        self._add(placed.span_id, agent.span_id, "chat", times, attributes, after=after)

    def _gap(self, agent: _Agent, before: _Placed | None, after: _Placed, at: str) -> str | None:
        """Span id of what ran between two requests; None where nothing did."""
        if before is None or before.end_ns is None or after.start_ns <= before.end_ns:
            return None
        stop = before.entry.get("stop")
        given = after.entry.get("input_types")
        if stop == "end_turn":
            name, kind = "waiting for the user", HUMAN_WAIT
        elif stop == "tool_use" and isinstance(given, list) and "tool_result" in given:
            name, kind = "tools", {**TOOL, **MAY_HIDE_HUMAN}
        else:
            name, kind = "pause", MAY_HIDE_HUMAN
        span_id = f"{at}.before"
        thought = after.entry.get("think_time")
        attributes = {**kind, **({} if thought is None else {"kv_cache.think_time": thought})}
        times = (before.end_ns, after.start_ns)
        self._add(span_id, agent.span_id, name, times, attributes, after=before.span_id)
        return span_id

    def _launch(
        self, parent: str, entry: Mapping[str, Any], at: str, before: _Placed | None
    ) -> None:
        reported = seconds_ns(entry.get("t"), f"{at}.t")
        length = integer(entry.get("duration_ms"), f"{at}.duration_ms") * _MILLISECOND
        earliest = 0 if before is None else before.start_ns
        start = reported - length
        if start < earliest:
            start = reported
            self.notes.append(
                "sub-agent would start before its launch: its t is taken as its start"
            )
        name = name_of(entry.get("subagent_type") or _SUBAGENT)
        cause = None if before is None else before.span_id
        times = (start, start + length)
        self._add(at, parent, name, times, {**SESSION, **_rest(entry)}, after=cause)
        requests = objects(entry.get("requests"), f"{at}.requests")
        self.todo.append(_Agent(at, f"{at}.requests", requests, start))

    def _add(
        self,
        span_id: str,
        parent: str | None,
        name: str,
        times: tuple[int, int | None],
        attributes: Mapping[str, Any],
        *,
        after: str | None = None,
    ) -> None:
        start, end = times
        self.spans.append(
            Span(
                trace_id=self.trace_id,
                span_id=span_id,
                name=name,
                start_ns=start,
                end_ns=end,
                parent_id=parent,
                attributes=attributes,
                links=() if after is None else (SpanLink(self.trace_id, after),),
            )
        )


@dataclass(frozen=True)
class _Placed:
    """A request with its times; its place in the document is its span id."""

    span_id: str
    entry: Mapping[str, Any]
    start_ns: int
    end_ns: int | None


def _output_total(session: Mapping[str, Any]) -> int | None:
    totals = session.get("totals")
    combined = totals.get("combined_tokens") if isinstance(totals, dict) else None
    output = combined.get("output") if isinstance(combined, dict) else None
    return output if isinstance(output, int) else None


def _rest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Fields without a name of their own; of the cache's block ids only how many there are."""
    kept = {f"kv_cache.{key}": value for key, value in entry.items() if key not in _READ}
    if isinstance(entry.get("hash_ids"), list):
        kept["kv_cache.blocks"] = len(entry["hash_ids"])
    return kept
