"""OpenTelemetry's GenAI conventions, their present and their former names.

An embedding decodes nothing, so for this purpose it is a tool. A client span has no queue of its
own: it folds into prefill, and the span covers all retries of its call.
Source: OpenTelemetry semantic conventions for generative AI.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import SECOND, Delay, Dialect, Named
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="OTel GenAI",
    kind_by_value={
        "gen_ai.operation.name": {
            "chat": MODEL,
            "generate_content": MODEL,
            "text_completion": MODEL,
            "llm_call": MODEL,
            "embeddings": "tool",
            "retrieval": "tool",
            "execute_tool": "tool",
            "create_agent": "other",
            "invoke_agent": "other",
            "invoke_workflow": "other",
            "plan": "other",
        },
        "mcp.method.name": {"tools/call": "tool"},
    },
    kind_by_name=(
        Named(r"execute_tool\b", "tool"),
        Named(r"tools/call\b", "tool"),
    ),
    kind_by_presence={
        "gen_ai.tool.name": "tool",
        "gen_ai.tool.call.id": "tool",
        "gen_ai.usage.output_tokens": MODEL,
        "gen_ai.usage.completion_tokens": MODEL,
    },
    output_tokens=("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    input_tokens=("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    total_tokens=("gen_ai.usage.total_tokens",),
    models=("gen_ai.request.model", "gen_ai.response.model"),
    first_token_delays=(
        Delay("gen_ai.response.time_to_first_chunk", SECOND),
        Delay("gen_ai.server.time_to_first_token", SECOND),
    ),
    first_token_events=("gen_ai.content.first_token",),
)
