from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.acceptance import (
    ROUND_COLUMNS,
    AcceptanceCounts,
    Round,
    acceptance_interval,
    acceptance_rate,
    mean_accepted_length,
    rounds_frame,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def make_round(
    request: str = "r0", index: int = 0, drafted: int = 4, accepted: int = 2, gamma: int = 4
) -> Round:
    return Round(
        request_id=request,
        index=index,
        gamma=gamma,
        drafted=drafted,
        accepted=accepted,
        rejection_position=accepted if accepted < drafted else None,
        committed=accepted + 1,
        draft_s=0.25,
        verify_s=0.5,
        correction_s=0.125,
        transfer_s=0.0,
        memory_bytes=100,
        batch=1,
        context=10,
    )


@st.composite
def rounds_of(draw: Any, prefix: str) -> list[Round]:
    drafted = draw(st.lists(st.integers(0, 6), max_size=6))
    return [
        make_round(
            f"{prefix}{draw(st.integers(0, 2))}", i, drafted=d, accepted=draw(st.integers(0, d))
        )
        for i, d in enumerate(drafted)
    ]


def test_counts_of_known_rounds() -> None:
    counts = AcceptanceCounts.from_rounds(
        [
            make_round(drafted=4, accepted=2),
            make_round(index=1, drafted=4, accepted=4),
            make_round(index=2, drafted=1, accepted=0),
            make_round(index=3, drafted=0, accepted=0),
        ]
    )
    assert (counts.rounds, counts.drafted, counts.accepted, counts.committed) == (4, 9, 6, 10)
    assert counts.reached == (3, 2, 2, 1)
    assert counts.accepted_at == (2, 2, 1, 1)
    assert counts.conditional_acceptance == (2 / 3, 1.0, 0.5, 1.0)
    assert counts.acceptance_rate == 6 / 9
    assert counts.mean_accepted_length == 1 + 6 / 4
    assert (counts.draft_s, counts.verify_s) == (1.0, 2.0)
    assert (counts.correction_s, counts.transfer_s) == (0.5, 0.0)


def test_nothing_is_unknown_and_not_zero() -> None:
    nothing = AcceptanceCounts()
    assert nothing.acceptance_rate is None
    assert nothing.mean_accepted_length is None
    assert nothing.conditional_acceptance == ()
    assert nothing.acceptance_interval() is None
    ordinary = AcceptanceCounts.from_rounds([make_round(drafted=0, accepted=0, gamma=0)])
    assert ordinary.acceptance_rate is None
    assert ordinary.mean_accepted_length == 1


def test_an_unreached_position_has_no_acceptance() -> None:
    counts = AcceptanceCounts.from_rounds([make_round(drafted=3, accepted=0)])
    assert counts.conditional_acceptance == (0.0, None, None)


@given(rounds_of("a"), rounds_of("b"), rounds_of("c"))
def test_counts_of_disjoint_requests_add(
    one: list[Round], two: list[Round], three: list[Round]
) -> None:
    a, b, c = map(AcceptanceCounts.from_rounds, (one, two, three))
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + AcceptanceCounts() == a
    assert a + b + c == AcceptanceCounts.from_rounds([*one, *two, *three])


@given(rounds_of("a"))
def test_curve_reproduces_the_mean_length(rounds: list[Round]) -> None:
    counts = AcceptanceCounts.from_rounds(rounds)
    assert sum(counts.accepted_at) == counts.accepted
    assert all(a <= r for a, r in zip(counts.accepted_at, counts.reached, strict=True))


@given(rounds_of("a"))
def test_a_frame_and_json_hold_the_same(rounds: list[Round]) -> None:
    counts = AcceptanceCounts.from_rounds(rounds)
    frame = rounds_frame(rounds)
    assert tuple(frame.columns) == ROUND_COLUMNS
    assert AcceptanceCounts.from_frame(frame) == counts
    assert AcceptanceCounts.from_dict(json.loads(json.dumps(counts.to_dict()))) == counts


def test_rejection_position_survives_parquet(tmp_path: Path) -> None:
    frame = rounds_frame([make_round(accepted=4), make_round(index=1, accepted=1)])
    frame.to_parquet(tmp_path / "rounds.parquet")
    back = pd.read_parquet(tmp_path / "rounds.parquet")
    assert back["rejection_position"].tolist() == [pd.NA, 1]
    assert AcceptanceCounts.from_frame(back) == AcceptanceCounts.from_frame(frame)
    as_float = frame.assign(rejection_position=[np.nan, 1.0])
    assert AcceptanceCounts.from_frame(as_float) == AcceptanceCounts.from_frame(frame)


def test_impossible_rounds_are_refused() -> None:
    with pytest.raises(InputError, match=r"r0.round\[0\].accepted=5"):
        AcceptanceCounts.from_rounds([make_round(drafted=4, accepted=5)])
    with pytest.raises(InputError, match="accepted"):
        AcceptanceCounts(drafted=1, accepted=2)
    with pytest.raises(InputError, match="draft_s"):
        AcceptanceCounts.from_frame(rounds_frame([make_round()]).drop(columns="draft_s"))


def simulate(
    rng: np.random.Generator,
    requests: int = 40,
    rounds: int = 10,
    spread: float = 0.3,
    gamma: int = 1,
) -> list[Round]:
    """Requests whose own acceptance differs: rounds of one request are alike."""
    out = []
    for r in range(requests):
        alpha = np.clip(0.6 + spread * rng.standard_normal(), 0.02, 0.98)
        for i in range(rounds):
            hits = rng.random(gamma) < alpha
            accepted = gamma if hits.all() else int(np.argmin(hits))
            out.append(make_round(f"r{r}", i, drafted=gamma, accepted=accepted))
    return out


def test_interval_is_clustered_by_request() -> None:
    rng = np.random.default_rng(1)
    alike = AcceptanceCounts.from_rounds(simulate(rng, spread=0.0))
    apart = AcceptanceCounts.from_rounds(simulate(rng, spread=0.3))
    a, b = alike.acceptance_interval(), apart.acceptance_interval()
    assert a.low < alike.acceptance_rate < a.high
    assert (b.high - b.low) > 1.5 * (a.high - a.low)


@pytest.mark.calibration
def test_intervals_cover_under_clustering() -> None:
    rng = np.random.default_rng(2)
    population = AcceptanceCounts.from_rounds(simulate(rng, requests=6000))
    rate, length = population.acceptance_rate, population.mean_accepted_length
    covered = np.zeros(2)
    for _ in range(400):
        counts = AcceptanceCounts.from_rounds(simulate(rng))
        one, two = counts.acceptance_interval(), counts.length_interval()
        covered += [one.low <= rate <= one.high, two.low <= length <= two.high]
    # 95 % nominal; binomial sd at 400 runs is 1.1 %
    assert (covered / 400 > 0.90).all()


@pytest.mark.parametrize("accepted", [0, 4])
def test_no_spread_is_no_certainty(accepted: int) -> None:
    rounds = [make_round(f"r{r}", i, accepted=accepted) for r in range(8) for i in range(50)]
    counts = AcceptanceCounts.from_rounds(rounds)
    interval = counts.acceptance_interval()
    assert interval.high - interval.low > 0.3  # eight requests, not sixteen hundred tokens
    assert counts.length_interval() is None


def test_few_requests_give_no_interval() -> None:
    rounds = [make_round(f"r{r}", i) for r in range(4) for i in range(50)]
    counts = AcceptanceCounts.from_rounds(rounds)
    assert counts.acceptance_interval() is None
    assert counts.length_interval() is None


def test_equations_over_a_table() -> None:
    frame = rounds_frame(
        [make_round(f"r{r}", drafted=2, accepted=r % 3, gamma=2) for r in range(9)]
        + [make_round("x", drafted=4, accepted=4)]
    )
    assert acceptance_rate(frame) == 13 / 22
    assert acceptance_rate(frame, gamma=2) == 9 / 18
    assert acceptance_rate(frame, gamma=7) is None
    assert mean_accepted_length(frame, gamma=4) == 5
    low, high = (acceptance_interval(frame, end) for end in ("low", "high"))
    assert low < 13 / 22 < high
