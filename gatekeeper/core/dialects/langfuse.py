"""Langfuse observations, in its exports and as its SDK writes them on OpenTelemetry spans.

The type ``SPAN`` says nothing, so other rules may still tell.
Source: Langfuse documentation, "Data model" and "OpenTelemetry".
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="Langfuse",
    kind_by_value={
        "langfuse.observation.type": {
            "GENERATION": MODEL,
            "TOOL": "tool",
            "RETRIEVER": "tool",
            "EMBEDDING": "tool",
            "EVALUATOR": "verification",
            "GUARDRAIL": "verification",
            "AGENT": "other",
            "CHAIN": "other",
            "EVENT": "other",
        }
    },
    output_tokens=("langfuse.usage.output",),
    models=("langfuse.model", "langfuse.observation.model.name"),
    first_token_times=("langfuse.completion_start_ns",),
)
