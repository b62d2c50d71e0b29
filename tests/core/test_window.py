from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.window import StepCosts, choose_by_concurrency, choose_window
from gatekeeper.errors import InputError

CURVE = (0.8, 0.7, 0.5, 0.3)


def costs(
    draft: float = 0.001,
    verify: float = 0.022,
    ordinary: float = 0.02,
    gammas: tuple[int, ...] = (1, 2, 4),
) -> StepCosts:
    return StepCosts(ordinary, {g: draft * g for g in gammas}, dict.fromkeys(gammas, verify))


def test_cheap_drafts_take_the_longest_window_that_still_gains() -> None:
    choice = choose_window(CURVE, costs())
    speeds = {o.gamma: o.speedup for o in choice.options}
    assert choice.gamma == max(speeds, key=speeds.get)
    assert choice.speedup == max(speeds.values()) > 1


def test_dear_drafts_are_bypassed() -> None:
    choice = choose_window(CURVE, costs(draft=0.03))
    assert (choice.gamma, choice.speedup) == (0, 1.0)
    assert choice.options
    assert all(o.speedup < 1 for o in choice.options)


def test_diminishing_returns_are_named() -> None:
    choice = choose_window(CURVE, costs(draft=0.004))
    later = [o.speedup for o in choice.options if o.gamma > choice.diminishing_from]
    assert choice.diminishing_from < 4
    assert max(later) < choice.speedup
    marginals = [o.marginal_tokens for o in choice.options]
    assert marginals == sorted(marginals, reverse=True)


def test_equal_speedups_go_to_the_shorter_window() -> None:
    # positions beyond the first are never accepted and cost nothing: every window is the same
    choice = choose_window((0.5, 0.0, 0.0), costs(draft=0.0, gammas=(3, 1, 2)))
    assert {o.speedup for o in choice.options} == {choice.speedup}
    assert choice.gamma == 1


def test_exact_break_even_is_a_bypass() -> None:
    choice = choose_window((1.0,), StepCosts(1.0, {1: 1.0}, {1: 1.0}))
    assert choice.options[0].speedup == 1.0
    assert choice.gamma == 0


def test_minimum_speedup_is_respected() -> None:
    best = choose_window(CURVE, costs()).speedup
    assert choose_window(CURVE, costs(), min_speedup=best).gamma == 0
    assert choose_window(CURVE, costs(), min_speedup=best - 1e-9).gamma > 0


def test_unmeasured_is_never_chosen() -> None:
    choice = choose_window((0.9, None, 0.9), costs())
    assert [o.gamma for o in choice.options] == [1]
    partly = StepCosts(0.02, {1: 0.001, 2: 0.001}, {1: 0.02, 4: 0.02})
    assert [o.gamma for o in choose_window(CURVE, partly).options] == [1]
    nothing = choose_window((), costs())
    assert (nothing.gamma, nothing.options, nothing.diminishing_from) == (0, (), None)


def test_gain_may_vanish_in_a_batch() -> None:
    chosen = choose_by_concurrency(CURVE, {8: costs(verify=0.08), 1: costs()})
    assert list(chosen) == [1, 8]
    assert chosen[1].gamma > 0
    assert chosen[8].gamma == 0


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.floats(0, 0.05),
    st.floats(0.001, 0.1),
)
def test_the_choice_beats_every_option_and_one(
    curve: list[float], draft: float, verify: float
) -> None:
    choice = choose_window(curve, costs(draft=draft, verify=verify))
    assert choice.speedup >= max(1.0, *(o.speedup for o in choice.options))
    assert (choice.gamma == 0) == (max(o.speedup for o in choice.options) <= 1)


def test_window_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="gamma=0"):
        choose_window(CURVE, costs(gammas=(0, 1)))
