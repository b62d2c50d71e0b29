"""Which kind of time a span is: one table for all dialects.

The first rule that matches wins, most explicit first. Kinds are those of the task-time
equation, ``task time = queue + prefill + decode + tool + verification + persistence +
human_wait + other``, plus ``model``: a call to a model whose own time still has to be split into
queue, prefill and decode (`gatekeeper.core.model_calls`).

Sources: OpenTelemetry GenAI semantic conventions, vLLM and llm-d tracing, OpenInference,
OpenLLMetry, Langfuse observation types, Vercel AI SDK, Claude Code telemetry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.traces import Span

__all__ = ["KINDS", "MODEL", "WORK", "Classified", "classify"]

KINDS = (
    "queue",
    "prefill",
    "decode",
    "tool",
    "verification",
    "persistence",
    "human_wait",
    "other",
)
"""Segment kinds, in the order of the task-time equation."""

MODEL = "model"
"""Kind of a span that is a model call; it never reaches the decomposition unsplit."""

WORK = frozenset(KINDS) - {"other"}
"""Kinds whose own time means something even where the span has children."""


@dataclass(frozen=True)
class Classified:
    """A span's kind and the rule that said so."""

    kind: str
    rule: str


_BY_VALUE: tuple[tuple[str, Mapping[str, str]], ...] = (
    # Set by hand: the last word.
    ("gatekeeper.kind", {kind: kind for kind in (*KINDS, MODEL)}),
    # Langfuse observation type; SPAN says nothing, so the rules below go on.
    (
        "langfuse.observation.type",
        {
            "GENERATION": MODEL,
            "TOOL": "tool",
            "RETRIEVER": "tool",
            "EMBEDDING": "tool",
            "EVALUATOR": "verification",
            "GUARDRAIL": "verification",
            "AGENT": "other",
            "CHAIN": "other",
            "EVENT": "other",
        },
    ),
    # OpenInference (Phoenix).
    (
        "openinference.span.kind",
        {
            "LLM": MODEL,
            "TOOL": "tool",
            "RETRIEVER": "tool",
            "EMBEDDING": "tool",
            "RERANKER": "tool",
            "GUARDRAIL": "verification",
            "EVALUATOR": "verification",
            "AGENT": "other",
            "CHAIN": "other",
        },
    ),
    # OpenTelemetry GenAI. An embedding decodes nothing, so for this purpose it is a tool.
    (
        "gen_ai.operation.name",
        {
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
    ),
    # OpenLLMetry; "task" says nothing.
    ("traceloop.span.kind", {"tool": "tool", "workflow": "other", "agent": "other"}),
    # Vercel AI SDK: the inner spans are the calls, ai.streamText is their container.
    (
        "ai.operationId",
        {
            "ai.streamText.doStream": MODEL,
            "ai.generateText.doGenerate": MODEL,
            "ai.streamObject.doStream": MODEL,
            "ai.generateObject.doGenerate": MODEL,
            "ai.toolCall": "tool",
            "ai.embed.doEmbed": "tool",
            "ai.embedMany.doEmbed": "tool",
            "ai.streamText": "other",
            "ai.generateText": "other",
        },
    ),
)
"""Attribute name to the kind that each of its values means."""

_BY_PRESENCE: tuple[tuple[str, str], ...] = (
    ("gen_ai.latency.time_in_model_decode", MODEL),
    ("gen_ai.latency.time_in_model_inference", MODEL),
    ("gen_ai.latency.e2e", MODEL),
    ("gen_ai.tool.name", "tool"),
    ("gen_ai.tool.call.id", "tool"),
    ("llm.token_count.completion", MODEL),
    ("gen_ai.usage.output_tokens", MODEL),
    ("gen_ai.usage.completion_tokens", MODEL),
    ("db.system.name", "persistence"),
    ("db.system", "persistence"),
)
"""Attribute whose mere presence tells the kind, where no attribute above did."""

_BY_NAME: tuple[tuple[str, str], ...] = (
    (r"claude_code\.tool\.blocked_on_user", "human_wait"),
    (r"(human|user)[ _.-]?(input|approval|confirmation|feedback|wait)\b", "human_wait"),
    (r"wait(ing)?[ _-]for[ _-](user|human|approval)\b", "human_wait"),
    (r"llm_d\.pd_proxy\.prefill", "prefill"),
    (r"llm_d\.pd_proxy\.decode", "decode"),
    (r"claude_code\.tool(\.execution)?$", "tool"),
    (r"claude_code\.llm_request$", MODEL),
    (r"llm_request$", MODEL),
    (r"execute_tool\b", "tool"),
    (r"tools/call\b", "tool"),
    (r"tool[.:]", "tool"),
    (r"ai\.toolCall$", "tool"),
    (r"(verify|verification|verifier)\b", "verification"),
)
"""Span name, matched from its start without regard to case, where no attribute told."""

_NAMES = tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in _BY_NAME)


def classify(span: Span) -> Classified:
    """Kind of a span and the rule that decided; ``other`` by no rule when nothing matches."""
    attributes = span.attributes
    for key, meaning in _BY_VALUE:
        value = attributes.get(key)
        if isinstance(value, str):
            kind = meaning.get(value) or meaning.get(value.upper()) or meaning.get(value.lower())
            if kind is not None:
                return Classified(kind, f"{key}={value}")
    for pattern, kind in _NAMES:
        if pattern.match(span.name):
            return Classified(kind, f"name {span.name!r}")
    for key, kind in _BY_PRESENCE:
        if key in attributes:
            return Classified(kind, f"has {key}")
    return Classified("other", "no rule")
