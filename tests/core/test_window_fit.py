from __future__ import annotations

import random
from typing import Any

import pytest

from gatekeeper.core.acceptance import AcceptanceCounts, Round
from gatekeeper.core.progress import progress_from_curve
from gatekeeper.core.window_fit import WindowRun, predict_window, success_curve
from gatekeeper.errors import InputError

CURVE = (0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.4, 0.3)
DRAFT_S, VERIFY_S, PER_ROW_S, OVERHEAD_S = 0.004, 0.050, 0.006, 0.001


def rounds(
    gamma: int, count: int, *, proposes: float = 1.0, deepest: int = 8, seed: int = 0
) -> list[Round]:
    """Rounds of a proposer with CURVE that proposes at all with the given probability."""
    depth = min(gamma, deepest)
    rng = random.Random(seed + gamma)
    found = []
    for index in range(count):
        drafted = depth if rng.random() < proposes else 0
        accepted = 0
        while accepted < drafted and rng.random() < CURVE[accepted]:
            accepted += 1
        entry: dict[str, Any] = {
            "request_id": f"r{index % 10}",
            "index": index,
            "gamma": gamma,
            "drafted": drafted,
            "accepted": accepted,
            "rejection_position": None if accepted == drafted else accepted,
            "committed": accepted + 1,
            "draft_s": DRAFT_S * depth,
            "verify_s": VERIFY_S + PER_ROW_S * depth,
            "correction_s": 0.0,
            "transfer_s": 0.0,
            "memory_bytes": 0,
            "batch": 1,
            "context": 0,
        }
        found.append(Round(**entry))
    return found


def run(gamma: int, count: int = 4000, **options: Any) -> WindowRun:
    done = rounds(gamma, count, **options)
    spent = sum(r.draft_s + r.verify_s + OVERHEAD_S for r in done)
    return WindowRun(gamma, AcceptanceCounts.from_rounds(done), spent)


def test_the_curve_is_that_of_the_proposer() -> None:
    for found, true in zip(success_curve([run(2), run(8, 40_000)]), CURVE, strict=True):
        assert found == pytest.approx(true, abs=0.05)


def test_rounds_without_a_proposal_count_against_the_first_position() -> None:
    found = success_curve([run(8, proposes=0.5)])
    assert found[0] == pytest.approx(0.5 * CURVE[0], abs=0.03)
    assert found[1] == pytest.approx(CURVE[1], abs=0.05)


def test_positions_that_were_never_reached_promise_nothing() -> None:
    nothing = AcceptanceCounts.from_rounds(
        [r for r in rounds(4, 50) if r.accepted == 0]  # every first draft token was rejected
    )
    assert success_curve([WindowRun(4, nothing, 1.0)]) == (0.0, 0.0, 0.0, 0.0)


def test_a_window_between_two_is_predicted_from_them() -> None:
    option = predict_window([run(2), run(8)], 4, ordinary_s=VERIFY_S)
    progress = progress_from_curve(CURVE, 4)
    spent = 4 * DRAFT_S + VERIFY_S + 4 * PER_ROW_S + OVERHEAD_S
    assert option.gamma == 4
    assert option.progress == pytest.approx(progress, rel=0.03)
    assert option.speedup == pytest.approx(progress * VERIFY_S / spent, rel=0.03)


def test_the_prediction_holds_where_the_proposer_often_has_nothing() -> None:
    done = rounds(4, 20_000, proposes=0.4, seed=99)
    seconds = sum(r.draft_s + r.verify_s + OVERHEAD_S for r in done)
    measured = VERIFY_S / (seconds / sum(r.committed for r in done))
    runs = [run(2, proposes=0.4), run(8, proposes=0.4)]
    predicted = predict_window(runs, 4, ordinary_s=VERIFY_S).speedup
    assert predicted == pytest.approx(measured, rel=0.04)


def test_a_tree_costs_no_more_in_a_window_longer_than_it_is_deep() -> None:
    option = predict_window([run(2, deepest=4), run(8, deepest=4)], 4, ordinary_s=VERIFY_S)
    spent = 4 * DRAFT_S + VERIFY_S + 4 * PER_ROW_S + OVERHEAD_S
    assert option.speedup == pytest.approx(option.progress * VERIFY_S / spent, rel=1e-6)


def test_a_measured_window_is_told_as_it_was() -> None:
    ran = run(4)
    option = predict_window([ran], 4, ordinary_s=0.05)
    assert option.progress == pytest.approx(ran.counts.committed / ran.counts.rounds)


@pytest.mark.parametrize("gamma", [1, 9])
def test_nothing_is_said_beyond_the_windows_that_ran(gamma: int) -> None:
    with pytest.raises(InputError, match="shorter and a longer") as caught:
        predict_window([run(2, 50), run(8, 50)], gamma, ordinary_s=0.05)
    assert caught.value.field == "gamma"


def test_no_rounds_are_no_run() -> None:
    with pytest.raises(InputError) as caught:
        WindowRun(2, AcceptanceCounts(), 0.0)
    assert caught.value.field == "rounds"
