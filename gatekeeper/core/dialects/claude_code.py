"""Claude Code's telemetry spans.

A tool's span holds the wait for permission and the execution as spans of their own, so its waiting
for a person is known. The spans of a sub-agent lie beside the execution that ran it, under the same
tool: the execution then repeats their time. One ``llm_request`` covers all its attempts.
Source: Claude Code documentation, "Monitoring", traces.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import MILLISECOND, Delay, Dialect, Named
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="Claude Code",
    kind_by_name=(
        Named(r"claude_code\.tool\.blocked_on_user$", "human_wait"),
        Named(r"claude_code\.tool(\.execution)?$", "tool"),
        Named(r"claude_code\.hook\b", "tool"),
        Named(r"claude_code\.llm_request$", MODEL),
        Named(r"claude_code\.interaction$", "other"),
    ),
    output_tokens=("output_tokens",),
    input_tokens=("input_tokens",),
    first_token_delays=(Delay("ttft_ms", MILLISECOND),),
    span_names=r"claude_code\.",
    attempt_counts=("attempt",),
    attempt_events=("gen_ai.request.attempt",),
    error_statuses=("status_code",),
    restates_parent=("claude_code.tool.execution",),
    separates_human_wait=True,
)
