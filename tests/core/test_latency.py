from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.latency import (
    RequestTiming,
    e2e,
    goodput,
    itl,
    meets_slo,
    relative_saving,
    task_time_after,
    tpot,
    ttft,
)
from gatekeeper.core.policy_schema import Slo
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = RequestTiming(arrival_s=1.0, first_token_s=1.5, last_token_s=3.5, tokens=5)


def test_definitions() -> None:
    assert ttft(REQUEST) == 0.5
    assert e2e(REQUEST) == 2.5
    assert tpot(REQUEST) == 0.5
    assert itl([1.0, 1.5, 1.5, 2.5]) == (0.5, 0.0, 1.0)
    assert itl([1.0]) == ()


@pytest.mark.parametrize("tokens", [0, 1])
def test_tpot_of_one_token_is_undefined(tokens: int) -> None:
    assert tpot(RequestTiming(0, 1, 1, tokens)) is None


def test_no_token_has_no_latency() -> None:
    silent = RequestTiming(0, None, None, 0, finished=False)
    assert (ttft(silent), e2e(silent), tpot(silent)) == (None, None, None)
    assert not meets_slo(silent, Slo())


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), True),
        (Slo(ttft_s=0.5, tpot_s=0.5), True),
        (Slo(ttft_s=0.49), False),
        (Slo(tpot_s=0.49), False),
        (Slo(ttft_s=9, tpot_s=0.49), False),
    ],
)
def test_slo(slo: Slo, *, met: bool) -> None:
    assert meets_slo(REQUEST, slo) is met


def test_goodput_counts_only_what_meets_every_objective() -> None:
    cut = RequestTiming(1.0, 1.5, 3.5, 5, finished=False)
    slow = RequestTiming(1.0, 2.6, 3.5, 5)
    single = RequestTiming(1.0, 1.5, 1.5, 1)
    slo = Slo(ttft_s=1.0, tpot_s=0.5)
    assert goodput([REQUEST, cut, slow, single], slo, 4.0) == 0.5
    assert goodput([slow], slo, 4.0) == 0.0
    assert goodput([], slo, 4.0) is None


def test_essay_task() -> None:
    segments = {"queue": 600, "prefill": 400, "decode": 1200, "tool": 2000, "verification": 800}
    assert task_time_after(segments, "decode", 2) == 4400
    assert relative_saving(sum(segments.values()), 4400) == 0.12


@given(st.floats(1, 100))
def test_saving_is_bounded_by_the_segment(factor: float) -> None:
    assert task_time_after({"decode": 2.0, "tool": 3.0}, "decode", factor) >= 3.0
    assert task_time_after({"decode": 2.0, "tool": 3.0}, "decode", 1) == 5.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: RequestTiming(2, 1, 3, 5),
        lambda: RequestTiming(0, 1, float("nan"), 5),
        lambda: itl([2.0, 1.0]),
        lambda: goodput([REQUEST], Slo(), 0.0),
        lambda: task_time_after({"decode": 1}, "decoding", 2),
        lambda: task_time_after({"decode": 1}, "decode", 0),
        lambda: relative_saving(0, 1),
    ],
)
def test_impossible_inputs_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        call()
