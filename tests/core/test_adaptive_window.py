from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatekeeper.core.adaptive_window import AdaptiveWindows, WindowRules, expected_speedups
from gatekeeper.core.step_times import CostPrior, StepTimes
from gatekeeper.core.window import StepCosts, choose_window
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 8
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def costs(draft: float, verify: float) -> StepCosts:
    gammas = range(1, LONGEST + 1)
    return StepCosts(1.0, {g: draft * g for g in gammas}, {g: 1 + verify * g for g in gammas})


CHEAP, USUAL, DEAR = costs(0.02, 0.03), costs(0.1, 0.1), costs(0.25, 0.2)


class Known(StepTimes):
    """Costs given, nothing measured."""

    def __init__(self, given: StepCosts) -> None:
        super().__init__(CostPrior(enough=0))
        self._given = given

    def ordinary_due(self, batch: int) -> bool:
        return False

    def costs(self, batch: int, longest: int, proposer: str | None = None) -> StepCosts:
        return self._given


def shared(given: StepCosts = USUAL, **rules: Any) -> AdaptiveWindows:
    return AdaptiveWindows(WindowRules(**rules), Known(given))


def chosen(windows: Any, rounds: int, accepted: Callable[[int], int], room: int = 100) -> list[int]:
    """The windows of some rounds in which ``accepted(asked)`` tokens are accepted."""
    out = []
    for _ in range(rounds):
        out.append(windows.choose(1, room))
        if out[-1]:
            windows.observe(out[-1], accepted(out[-1]))
    return out


@UNHURRIED
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.lists(st.floats(0, 5), min_size=8, max_size=8),
    st.lists(st.floats(0.01, 5), min_size=8, max_size=8),
    st.floats(0.01, 5),
)
def test_speedups_are_those_of_the_window_equations(
    curve: list[float], draft: list[float], verify: list[float], ordinary: float
) -> None:
    count = len(curve)
    given_costs = StepCosts(
        ordinary,
        dict(enumerate(draft[:count], start=1)),
        dict(enumerate(verify[:count], start=1)),
    )
    speeds = expected_speedups(curve, given_costs)
    choice = choose_window(curve, given_costs)
    assert speeds[0] == 1.0
    assert speeds[1:] == pytest.approx([option.speedup for option in choice.options])
    assert speeds[choice.gamma] == pytest.approx(max(speeds))


@UNHURRIED
@given(
    st.lists(
        st.tuples(st.integers(-1, 12), st.floats(0, 1), st.integers(1, 9), st.floats(0, 1)),
        max_size=60,
    ),
    st.integers(1, LONGEST),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
)
def test_windows_stay_within_the_request_its_room_and_memory(
    rounds: list[tuple[int, float, int, float]], longest: int, draft: float, verify: float
) -> None:
    windows = shared(costs(draft, verify)).begin(longest)
    for room, free, batch, share in rounds:
        window = windows.choose(batch, room, free)
        assert 0 <= window <= longest
        assert window <= max(0, room)
        if free < 0.1:
            assert window <= longest * free / 0.1
        if window:
            windows.observe(window, round(share * window))
        assert all(0 <= value <= 1 for value in windows.acceptance())


def test_useful_drafts_lengthen_the_window_and_useless_ones_end_it() -> None:
    windows = shared().begin(LONGEST)
    assert chosen(windows, 40, lambda asked: asked)[-1] == LONGEST
    chosen(windows, 60, lambda asked: 0)
    assert windows.standing == 0


def test_at_zero_nothing_is_drafted_but_ever_rarer_probes() -> None:
    windows = shared(wait=8, longest_wait=32, probe=1).begin(LONGEST)
    while windows.standing != 0:
        chosen(windows, 1, lambda asked: 0)
    found = chosen(windows, 300, lambda asked: 0)
    probes = [place for place, window in enumerate(found) if window]
    assert probes[0] <= 8
    assert [after - before for before, after in pairwise(probes)][:6] == [1, 17, 1, 33, 1, 33]
    assert set(found) == {0, 1}


def test_speculation_returns_with_acceptance() -> None:
    windows = shared().begin(LONGEST)
    chosen(windows, 300, lambda asked: 0)
    assert windows.standing == 0
    found = chosen(windows, 150, lambda asked: asked)
    back = next(place for place, window in enumerate(found) if window > 1)
    # one longest wait at most, and then every probe that succeeds makes the next one soon
    assert back <= 64 + 6 * 9
    assert found[-1] >= 4


def test_a_window_must_be_faster_by_the_margin_for_some_rounds() -> None:
    windows = shared(patience=3, margin=0.05).begin(LONGEST)
    first = windows.choose(1, 100)
    found = [first]
    for _ in range(30):
        windows.observe(found[-1], found[-1])
        speeds = expected_speedups(windows.acceptance(), USUAL)
        before = windows.standing
        found.append(windows.choose(1, 100))
        if windows.standing != before:
            assert speeds[windows.standing] > speeds[before] * 1.05
    changes = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    assert changes
    assert min(b - a for a, b in pairwise([0, *changes])) >= 3
    stubborn = shared(margin=10.0).begin(LONGEST)
    assert len(set(chosen(stubborn, 60, lambda asked: 0))) == 1


def test_few_remaining_tokens_and_scarce_memory_shorten_the_window_for_the_round() -> None:
    windows = shared(CHEAP).begin(LONGEST)
    chosen(windows, 60, lambda asked: asked)
    assert [windows.choose(1, room) for room in (100, 5, 1, 0, -1)] == [8, 5, 1, 0, 0]
    assert [windows.choose(1, 100, free) for free in (1.0, 0.1, 0.05, 0.02, 0.0)] == [8, 8, 4, 1, 0]
    assert windows.choose(1, 100) == 8


def test_a_new_request_starts_where_the_others_stand() -> None:
    common = shared()
    chosen(common.begin(LONGEST), 300, lambda asked: 0)
    chosen(common.begin(LONGEST, "good"), 300, lambda asked: asked)
    assert common.begin(LONGEST).choose(1, 100) == 0
    assert common.begin(LONGEST, "good").choose(1, 100) == LONGEST
    assert 0 < common.begin(LONGEST, "unseen").choose(1, 100) < LONGEST


def test_only_judged_positions_count() -> None:
    windows = shared(weight=2.0).begin(4)
    for _ in range(200):
        windows.observe(4, 1)
    curve = windows.acceptance()
    assert curve[0] > 0.9
    assert curve[1] < 0.1
    # positions 2 and 3 were never judged: they are taken to be like the one before
    assert curve[1] == curve[2] == curve[3]


def test_tokens_asked_for_and_not_proposed_brought_nothing() -> None:
    proposed, missing = shared().begin(4), shared().begin(4)
    for _ in range(20):
        proposed.observe(2, 2)
        missing.observe(4, 2)
    assert missing.acceptance()[2] < 0.5 < proposed.acceptance()[2]


def test_the_first_rounds_learn_what_an_ordinary_step_costs() -> None:
    common = AdaptiveWindows(times=StepTimes(CostPrior(enough=2)))
    windows = common.begin(LONGEST)
    found = []
    for _ in range(6):
        found.append(windows.choose(1, 100))
        common.times.observe([found[-1]], 1.0 + 0.05 * found[-1], 0.02 * found[-1], None)
        if found[-1]:
            windows.observe(found[-1], found[-1])
    assert found[:2] == [0, 0]
    assert all(found[2:])


def test_costs_decide_whatever_is_accepted() -> None:
    hopeless = shared(costs(1.0, 0.5)).begin(LONGEST)
    found = chosen(hopeless, 100, lambda asked: asked)
    assert sum(window > 0 for window in found) <= 8  # probes at 8, 16, 32 ordinary rounds
    assert max(found) == 1


STATIONARY: dict[str, Any] = {
    f"{rate:g}": lambda _, r=rate: r for rate in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
}
CHANGING: dict[str, Any] = {
    "up": lambda n: 0.1 if n < 256 else 0.9,
    "down": lambda n: 0.9 if n < 256 else 0.1,
    "by turns": lambda n: 0.9 if n // 128 % 2 == 0 else 0.1,
}


def spent(windows: Any, law: Any, given_costs: StepCosts, rng: random.Random) -> float:
    """Time for 512 tokens; ``windows`` is a controller, or a fixed gamma."""
    total, tokens = 0.0, 0
    while tokens < 512:
        room = 512 - tokens - 1
        window = min(windows, room) if isinstance(windows, int) else windows.choose(1, room)
        accepted = 0
        while accepted < window and rng.random() < law(tokens):
            accepted += 1
        if window:
            total += given_costs.draft_s[window] + given_costs.verify_s[window]
            if not isinstance(windows, int):
                windows.observe(window, accepted)
        else:
            total += given_costs.ordinary_s
        tokens += accepted + 1
    return total


@pytest.mark.parametrize("given_costs", [CHEAP, USUAL, DEAR], ids=["cheap", "usual", "dear"])
@pytest.mark.parametrize(
    ("laws", "worst", "mean"),
    [(STATIONARY, 0.06, 0.03), (CHANGING, 0.06, 0.0)],
    ids=["stationary", "changing"],
)
def test_regret_against_the_best_fixed_gamma_is_bounded(
    laws: dict[str, Any], worst: float, mean: float, given_costs: StepCosts
) -> None:
    # the controller starts without knowledge; the best fixed gamma is chosen knowing the outcome
    regrets = []
    for law in laws.values():
        fixed = [
            sum(spent(gamma, law, given_costs, random.Random(seed)) for seed in range(4))
            for gamma in range(LONGEST + 1)
        ]
        own = sum(
            spent(shared(given_costs).begin(LONGEST), law, given_costs, random.Random(seed))
            for seed in range(4)
        )
        regrets.append(own / min(fixed) - 1)
    assert max(regrets) < worst
    assert sum(regrets) / len(regrets) < mean


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": 1.5},
        {"weight": 0},
        {"memory": 1},
        {"margin": -0.1},
        {"patience": 0},
        {"probe": 0},
        {"probes": 0},
        {"longest_wait": 1},
        {"scarce": 0},
    ],
)
def test_rules_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        WindowRules(**changes)
