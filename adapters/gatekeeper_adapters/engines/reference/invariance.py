"""Does a row's result depend on what shares its step? Measured at start, never assumed.

Where it does not, ordinary and speculative decoding are the same bits and greedy outputs must be
identical; elsewhere the deficit rule decides. The answer belongs to processor, dtype and kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.packing import Segment, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.decoder import Decoder

__all__ = ["is_invariant"]

_CONTEXT = 48
_WINDOWS = (1, 2, 5)


def is_invariant(decoder: Decoder, *, slots: int) -> bool:
    """Whether logits and cache are bitwise equal for every batch size and window tried.

    The reference is one sequence decoding one token at a time; each case must reproduce its bits:
    batches of 2 and ``slots`` sequences, windows of 1, 2 and 5 rows, the prompt cached in one
    piece or in pieces of 16. Stops at the first difference, so a processor without the property
    costs one step. Uses and spoils the cache.
    """
    positions = decoder.cache.positions
    context = min(_CONTEXT, (positions - max(_WINDOWS)) // 16 * 16)
    if context <= 0:
        return False
    text = [(7919 * i + 13) % decoder.vocab_size for i in range(context + max(_WINDOWS))]
    _run(decoder, [Segment(0, 0, text[:context], 0)])
    reference = torch.cat(
        [
            _run(decoder, [Segment(0, context + i, [token], 1)])
            for i, token in enumerate(text[context:])
        ]
    )
    for slot in range(1, slots):
        decoder.cache.copy_slot(0, slot, context)
    for batch, window in _cases(slots):
        rows = text[context : context + window]
        logits = _run(decoder, [Segment(s, context, rows, window) for s in range(batch)])
        wanted = reference[:window].repeat(batch, 1)
        if not torch.equal(logits, wanted):
            return False
    before = decoder.cache.buffer[:, :, 0, :context].clone()
    for start in range(0, context, 16):
        _run(decoder, [Segment(0, start, text[start : start + 16], 0)])
    return bool(torch.equal(before, decoder.cache.buffer[:, :, 0, :context]))


def _cases(slots: int) -> Iterator[tuple[int, int]]:
    for batch in sorted({1, min(2, slots), slots}):
        for window in _WINDOWS:
            yield batch, window


def _run(decoder: Decoder, segments: list[Segment]) -> Tensor:
    batch = pack(segments, decoder.cache)
    with torch.inference_mode():
        return decoder.forward(batch)
