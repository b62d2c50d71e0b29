from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.cache import SlotCache  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.packing import Segment, pack  # noqa: E402 - as above


def cache(*, aligned: bool) -> SlotCache:
    return SlotCache(
        layers=1,
        slots=3,
        positions=64,
        kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        device="cpu",
        aligned=aligned,
    )


def test_rows_positions_and_masks_of_ragged_segments() -> None:
    batch = pack([Segment(2, 5, [7], 1), Segment(0, 3, [1, 2, 3], 2)], cache(aligned=False))
    assert batch.tokens.tolist() == [7, 1, 2, 3]
    assert batch.positions.tolist() == [5, 3, 4, 5]
    assert batch.cache_rows.tolist() == [133, 3, 4, 5]
    assert batch.rows.tolist() == [0, 2, 3]
    one, three = batch.spans
    assert (one.slot, one.sequences, one.first, one.count, one.context) == (2, 1, 0, 1, 6)
    assert (three.slot, three.sequences, three.first, three.count, three.context) == (0, 1, 1, 3, 6)
    assert one.mask is None
    assert three.mask.int().tolist() == [[[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1] * 6]]


def test_neighbouring_slots_with_equally_many_rows_share_a_span() -> None:
    batch = pack([Segment(s, n, [1, 2], 2) for s, n in enumerate((2, 3, 1))], cache(aligned=False))
    (span,) = batch.spans
    assert (span.slot, span.sequences, span.first, span.count, span.context) == (0, 3, 0, 2, 5)
    assert span.mask.int().tolist() == [
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]],
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    ]


def test_a_gap_another_row_count_or_a_much_longer_sequence_begins_a_new_span() -> None:
    def spans(*segments: Segment) -> list[int]:
        return [span.sequences for span in pack(list(segments), cache(aligned=False)).spans]

    assert spans(Segment(0, 4, [1], 1), Segment(2, 4, [1], 1)) == [1, 1]
    assert spans(Segment(0, 4, [1], 1), Segment(1, 4, [1, 2], 2)) == [1, 1]
    assert spans(Segment(0, 4, [1], 1), Segment(1, 4, [1], 1), Segment(2, 50, [1], 1)) == [2, 1]


def blocks(segments: list[Segment]) -> dict[int, tuple[int, int]]:
    """For each position, the positions that share its attention call."""
    found: dict[int, tuple[int, int]] = {}
    for segment in segments:
        batch: Any = pack([Segment(1, 0, [9, 9], 2), segment], cache(aligned=True))
        for span in batch.spans:
            assert span.sequences == 1
            if span.slot == segment.slot:
                group = (span.context - span.count, span.context)
                found |= dict.fromkeys(range(*group), group)
    return found


def test_aligned_attention_depends_on_positions_alone() -> None:
    prompt, drafts = list(range(40)), [1, 2, 3, 4]
    whole = blocks([Segment(0, 0, prompt, 1)])
    speculative = blocks([Segment(0, 0, prompt + drafts, 5)])
    pieces = blocks([Segment(0, 0, prompt[:16], 0), Segment(0, 16, prompt[16:] + drafts, 5)])
    assert whole == {p: speculative[p] for p in range(40)}
    assert pieces == speculative
    assert whole[3] == (0, 16)
    assert whole[39] == (39, 40)
    assert speculative[42] == (42, 43)
