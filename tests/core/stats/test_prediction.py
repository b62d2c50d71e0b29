from __future__ import annotations

import math

import pytest

from gatekeeper.core.equations import verify
from gatekeeper.core.stats.prediction import PairedTasks, compare, comparison_claims, decode_ratio
from gatekeeper.errors import InputError

NOISE = (-0.1, 0.1, -0.1, 0.1, -0.1, 0.1)
HALF_WIDTH = 2.015048 * math.sqrt(6 * 0.1**2 / 5) / math.sqrt(6)
"""Student's t at .95 with 5 degrees of freedom, times the standard error of ``NOISE``."""


def tasks(observed: float, *, lengths: tuple[float, ...] = (1.0,) * 6) -> PairedTasks:
    """Predicted saving ``length``, interval 10 % about it; observed ``length * observed`` + noise."""
    saved = [length * observed + noise for length, noise in zip(lengths, NOISE, strict=True)]
    walls = tuple(10.0 * length for length in lengths)
    return PairedTasks(
        walls,
        tuple(wall - save for wall, save in zip(walls, saved, strict=True)),
        lengths,
        tuple(0.9 * length for length in lengths),
        tuple(1.1 * length for length in lengths),
    )


def test_the_widening_is_the_paired_half_width() -> None:
    found = compare(tasks(1.0))
    assert found.widening == pytest.approx(HALF_WIDTH, rel=1e-5)
    assert (found.predicted_low, found.predicted, found.predicted_high) == pytest.approx(
        (0.9, 1.0, 1.1)
    )
    assert found.observed.mean == pytest.approx(1.0)
    assert found.observed.low == pytest.approx(1.0 - HALF_WIDTH, rel=1e-5)


@pytest.mark.parametrize("edge", [0.9 - HALF_WIDTH, 1.1 + HALF_WIDTH])
def test_agreement_ends_at_the_widened_interval(edge: float) -> None:
    inside, outside = (edge + 0.001, edge - 0.001) if edge < 1 else (edge - 0.001, edge + 0.001)
    assert compare(tasks(inside)).agrees is True
    assert compare(tasks(outside)).agrees is False


def test_tasks_of_different_length_are_no_noise() -> None:
    found = compare(tasks(1.0, lengths=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    assert found.widening == pytest.approx(HALF_WIDTH, rel=1e-5)
    assert found.observed.low is not None
    assert found.observed.low < 3.5 - 2 * HALF_WIDTH  # the observed saving itself varies


def test_equal_differences_or_few_pairs_are_no_evidence() -> None:
    ones = (1.0,) * 8
    found = compare(PairedTasks((2.0,) * 8, ones, ones, ones, ones))
    assert (found.agrees, found.widening) == (None, None)
    few = PairedTasks(*((1.0, 2.0),) * 5)
    assert (compare(few).agrees, compare(few).observed.low) == (None, None)
    assert len(comparison_claims(few, compare(few), prefix="a", source="s")) == 4


@pytest.mark.parametrize("bad", [(), (float("nan"),), (float("inf"),)])
def test_nothing_or_unknown_times_compare_to_nothing(bad: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        PairedTasks(bad, bad, bad, bad, bad)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InputError):
        PairedTasks((1.0,), (1.0, 2.0), (1.0,), (1.0,), (1.0,))


def test_every_claim_recomputes_and_a_changed_one_does_not() -> None:
    made = tasks(1.2)
    claims = comparison_claims(made, compare(made), prefix="agent/r", source="run")
    assert [claim.id for claim in claims] == [
        *(f"agent/r/predicted/{end}" for end in ("value", "low", "high")),
        *(f"agent/r/observed/{end}" for end in ("mean", "low", "high")),
        "agent/r/widening",
    ]
    assert all(one.agrees for one in verify(claims))
    from dataclasses import replace

    changed = [replace(claim, value=claim.value + 0.01) for claim in claims]
    assert not any(one.agrees for one in verify(changed))


def test_decode_ratio() -> None:
    assert decode_ratio([2.0, 4.0], [1.0, 2.0]) == 2.0
    assert decode_ratio([1.0], [0.0]) is None
