"""OpenInference: Phoenix and the instrumentations of its family.

The first token is a span event, there only where the answer was streamed.
Source: OpenInference semantic conventions.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="OpenInference",
    kind_by_value={
        "openinference.span.kind": {
            "LLM": MODEL,
            "TOOL": "tool",
            "RETRIEVER": "tool",
            "EMBEDDING": "tool",
            "RERANKER": "tool",
            "GUARDRAIL": "verification",
            "EVALUATOR": "verification",
            "AGENT": "other",
            "CHAIN": "other",
            "PROMPT": "other",
        }
    },
    kind_by_presence={"llm.token_count.completion": MODEL},
    output_tokens=("llm.token_count.completion",),
    input_tokens=("llm.token_count.prompt",),
    total_tokens=("llm.token_count.total",),
    models=("llm.model_name",),
    first_token_events=("First Token Stream Event",),
)
