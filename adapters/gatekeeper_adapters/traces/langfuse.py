"""Langfuse exports: ``{trace, observations}`` of the UI, or a trace with its observations."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gatekeeper.core.traces import Span, Trace, assemble
from gatekeeper_adapters.traces.fields import iso_ns, listed, name_of, objects, text_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.trace_documents import Document

__all__ = ["FORMAT", "LangfuseFormat"]

_PLACED = frozenset(
    {"id", "traceId", "parentObservationId", "name", "startTime", "endTime", "metadata", "type"}
)


class LangfuseFormat:
    """One trace with its observations per document or line."""

    name = "langfuse"

    def accepts(self, document: Document) -> bool:
        """Whether a value has a list of observations."""
        return document.values is not None and any(
            isinstance(one.get("observations"), list) for one in listed(document.values)
        )

    def read(self, document: Document) -> tuple[Trace, ...]:
        """Traces of an accepted document. Langfuse times are precise to the millisecond."""
        repairs: dict[str, list[str]] = defaultdict(list)
        spans = [
            _span(raw, export, f"observations[{n}]", repairs)
            for export in listed(document.values or ())
            for n, raw in enumerate(objects(export.get("observations"), "observations"))
        ]
        return assemble(spans, source_format=self.name, repairs=repairs)


FORMAT = LangfuseFormat()
"""Entry point of group ``gatekeeper.traces``."""


def _span(
    raw: Mapping[str, Any], export: Mapping[str, Any], at: str, repairs: dict[str, list[str]]
) -> Span:
    envelope = export["trace"] if isinstance(export.get("trace"), dict) else export
    own = raw.get("traceId")
    trace_id = text_id(envelope.get("id") if own is None else own, f"{at}.traceId")
    notes = repairs[trace_id]
    start, naive = iso_ns(raw.get("startTime"), f"{at}.startTime")
    if naive:
        notes.append("times without a time zone: read as UTC")
    kind = raw.get("type")
    end: int | None = None
    if raw.get("endTime") is not None:
        end, _ = iso_ns(raw["endTime"], f"{at}.endTime")
    elif kind == "EVENT":
        end = start  # an event is a moment by definition, so its missing end is known
    parent = raw.get("parentObservationId")
    attributes = _attributes(raw)
    if raw.get("completionStartTime") is not None:
        attributes["langfuse.completion_start_ns"], _ = iso_ns(
            raw["completionStartTime"], f"{at}.completionStartTime"
        )
    return Span(
        trace_id=trace_id,
        span_id=text_id(raw.get("id"), f"{at}.id"),
        name=name_of(raw.get("name")),
        start_ns=start,
        end_ns=end,
        parent_id=text_id(parent, f"{at}.parentObservationId") if parent else None,
        service=_service(attributes),
        attributes=attributes,
    )


def _attributes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All fields under ``langfuse.``; OpenTelemetry attributes inside the metadata as they were."""
    kept = {f"langfuse.{key}": value for key, value in raw.items() if key not in _PLACED}
    kept.update(_metadata(raw.get("metadata")))
    if isinstance(raw.get("type"), str):
        kept["langfuse.observation.type"] = raw["type"].upper()
    for usage in (raw.get("usageDetails"), raw.get("usage")):
        if isinstance(usage, dict) and usage.get("output") is not None:
            kept.setdefault("langfuse.usage.output", usage["output"])
    return kept


def _metadata(metadata: object) -> dict[str, Any]:
    """Langfuse stores metadata as an object or as the JSON text of one."""
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            return {"langfuse.metadata": metadata}
    if not isinstance(metadata, dict):
        return {} if metadata is None else {"langfuse.metadata": metadata}
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        if key == "attributes" and isinstance(value, dict):
            kept.update(value)
        elif key == "resourceAttributes" and isinstance(value, dict):
            kept.update({f"resource.{name}": v for name, v in value.items()})
        else:
            kept[f"langfuse.metadata.{key}"] = value
    return kept


def _service(attributes: Mapping[str, Any]) -> str | None:
    service = attributes.get("resource.service.name")
    return service if isinstance(service, str) else None
