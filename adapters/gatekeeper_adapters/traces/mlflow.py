"""MLflow traces: ``Trace.to_json()``, its data alone, rows of a trace search, or spans alone.

Reads the spans of all three schemas: ``start_time_unix_nano`` with ``parent_span_id`` (3),
``start_time`` with a ``context`` (2), and the names of the Python object (``start_time_ns``,
``parent_id``). MLflow stores every attribute as JSON text, which the export encodes once more;
values are decoded here and keep their names. Events of older releases count microseconds where the
field says nanoseconds, which shows by comparison with their span. What the core understands is
written beside MLflow's own attributes, unless the span says it itself:

    mlflow.spanType                          gen_ai.operation.name, or gatekeeper.kind
    first event mlflow.chunk.item.…          gen_ai.response.time_to_first_chunk (streamed answers)
    mlflow.chat.tokenUsage, .llm.model       gen_ai.usage.*, gen_ai.request.model
    mlflow.trace.session, .tokenUsage        gen_ai.conversation.id, and a total to check, on roots
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, SpanEvent, SpanLink, Trace, assemble
from gatekeeper.errors import TraceError
from gatekeeper_adapters.traces.fields import (
    an_object,
    integer,
    listed,
    name_of,
    objects,
    text_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "MlflowFormat"]

_SECOND = 10**9
_MICROSECOND = 10**3
_LATEST_NS = 2**63

_STARTS = ("start_time_unix_nano", "start_time_ns", "start_time")
_ENDS = ("end_time_unix_nano", "end_time_ns", "end_time")
_PARENTS = ("parent_span_id", "parent_id")
_PLACED = frozenset(
    {*_STARTS, *_ENDS, *_PARENTS, "trace_id", "span_id", "name", "attributes", "events", "links"}
)

_OPERATIONS = {
    "LLM": "chat",
    "CHAT_MODEL": "chat",
    "TOOL": "execute_tool",
    "RETRIEVER": "retrieval",
    "EMBEDDING": "embeddings",
    "AGENT": "invoke_agent",
    "CHAIN": "invoke_workflow",
    "WORKFLOW": "invoke_workflow",
}
_KINDS = {
    "RERANKER": "tool",
    "MEMORY": "persistence",
    "EVALUATOR": "verification",
    "GUARDRAIL": "verification",
}
"""Span types without an operation of their own, and the kind of time they are."""

_TOKENS = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
}
_CHUNK = re.compile(r"mlflow\.chunk\.item\.\d+|new_token")


class MlflowFormat:
    """Traces with ``info`` and ``data``, and spans with MLflow's names."""

    name = "mlflow"

    def accepts(self, document: Document) -> bool:
        """Whether one of its traces has MLflow's spans, or at least its info."""
        return document.values is not None and any(
            _is_info(info) or (isinstance(spans, list) and any(map(_is_span, spans)))
            for info, spans in _traces(document.values)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document."""
        repairs: dict[str, list[str]] = defaultdict(list)
        spans: list[Span] = []
        found = False
        for info, raws in _traces(document.values or ()):
            found = True
            whole = _Whole(info)
            for n, raw in enumerate(objects(raws, "spans")):
                spans.append(_span(raw, f"spans[{n}]", whole, repairs))
        if found and not spans:
            raise TraceError(
                "holds no spans",
                field="data.spans",
                value="absent",
                remedy="export whole traces, such as Trace.to_json(), not their info alone",
            )
        if spans and all(span.end_ns is None for span in spans):
            raise TraceError(
                "no span has ended",
                field="end_time_unix_nano",
                value="absent",
                remedy="export the trace once its task is done",
            )
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = MlflowFormat()
"""Entry point of group ``gatekeeper.traces``."""


class _Whole:
    """What a trace says of all its spans: its id, session, token total and other info."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self.info = info
        metadata = info.get("trace_metadata", info.get("request_metadata"))
        metadata = metadata if isinstance(metadata, dict) else {}
        self.session = metadata.get("mlflow.trace.session")
        self.trace_id = next(
            (i for key in ("trace_id", "request_id") if isinstance(i := info.get(key), str) and i),
            None,
        )
        usage = _decoded(metadata.get("mlflow.trace.tokenUsage"))
        self.tokens = usage.get("output_tokens") if isinstance(usage, dict) else None

    def on_root(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes of a root, completed by what is said of the trace."""
        made = {f"mlflow.info.{key}": value for key, value in self.info.items()}
        container = attributes.get("gen_ai.operation.name") in ("invoke_agent", "invoke_workflow")
        if isinstance(self.session, str) and self.session:
            made["gen_ai.conversation.id"] = self.session
        if container and isinstance(self.tokens, int):
            made["gen_ai.usage.output_tokens"] = self.tokens
        return {**made, **attributes}


def _is_span(span: object) -> bool:
    if not isinstance(span, dict):
        return False
    attributes = {} if span.get("attributes") is None else span["attributes"]
    if not isinstance(attributes, dict):
        return False
    if "span_id" in span:
        return "start_time_unix_nano" in span or "start_time_ns" in span
    own = any(str(key).startswith("mlflow.") for key in attributes)
    return own and isinstance(span.get("context"), dict) and "start_time" in span


def _is_info(info: Mapping[str, Any]) -> bool:
    named = isinstance(info.get("trace_id", info.get("request_id")), str)
    return named and ("trace_metadata" in info or "request_metadata" in info)


def _traces(values: Iterable[Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Info and spans, as they came, of every trace; spans that stand alone are a trace without info."""
    alone: list[Any] = []
    for one in listed(values):
        for each in one["traces"] if isinstance(one.get("traces"), list) else [one]:
            trace = _decoded(each.get("trace", each)) if isinstance(each, dict) else None
            if not isinstance(trace, dict):
                continue
            if _is_span(trace):
                alone.append(trace)
                continue
            data = _decoded(trace.get("data"))
            info = trace.get("info", trace.get("trace_info"))
            spans = (data if isinstance(data, dict) else trace).get("spans")
            if isinstance(spans, list) or isinstance(info, dict):
                yield info if isinstance(info, dict) else {}, spans
    if alone:
        yield {}, alone


def _span(raw: Mapping[str, Any], at: str, whole: _Whole, repairs: dict[str, list[str]]) -> Span:
    context = an_object(raw.get("context"), f"{at}.context")
    attributes = {
        key: _decoded(value)
        for key, value in an_object(raw.get("attributes"), f"{at}.attributes").items()
    }
    named = attributes.get("mlflow.traceRequestId")
    own = raw.get("trace_id", context.get("trace_id"))
    trace_id = whole.trace_id or text_id(
        named if isinstance(named, str) and named else own, f"{at}.trace_id"
    )
    start = _time(_first(raw, _STARTS), f"{at}.{_STARTS[0]}")
    end = _first(raw, _ENDS)
    ended = None if end in (None, "", 0) else _time(end, f"{at}.{_ENDS[0]}")
    parent = _first(raw, _PARENTS)
    events = tuple(_events(raw, at, start, repairs[trace_id]))
    attributes = {
        **_normalised(raw, attributes),
        **_first_chunk(events, start),
        **{f"mlflow.span.{k}": v for k, v in raw.items() if k not in _PLACED and v is not None},
        **attributes,
    }
    return Span(
        trace_id=trace_id,
        span_id=text_id(raw.get("span_id", context.get("span_id")), f"{at}.span_id"),
        name=name_of(raw.get("name")),
        start_ns=start,
        end_ns=ended,
        parent_id=text_id(parent, f"{at}.{_PARENTS[0]}") if parent else None,
        attributes=attributes if parent else whole.on_root(attributes),
        events=events,
        links=tuple(
            SpanLink(
                # A span says the trace's id in OpenTelemetry's form, MLflow's own is the one used.
                trace_id
                if link.get("trace_id") == own
                else text_id(link.get("trace_id"), f"{at}.links[{i}].trace_id"),
                text_id(link.get("span_id"), f"{at}.links[{i}].span_id"),
            )
            for i, link in enumerate(objects(raw.get("links"), f"{at}.links"))
        ),
    )


def _time(value: object, field: str) -> int:
    time = integer(value, field)
    if 0 < time < _LATEST_NS:
        return time
    raise TraceError(
        "is not a time", field=field, value=value, remedy="write nanoseconds since 1970"
    )


def _first(raw: Mapping[str, Any], keys: Iterable[str]) -> Any:  # noqa: ANN401 - any JSON value
    return next((raw[key] for key in keys if raw.get(key) is not None), None)


def _decoded(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return what JSON text stands for, through a second encoding too; other values as they are."""
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            break
    return value


def _events(raw: Mapping[str, Any], at: str, start: int, notes: list[str]) -> Iterator[SpanEvent]:
    for i, event in enumerate(objects(raw.get("events"), f"{at}.events")):
        told = _first(event, ("time_unix_nano", "timestamp"))
        if told is None:
            continue
        when = _time(told, f"{at}.events[{i}].time_unix_nano")
        if when < start and (when + 1) * _MICROSECOND > start:
            notes.append("event times count microseconds: read as such")
            when = max(start, when * _MICROSECOND)
        rest = an_object(event.get("attributes"), f"{at}.events[{i}].attributes")
        yield SpanEvent(name_of(event.get("name")), when, rest)


def _first_chunk(events: Iterable[SpanEvent], start: int) -> dict[str, float]:
    """Delay of the first streamed chunk in seconds, where a span recorded its chunks."""
    times = [event.time_ns for event in events if _CHUNK.fullmatch(event.name)]
    if not times or min(times) < start:
        return {}
    return {"gen_ai.response.time_to_first_chunk": (min(times) - start) / _SECOND}


def _normalised(raw: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a span says, in the names of OpenTelemetry's GenAI conventions."""
    told = attributes.get("mlflow.spanType", raw.get("span_type"))
    kind = told.upper() if isinstance(told, str) else ""
    inputs = attributes.get("mlflow.spanInputs")
    asked = inputs.get("model") if isinstance(inputs, dict) else None
    named = attributes.get("mlflow.llm.model", asked)
    made = {
        "gen_ai.operation.name": _OPERATIONS.get(kind),
        "gatekeeper.kind": _KINDS.get(kind),
        "gen_ai.request.model": named if isinstance(named, str) else None,
        "gen_ai.tool.name": name_of(raw.get("name")) if kind == "TOOL" else None,
        "gen_ai.agent.name": name_of(raw.get("name")) if kind == "AGENT" else None,
    }
    usage = attributes.get("mlflow.chat.tokenUsage")
    if isinstance(usage, dict):
        made.update({name: usage.get(key) for key, name in _TOKENS.items()})
    return {key: value for key, value in made.items() if value is not None}
