"""Server spans of vLLM and SGLang: the phases stand in attributes, in seconds.

Queue and inference are less than the request; what is left over stays unattributed. SGLang writes
no queue, and a server that only prefills writes neither decode nor the whole.
Source: vLLM and SGLang, their span attributes ``gen_ai.latency.*``.
"""

from __future__ import annotations

from gatekeeper.core.dialects.base import SECOND, Delay, Dialect, Named, ServerPhases
from gatekeeper.core.segment_kinds import MODEL

__all__ = ["DIALECT"]

_PHASES = ServerPhases(
    queue=Delay("gen_ai.latency.time_in_queue", SECOND),
    prefill=Delay("gen_ai.latency.time_in_model_prefill", SECOND),
    decode=Delay("gen_ai.latency.time_in_model_decode", SECOND),
    inference=Delay("gen_ai.latency.time_in_model_inference", SECOND),
    first_token=Delay("gen_ai.latency.time_to_first_token", SECOND),
    whole=Delay("gen_ai.latency.e2e", SECOND),
)

DIALECT = Dialect(
    name="vLLM, SGLang",
    kind_by_name=(Named(r"llm_request$", MODEL),),
    kind_by_presence={
        _PHASES.decode.key: MODEL,
        _PHASES.inference.key: MODEL,
        _PHASES.whole.key: MODEL,
        _PHASES.prefill.key: MODEL,
        _PHASES.first_token.key: MODEL,
    },
    first_token_delays=(_PHASES.first_token,),
    server_phases=_PHASES,
)
