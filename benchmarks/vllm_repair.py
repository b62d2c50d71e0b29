"""A plugin of vLLM (``vllm.general_plugins``) that repairs one fault of its processor kernels.

For sampled requests the rejection sampler spreads each request's temperature, top-k and top-p over its
drafted positions. The processor version of 0.32.0 writes the result into a copy and drops it, so those
positions are sampled at whatever the memory held before (vLLM's issue 55005, open when this was written). Greedy
requests do not pass there: their texts and acceptance show nothing. Without this plugin the gate fails
such a server; with it, what else the server does can be judged. Runs in vLLM's own environment.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Put the repaired kernel in the place from which a worker takes it; vLLM calls this first."""
    from vllm.utils import cpu_triton_utils  # noqa: PLC0415 - vLLM's environment alone has it

    cpu_triton_utils._expand_kernel_impl = spread  # noqa: SLF001 - where vLLM looks for it


def spread(
    output: Any,  # noqa: ANN401 - tensors of vLLM's torch
    values: Any,  # noqa: ANN401
    ends: Any,  # noqa: ANN401
    replace_from: float,
    replace_to: float,
    _most: int | None = None,
) -> None:
    """Fill ``output`` [tokens]: request i's value on its positions, up to ``ends`` [i] (cumulative).

    A value equal to ``replace_from`` becomes ``replace_to``, as a greedy request's temperature does.
    """
    counts = ends.diff(prepend=ends.new_zeros(1)).long()
    kept = values.masked_fill(values == replace_from, replace_to)
    output.copy_(kept.repeat_interleave(counts))
