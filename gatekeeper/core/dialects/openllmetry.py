"""OpenLLMetry (Traceloop): workflows, tasks, agents and tools around ``gen_ai.*`` spans.

A ``task`` says nothing of its kind. Newer versions write OpenTelemetry's names, older ones
``llm.*``. A streamed answer has one event per chunk; the first of them is the first token.
Source: OpenLLMetry semantic conventions.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="OpenLLMetry",
    kind_by_value={
        "traceloop.span.kind": {"tool": "tool", "workflow": "other", "agent": "other"},
        "llm.request.type": {
            "chat": MODEL,
            "completion": MODEL,
            "embedding": "tool",
            "rerank": "tool",
        },
    },
    kind_by_presence={
        "llm.usage.completion_tokens": MODEL,
        "llm.usage.total_tokens": MODEL,
    },
    output_tokens=("llm.usage.completion_tokens",),
    input_tokens=("llm.usage.prompt_tokens",),
    total_tokens=("llm.usage.total_tokens",),
    models=("llm.request.model", "llm.response.model"),
    first_token_events=("llm.content.completion.chunk",),
)
