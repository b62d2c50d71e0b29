"""The prefill/decode proxy of llm-d: one request, its two stages as spans.

The decode span is a child of the prefill span and outlives it. Where both are sent at once they are
siblings, and decoding begins when prefill ends. What the two servers write below either stage is
detail of it.
Source: llm-d, tracing of its routing sidecar; newer versions name the stages without a prefix.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect, Named
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

_STAGE = "llm_d.pd_proxy.request_id"

DIALECT = Dialect(
    name="llm-d",
    kind_by_name=(
        Named(r"llm_d\.pd_proxy\.prefill\b", "prefill"),
        Named(r"llm_d\.pd_proxy\.decode\b", "decode"),
        Named(r"prefill$", "prefill", needs=_STAGE),
        Named(r"decode$", "decode", needs=_STAGE),
        Named(r"llm_d\.pd_proxy\.request$", MODEL),
        Named(r"llm_d\.pd_proxy\.POST .*/(completions|responses|messages)$", MODEL),
    ),
    waits_for_prefill=("llm_d.pd_proxy.parallel_dispatch",),
)
