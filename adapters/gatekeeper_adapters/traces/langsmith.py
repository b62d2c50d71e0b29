"""LangSmith runs: arrays, lines, the answer of a runs query, and recorded post and patch payloads.

A run is a span. The SDKs send it twice: a *post* when it starts and a *patch* when it ends, which
are merged by id here. Python writes ISO times, JavaScript integer milliseconds (and in
``dotted_order`` a counter instead of microseconds). The first event ``new_token``, or else
``first_token_time``, becomes ``gen_ai.response.time_to_first_chunk``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanEvent, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import iso_ns, listed, name_of, objects, text_id
from gatekeeper_adapters.traces.langsmith_attributes import kept, normalised, part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "LangSmithFormat"]

_MILLISECOND = 10**6
_SECOND = 10**9
_EARLIEST_MS, _LATEST_MS = 10**11, 10**14
"""1973 and 5138: a number outside is no count of milliseconds since 1970."""

_STEP = re.compile(
    r"(?P<y>\d{4})(?P<mo>\d\d)(?P<d>\d\d)T(?P<h>\d\d)(?P<mi>\d\d)(?P<s>\d\d)(?P<us>\d{6})Z(?P<id>.+)"
)
"""One step of a dotted order: start time and run id of an ancestor, the run itself last."""


class LangSmithFormat:
    """Runs with a ``run_type`` or a ``dotted_order``."""

    name = "langsmith"

    def accepts(self, document: Document) -> bool:
        """Whether one of its records is a run."""
        return document.values is not None and any(
            _is_run(record.run) for record in _records(document.values)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document."""
        repairs: dict[str, list[str]] = defaultdict(list)
        records = list(_merged(_records(document.values or ()), repairs))
        parents = {_id_of(one): _parent_of(one) for one in records}
        spans = [_span(one, parents, repairs) for one in records]
        if spans and all(span.end_ns is None for span in spans):
            raise TraceError(
                "no run has ended",
                field="end_time",
                value="absent",
                remedy="add the payloads that end the runs (patch), or export them once done",
            )
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = LangSmithFormat()
"""Entry point of group ``gatekeeper.traces``."""


@dataclass(frozen=True)
class _Record:
    """A run as found, where it was, and whether it only updates another record."""

    run: Mapping[str, Any]
    at: str
    update: bool


def _is_run(run: Mapping[str, Any]) -> bool:
    timed = "start_time" in run or "end_time" in run
    return isinstance(run.get("dotted_order"), str) or ("run_type" in run and timed)


def _records(values: Iterable[Any]) -> Iterator[_Record]:
    """Every record of a document with its child runs, in order."""
    for n, one in enumerate(listed(values)):
        groups = {
            key: one[key] for key in ("post", "patch", "runs") if isinstance(one.get(key), list)
        }
        if not groups:
            groups = {"": [one]}
        for key, runs in groups.items():
            waiting = [
                (run, f"{key or 'runs'}[{i if key else n}]")
                for i, run in enumerate(runs)
                if isinstance(run, dict)
            ]
            for run, at in waiting:  # grows while it is read
                yield _Record(run, at, key == "patch" or run.get("start_time") is None)
                below = run.get("child_runs")
                waiting.extend(
                    (_inherit(child, run), f"{at}.child_runs[{i}]")
                    for i, child in enumerate(below if isinstance(below, list) else ())
                    if isinstance(child, dict)
                )


def _inherit(child: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    known = {"parent_run_id": run.get("id"), "trace_id": run.get("trace_id")}
    return {**known, **{key: value for key, value in child.items() if value is not None}}


def _merged(records: Iterable[_Record], repairs: dict[str, list[str]]) -> Iterator[_Record]:
    """Runs with their updates applied: unfinished updates first, then by the end they tell."""
    whole: dict[str, list[_Record]] = {}
    updates: dict[str, list[_Record]] = {}
    for record in records:
        (updates if record.update else whole).setdefault(_id_of(record), []).append(record)
    for run_id in {**whole, **updates}:
        changes = updates.get(run_id, [])
        if len(changes) > 1:
            changes.sort(key=_late)
        told = {repr(c.run["end_time"]) for c in changes if c.run.get("end_time") is not None}
        for base in whole.get(run_id) or [_Record({}, changes[0].at, update=True)]:
            run: Mapping[str, Any] = base.run
            for change in changes:
                run = _overlaid(run, change.run)
            merged = _Record({**run, "id": run_id}, base.at, base.update)
            if len(told) > 1:
                repairs[_trace_named(merged) or run_id].append(
                    f"conflict: updates of run {run_id} tell {len(told)} ends: the later counts"
                )
            yield merged


def _late(change: _Record) -> tuple[bool, str, str]:
    end = change.run.get("end_time")
    return (end is not None, str(end), repr(sorted(change.run.items(), key=repr)))


def _overlaid(run: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A run with the values a change fills in; ``extra`` and its ``metadata`` key by key."""
    merged = dict(run)
    for key, value in change.items():
        if value in (None, "", [], {}) and key in merged:
            continue
        old = merged.get(key)
        if key == "extra" and isinstance(old, dict) and isinstance(value, dict):
            metadata = {**part(old, "metadata"), **part(value, "metadata")}
            merged[key] = {**old, **value, **({"metadata": metadata} if metadata else {})}
        else:
            merged[key] = value
    return merged


def _span(
    record: _Record, parents: Mapping[str, str | None], repairs: dict[str, list[str]]
) -> Span:
    run, at = record.run, record.at
    run_id = _id_of(record)
    trace_id = _trace_named(record) or _root(run_id, parents)
    notes = repairs[trace_id]
    order = _dotted(run)
    if run.get("start_time") is None and order:
        start, naive = iso_ns(order[-1][0], f"{at}.dotted_order")
        notes.append("run without a start_time: taken from its dotted_order")
    else:
        start, naive = _time(run.get("start_time"), f"{at}.start_time")
    if naive:
        notes.append("times without a time zone: read as UTC")
    end = run.get("end_time")
    project = run.get("session_name")
    events = tuple(_events(run, at))
    return Span(
        trace_id=trace_id,
        span_id=run_id,
        name=name_of(run.get("name")),
        start_ns=start,
        end_ns=None if end is None else _time(end, f"{at}.end_time")[0],
        parent_id=parents.get(run_id),
        service=project if isinstance(project, str) and project else None,
        attributes={
            **kept(run),
            **normalised(run),
            **_first_token(run, events, start, f"{at}.first_token_time", notes),
        },
        events=events,
    )


def _id_of(record: _Record) -> str:
    """Return a run's id; patches of the JavaScript SDK tell it in ``dotted_order`` alone."""
    order = _dotted(record.run)
    own = record.run.get("id")
    return text_id(order[-1][1] if own is None and order else own, f"{record.at}.id")


def _parent_of(record: _Record) -> str | None:
    own = record.run.get("parent_run_id")
    if own is not None:
        return text_id(own, f"{record.at}.parent_run_id")
    order = _dotted(record.run)
    return order[-2][1] if len(order) > 1 else None


def _trace_named(record: _Record) -> str | None:
    own = record.run.get("trace_id")
    if own is not None:
        return text_id(own, f"{record.at}.trace_id")
    order = _dotted(record.run)
    return order[0][1] if order else None


def _root(run_id: str, parents: Mapping[str, str | None]) -> str:
    """Topmost known ancestor, which names the trace of runs that do not."""
    seen: set[str] = set()
    while (parent := parents.get(run_id)) and run_id not in seen:
        seen.add(run_id)
        run_id = parent
    return min(seen) if run_id in seen else run_id


def _dotted(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """ISO start time and id of each ancestor and the run itself; empty where it is not told."""
    text = run.get("dotted_order")
    steps = [_STEP.fullmatch(step) for step in text.split(".")] if isinstance(text, str) else []
    return [
        (f"{m['y']}-{m['mo']}-{m['d']}T{m['h']}:{m['mi']}:{m['s']}.{m['us']}Z", m["id"])
        for m in steps
        if m is not None
    ]


def _time(value: object, field: str) -> tuple[int, bool]:
    """Nanoseconds since 1970 of an ISO time or of milliseconds, and whether its zone was missing."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,20}", value):
        return iso_ns(value, field)
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            milliseconds = Fraction(value)
        except (ValueError, OverflowError):
            milliseconds = Fraction(0)  # NaN and the infinities, which JSON readers let through
        if _EARLIEST_MS <= milliseconds < _LATEST_MS:
            return round(milliseconds * _MILLISECOND), False
    raise TraceError(
        "is not a time",
        field=field,
        value="absent" if value is None else value,
        remedy="write milliseconds since 1970, or an ISO 8601 time",
    )


def _events(run: Mapping[str, Any], at: str) -> Iterator[SpanEvent]:
    """A run's events that tell their time; the others cannot be placed."""
    for i, event in enumerate(objects(run.get("events"), f"{at}.events")):
        if event.get("time") is not None:
            when, _ = _time(event["time"], f"{at}.events[{i}].time")
            rest = {key: value for key, value in event.items() if key not in ("name", "time")}
            yield SpanEvent(name_of(event.get("name")), when, rest)


def _first_token(
    run: Mapping[str, Any], events: Iterable[SpanEvent], start: int, field: str, notes: list[str]
) -> dict[str, Any]:
    """Delay of the first token in seconds, where the run was streamed."""
    times = [event.time_ns for event in events if event.name == "new_token"]
    if not times and run.get("first_token_time") is not None:
        times = [_time(run["first_token_time"], field)[0]]
    if not times:
        return {}
    if min(times) < start:
        notes.append("first token before its run starts: not used")
        return {}
    return {"gen_ai.response.time_to_first_chunk": (min(times) - start) / _SECOND}
