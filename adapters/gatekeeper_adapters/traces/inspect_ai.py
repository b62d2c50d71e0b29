"""Inspect AI evaluation logs: each sample is a task.

Reads a log in JSON form, one sample of an unpacked ``.eval`` archive, or a bare list of events.
``span_begin`` and ``span_end`` (in older logs ``step``) become spans; so does every event that tells
when it ``completed``; the others are moments on the span around them. The sample itself is the
root, from its first event to its last.

A model event covers the call with all its waits, and ``working_time`` is the time of the attempt
that succeeded, so (completed − timestamp) − working_time was spent waiting for a connection, a rate
limit or a retry. It comes first and is shown as a span of kind queue, never as decode. Time between
a tool call and the decision of a human approver is a span of kind human_wait. What the core
understands is written beside the event's own fields (``gen_ai.*``, ``gatekeeper.kind``), which
all stay under ``inspect.``. No log tells the first token, so a model call has grade C at best.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanEvent, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import an_object, iso_ns, listed, name_of, objects, text_id
from gatekeeper_adapters.traces.inspect_events import Event, call_of, kept, part
from gatekeeper_adapters.traces.session_attributes import HUMAN_WAIT, TOOL, seconds_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "InspectFormat"]

_CLOCK_NS = 10**6
"""Differences up to this come from two clocks (wall and monotonic) and are not reported."""

_ROOT = "(sample)"


class InspectFormat:
    """Logs with an ``eval``, or events with ``event`` and ``timestamp``."""

    name = "inspect_ai"

    def accepts(self, document: Document) -> bool:
        """Whether a value is an evaluation log, or a sample with its events."""
        return document.values is not None and any(
            _is_log(one) or _has_events(one) for one in listed(document.values)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document, one for each sample that has its events."""
        samples = [
            _Sample(sample, log, at)
            for log in listed(document.values or ())
            for sample, at in _samples(log)
            if _has_events(sample)
        ]
        if not samples:
            raise TraceError(
                "holds no events",
                field="samples",
                value="absent",
                remedy="export the log with its samples and their events, not its header alone",
            )
        spans = [span for sample in samples for span in sample.spans()]
        if all(span.end_ns is None for span in spans if span.span_id != _ROOT):
            raise TraceError(
                "no event tells when it ended",
                field="completed",
                value="absent",
                remedy="record the log with a release that writes span_end or completed",
            )
        repairs = {sample.trace_id: sample.repairs for sample in samples}
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = InspectFormat()
"""Entry point of group ``gatekeeper.traces``."""


def _is_log(one: Mapping[str, Any]) -> bool:
    return isinstance(one.get("eval"), dict) and ("plan" in one or "samples" in one)


def _has_events(one: Mapping[str, Any]) -> bool:
    events = one.get("events")
    return isinstance(events, list) and any(
        isinstance(e, dict) and isinstance(e.get("event"), str) and "timestamp" in e for e in events
    )


def _samples(log: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], str]]:
    if not _is_log(log):
        return [(dict(log), "sample")]
    return [(s, f"samples[{n}]") for n, s in enumerate(objects(log.get("samples"), "samples"))]


@dataclass
class _Open:
    """A span while its events are being collected."""

    name: str
    start_ns: int
    end_ns: int | None
    parent: str | None
    attributes: dict[str, Any]
    type: object = None
    events: list[SpanEvent] = field(default_factory=list)
    after: str | None = None
    """Id of the span whose end let this one start."""


class _Sample:
    """One sample: its edges first, since events may name a span that begins after them."""

    def __init__(self, sample: Mapping[str, Any], log: Mapping[str, Any], at: str) -> None:
        self.sample = sample
        self.about = an_object(log.get("eval"), "eval")
        self.repairs: list[str] = []
        self.trace_id = self._identity(at)
        self.times: list[int] = []
        self.open: dict[str, _Open] = {}
        found: dict[str, Event] = {}
        waiting = [(objects(sample.get("events"), f"{at}.events"), f"{at}.events", _ROOT)]
        for group in waiting:  # grows while it is read
            for event in self._edges(*group):
                earlier = found.get(event.key)
                if earlier is None or "completed" in event.raw or "completed" not in earlier.raw:
                    found[event.key] = event  # an event recorded again is one event
                if event.holds:
                    below = objects(event.raw["events"], f"{event.at}.events")
                    waiting.append((below, f"{event.at}.events", event.key))
        events = list(found.values())
        self.called = {e.call: e.time_ns for e in events if e.kind == "tool" and e.call}
        self.approved: dict[str, str] = {}
        self.tools: dict[tuple[str | None, str], list[str]] = {}
        for span_id, one in self.open.items():
            if one.type == "tool":
                self.tools.setdefault((one.parent, one.name), []).append(span_id)
        self._approvals(events)
        title = name_of(f"sample {sample.get('id', '')}".rstrip())
        root = self.open[_ROOT] = _Open(title, min(self.times), None, None, self._about())
        for event in events:
            self._event(event)
        root.start_ns, root.end_ns = min(self.times), max(self.times)

    def spans(self) -> list[Span]:
        """The sample's root and everything below it."""
        service = self.about.get("task")
        return [
            Span(
                trace_id=self.trace_id,
                span_id=span_id,
                name=one.name,
                start_ns=one.start_ns,
                end_ns=one.end_ns,
                parent_id=one.parent,
                service=service if isinstance(service, str) and service else None,
                attributes=one.attributes,
                events=tuple(one.events),
                links=(SpanLink(self.trace_id, one.after),) if one.after else (),
            )
            for span_id, one in self.open.items()
        ]

    def _identity(self, at: str) -> str:
        own = self.sample.get("uuid")
        if own is not None:
            return text_id(own, f"{at}.uuid")
        run = self.about.get("run_id", self.about.get("eval_id"))
        if isinstance(run, str) and self.sample.get("id") is not None:
            return f"{run}/{self.sample['id']}/{self.sample.get('epoch', 1)}"
        self.repairs.append("sample without an id of its own: named by a digest of its events")
        told = [
            f"{key}={value}"
            for event in objects(self.sample.get("events"), f"{at}.events")
            for key in ("event", "id", "uuid", "timestamp", "completed")
            if isinstance(value := event.get(key), str)
        ]
        return hashlib.sha256("\n".join(told).encode("utf-8", "replace")).hexdigest()[:32]

    def _about(self) -> dict[str, Any]:
        """What the log says of the sample as a whole; its token total is checked by the core."""
        told = {f"inspect.eval.{key}": value for key, value in self.about.items()}
        told.update({f"inspect.sample.{k}": v for k, v in self.sample.items() if k != "events"})
        told["gen_ai.operation.name"] = "invoke_workflow"
        usage = part(self.sample, "model_usage")
        counts = [part(usage, model).get("output_tokens") for model in usage]
        if counts and all(isinstance(count, int) for count in counts):
            told["gen_ai.usage.output_tokens"] = sum(counts)
        return told

    def _moment(self, value: object, where: str) -> int:
        moment, naive = iso_ns(value, where)
        if naive:
            self.repairs.append("times without a time zone: read as UTC")
        self.times.append(moment)
        return moment

    def _edges(
        self, events: Iterable[Mapping[str, Any]], where: str, owner: str
    ) -> Iterable[Event]:
        """Open and close spans, and hand on every other event with the span around it."""
        steps: list[str] = []
        for i, event in enumerate(events):
            at = f"{where}[{i}]"
            now = self._moment(event.get("timestamp"), f"{at}.timestamp")
            named = event.get("span_id")
            around = named if isinstance(named, str) and named else (steps or [owner])[-1]
            edge = (event.get("event"), event.get("action"))
            if edge[0] == "span_begin":
                above = event.get("parent_id")
                above = above if isinstance(above, str) and above else owner
                self._begin(event, text_id(event.get("id"), f"{at}.id"), above, now)
            elif edge[0] == "span_end":
                self._end(text_id(event.get("id"), f"{at}.id"), now)
            elif edge == ("step", "begin"):
                self._begin(event, f"step at {at}", around, now)
                steps.append(f"step at {at}")
            elif edge == ("step", "end") and steps:
                self._end(steps.pop(), now)  # steps nest: an end closes the innermost
            else:
                yield Event(event, at, now, around)

    def _begin(self, raw: Mapping[str, Any], span_id: str, above: str, now: int) -> None:
        known = self.open.get(span_id)
        if known is not None:
            if known.start_ns != now:
                self.repairs.append(f"conflict: span {span_id} begins twice: the first counts")
            return
        attributes = kept(raw)
        if raw.get("type") == "agent":
            attributes["gen_ai.operation.name"] = "invoke_agent"
            attributes["gen_ai.agent.name"] = name_of(raw.get("name"))
        elif raw.get("type") == "scorer":
            attributes["gatekeeper.kind"] = "verification"
        self.open[span_id] = _Open(
            name_of(raw.get("name")), now, None, above, attributes, raw.get("type")
        )

    def _end(self, span_id: str, now: int) -> None:
        if span_id not in self.open:
            self.repairs.append("span ends that never began: not used")
        elif self.open[span_id].end_ns is None:
            self.open[span_id].end_ns = now

    def _approvals(self, events: Iterable[Event]) -> None:
        """Human decisions on tool calls: the wait for each starts with the call."""
        for event in events:
            approver = event.raw.get("approver")
            if event.kind != "approval" or not isinstance(approver, str):
                continue
            called = self.called.get(event.call, event.time_ns)
            if approver.rpartition("/")[2] == "human" and called < event.time_ns:
                wait = self.approved[event.call] = f"{event.key} (wait)"
                self.open[wait] = _Open(
                    name_of(f"approval of {part(event.raw, 'call').get('function', 'tool')}"),
                    called,
                    event.time_ns,
                    event.around,
                    dict(HUMAN_WAIT),
                )

    def _event(self, event: Event) -> None:
        """Place one event: a model call, a tool, another span, or a moment."""
        completed = event.raw.get("completed")
        end = None if completed is None else self._moment(completed, f"{event.at}.completed")
        if event.kind == "model":
            self._model(event, end)
        elif event.kind == "tool":
            self._tool(event, end)
        elif end is not None:
            attributes = kept(event.raw)
            if event.kind == "sandbox" and not self._inside_tool(event.around):
                attributes.update(TOOL)
                attributes["gen_ai.tool.name"] = f"sandbox {event.raw.get('action', '')}".rstrip()
            name = name_of(event.raw.get("name") or event.raw.get("action") or event.kind)
            self.open[event.key] = _Open(name, event.time_ns, end, event.around, attributes)
        else:
            holder = self.open.get(event.around, self.open[_ROOT])
            holder.events.append(SpanEvent(name_of(event.kind), event.time_ns, kept(event.raw)))

    def _model(self, event: Event, end: int | None) -> None:
        raw, start = event.raw, event.time_ns
        attributes = kept(raw)
        name = name_of(raw.get("model"))
        if raw.get("cache") == "read":
            # Nothing was generated, though the output is there with the usage of its first time.
            attributes["gatekeeper.kind"] = "other"
        else:
            attributes.update(call_of(raw))
            start += self._wait(event, end)
        self.open[event.key] = _Open(name, start, end, event.around, attributes)
        if start > event.time_ns:
            wait = self.open[event.key].after = f"{event.key} (wait)"
            self.open[wait] = _Open(
                f"wait for {name}", event.time_ns, start, event.around, {"gatekeeper.kind": "queue"}
            )

    def _wait(self, event: Event, end: int | None) -> int:
        """Nanoseconds of a model event before the attempt that succeeded; 0 where it cannot tell."""
        working = event.raw.get("working_time")
        if end is None or working is None:
            return 0
        wait = end - event.time_ns - seconds_ns(working, f"{event.at}.working_time")
        if wait < -_CLOCK_NS:
            self.repairs.append("working_time exceeds its model event: no wait is shown")
        return max(0, wait)

    def _tool(self, event: Event, end: int | None) -> None:
        raw = event.raw
        attributes = {**kept(raw), **TOOL, "gen_ai.tool.name": name_of(raw.get("function"))}
        if event.call:
            attributes["gen_ai.tool.call.id"] = event.call
        name = name_of(raw.get("function"))
        tool = _Open(name, event.time_ns, end, event.around, attributes, "tool")
        waited = self.approved.get(event.call)
        if waited is not None:
            tool.after = waited
            tool.start_ns = self.open[waited].end_ns or tool.start_ns
        own = self._own_span(event, tool)
        if own is None:
            self.open[event.key] = tool
            return
        # Event and span are one tool call, and what runs inside the span runs inside the call.
        span = self.open[own]
        span.attributes.update(attributes)
        span.start_ns = min(span.start_ns, tool.start_ns)
        span.end_ns = max((t for t in (span.end_ns, end) if t is not None), default=None)
        span.after = tool.after

    def _own_span(self, event: Event, tool: _Open) -> str | None:
        """Span that a tool event belongs to: the one around it, or in newer logs one beside it."""
        if event.holds:
            return None
        around = self.open.get(event.around)
        if around is not None and around.type == "tool":
            beside = self.tools.get((around.parent, around.name), [])
            if event.around in beside:
                beside.remove(event.around)
                return event.around
        beside = self.tools.get((event.around, tool.name), [])
        for span_id in beside:
            begun = self.open[span_id].start_ns
            if tool.start_ns <= begun and (tool.end_ns is None or begun <= tool.end_ns):
                beside.remove(span_id)
                return span_id
        return None

    def _inside_tool(self, span_id: str | None) -> bool:
        seen: set[str] = set()
        while span_id is not None and span_id in self.open and span_id not in seen:
            seen.add(span_id)
            if self.open[span_id].type == "tool":
                return True
            span_id = self.open[span_id].parent
        return False
