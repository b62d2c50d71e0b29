"""How the instrumentations of the world say what a span was: one module per dialect.

To read another dialect, write a module with one `Dialect` and name it in `DIALECTS`; nothing else
has to know. A dialect does not depend on the format that carried it: the same names are found in
OTLP, in Jaeger JSON and in exports.
"""

from __future__ import annotations

from gatekeeper.core.dialects import (
    claude_code,
    common,
    inference_servers,
    langfuse,
    llm_d,
    openinference,
    openllmetry,
    otel_genai,
    own,
    vercel_ai,
)

__all__ = ["DIALECTS"]

DIALECTS = (
    own.DIALECT,
    openinference.DIALECT,
    vercel_ai.DIALECT,
    # Before the conventions it builds on: its client spans carry the same attributes.
    claude_code.DIALECT,
    llm_d.DIALECT,
    inference_servers.DIALECT,
    otel_genai.DIALECT,
    openllmetry.DIALECT,
    langfuse.DIALECT,
    common.DIALECT,
)
"""All dialects, the most explicit first."""
