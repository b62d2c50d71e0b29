"""Matrix products of packed rows with the fastest kernel this processor has.

oneDNN's and FBGEMM's prepacked weights are reached through private torch operators, so they stand
behind ``prepack`` and ``prepack_half`` alone, which answer None where these are absent or refuse.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from gatekeeper.core.predicted_memory import MatrixLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Linear", "layout", "prepack", "prepack_half"]

PACK_ROWS = 16
"""Row count the packed layout is tuned for; measured best for 2 to 64 rows."""

HALF_INPUTS = 512
"""FBGEMM stores half-precision weights in blocks of so many inputs; the last one is filled up."""

HALF_EXPONENT = 15
"""The largest weight is scaled to just below 2^15, the upper end of IEEE half's range."""

BLOCK_ROWS = 32
"""Up to this many rows a bf16 AMX product was measured to be row-invariant; more are split."""


def prepack(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function ``x -> x @ weight.T`` over oneDNN's own layout, or None where it is unavailable."""
    if weight.device.type != "cpu":
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)  # noqa: SLF001 - no public way
        apply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - no public way
        apply(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (RuntimeError, AttributeError):  # absent operator, or no support for this data type
        return None

    def product(x: Tensor) -> Tensor:
        out: Tensor = apply(x, packed, None, "none", [], "")
        return out

    return product


def prepack_half(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function ``x -> x @ weight.T`` in float32 arithmetic over half-precision storage, or None.

    For bf16 weights on a processor without bf16 arithmetic: FBGEMM widens 16-bit weights in
    registers, so a product reads half of what float32 copies hold. Its storage is IEEE half, whose
    exponent is narrower than bf16's: a power of two moves the weights into its range and is taken
    out of ``x`` again, both exact. None where a single weight would not survive that bit for bit.
    """
    largest = float(weight.abs().max())
    if weight.device.type != "cpu" or not math.isfinite(largest) or largest == 0.0:
        return None
    scale = 2.0 ** (HALF_EXPONENT - math.frexp(largest)[1])
    scaled = weight.float() * scale
    if not torch.equal(scaled.half().float(), scaled):
        return None
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(scaled, None)
        apply = torch.ops.quantized.linear_dynamic_fp16
        apply(scaled.new_zeros(1, weight.shape[1]), packed)
    except (
        RuntimeError,
        AttributeError,
    ):  # built without FBGEMM, or it does not know the processor
        return None

    dtype = weight.dtype  # a function that named the weight would keep it

    def product(x: Tensor) -> Tensor:
        out: Tensor = apply(x.float() * (1.0 / scale), packed).to(dtype)
        return out

    return product


class Linear:
    """``x @ weight.T`` for ``x`` [rows, in], ``weight`` [out, in].

    One row on a CPU is bound by reading the weights: fp32 reads them column-major through ``mm``
    (53 ms for SmolLM2-135M on AVX2; ``F.linear`` 73, packed 86), bf16 as they are. More rows take
    the packed layout. bf16 on a processor without bf16 arithmetic computes in float32 from the same
    numbers held as IEEE half (24 ms at one row, 45 at eight; torch's bf16 kernel takes 45 a row,
    float32 copies 79 at eight) and rounds the result; where these do not fit, from float32 copies.

    ``invariant=True`` takes the packed kernel at every row count, so that a row's bits do not
    depend on how many rows share the call. ``bytes`` counts every copy held, the given tensor among
    them where it ``keeps_original``, each filled up to a multiple of ``inputs_block`` inputs.
    """

    def __init__(self, weight: Tensor, *, invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self.bytes = weight.numel() * weight.element_size()
        self.keeps_original = True
        self.inputs_block = 1
        self._weight = weight
        self._many = prepack(weight)
        self._few_rows = 0 if invariant else 1
        self._few: Callable[[Tensor], Tensor] = self._plain
        if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and self._many is None:
            half = None if invariant else prepack_half(weight)
            wide = None if half is not None else prepack(weight.float())
            if half is not None:
                # the packed copy replaces the original
                self._many, self._few_rows = half, 0
                self.inputs_block = HALF_INPUTS
                blocks = -(-self.in_features // HALF_INPUTS)
                self.bytes = self.out_features * blocks * HALF_INPUTS * weight.element_size()
                self._weight, self.keeps_original = weight.new_empty(0), False
            elif wide is not None:
                self._many = _rounded(wide)
                self.bytes *= 3
                self._few_rows = 0 if invariant else 2
        elif self._many is not None:
            self.bytes *= 2
            if weight.dtype == torch.float32:
                # the transposed copy replaces the original
                self._weight = weight.t().contiguous()
                self.keeps_original = False
                self._few = self._transposed
            else:  # native bf16: packed is fastest at one row too
                self._few_rows = 0
                self._many = _blocked(self._many)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows [rows, in]; returns [rows, out] in the weight's dtype."""
        if self._many is None or x.shape[0] <= self._few_rows:
            return self._few(x)
        return self._many(x)

    def _plain(self, x: Tensor) -> Tensor:
        out: Tensor = functional.linear(x, self._weight)
        return out

    def _transposed(self, x: Tensor) -> Tensor:
        out: Tensor = torch.mm(x, self._weight)
        return out


def layout(dtype: torch.dtype, device: str, *, invariant: bool = False) -> MatrixLayout:
    """How ``Linear`` holds matrices here, found out on a small one.

    bf16 weights that IEEE half cannot hold take float32 copies, whatever is said here.
    """
    probe = torch.ones(PACK_ROWS, HALF_INPUTS, dtype=dtype, device=device)
    held = Linear(probe, invariant=invariant)
    copies = held.bytes / (probe.numel() * probe.element_size())
    return MatrixLayout(copies, held.keeps_original, held.inputs_block)


def _blocked(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        if x.shape[0] <= BLOCK_ROWS:
            return product(x)
        return torch.cat([product(part) for part in x.split(BLOCK_ROWS)])

    return apply


def _rounded(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        out: Tensor = product(x.float()).to(torch.bfloat16)
        return out

    return apply
