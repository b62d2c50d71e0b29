"""Vercel AI SDK: the inner ``do…`` spans are the calls, ``ai.streamText`` is their container.

``ai.response.avgOutputTokensPerSecond`` is left alone on purpose: it divides by the whole call and
so counts the wait for the first token as decoding. The span of a stream stays open while tools run
in it, so the answer ends at ``ai.response.msToFinish``.
Source: AI SDK documentation, "Telemetry".
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import MILLISECOND, Delay, Dialect, Named
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="Vercel AI SDK",
    kind_by_value={
        "ai.operationId": {
            "ai.streamText.doStream": MODEL,
            "ai.generateText.doGenerate": MODEL,
            "ai.streamObject.doStream": MODEL,
            "ai.generateObject.doGenerate": MODEL,
            "ai.toolCall": "tool",
            "ai.embed.doEmbed": "tool",
            "ai.embedMany.doEmbed": "tool",
            "ai.rerank.doRerank": "tool",
            "ai.streamText": "other",
            "ai.generateText": "other",
            "ai.streamObject": "other",
            "ai.generateObject": "other",
            "ai.embed": "other",
            "ai.embedMany": "other",
            "ai.rerank": "other",
        }
    },
    kind_by_name=(
        Named(r"ai\.(stream|generate)\w+\.do(Stream|Generate)\b", MODEL),
        Named(r"ai\.toolCall\b", "tool"),
        Named(r"ai\.\w+\.do(Embed|Rerank)\b", "tool"),
        Named(r"ai\.(stream|generate)(Text|Object)$", "other"),
    ),
    output_tokens=("ai.usage.outputTokens", "ai.usage.completionTokens"),
    input_tokens=("ai.usage.inputTokens", "ai.usage.promptTokens"),
    total_tokens=("ai.usage.totalTokens",),
    models=("ai.model.id", "ai.response.model"),
    first_token_delays=(
        Delay("ai.response.msToFirstChunk", MILLISECOND),
        Delay("ai.stream.msToFirstChunk", MILLISECOND),  # its name before version 4
    ),
    first_token_events=("ai.stream.firstChunk",),
    answer_lengths=(Delay("ai.response.msToFinish", MILLISECOND),),
)
