from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.value import (
    ValueInterval,
    ValueTerms,
    avoided_capacity,
    draft_cost,
    incremental_value,
    latency_value,
    operational_cost,
    quality_loss,
    value_per_task,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


def eur(low: float, value: Any, high: float) -> ValueInterval:
    return ValueInterval(value, low, high, "EUR")


TERMS = ValueTerms(eur(4, 5, 6), eur(1, 2, 3), eur(0, 1, 2), eur(0.5, 0.5, 0.5), eur(-1, 0, 1))
NAMES = [f.name for f in fields(ValueTerms)]

amounts = st.lists(st.integers(-100, 100), min_size=3, max_size=3).map(sorted)
intervals = amounts.map(lambda a: eur(*a))


def test_gains_less_costs_end_by_end() -> None:
    assert incremental_value(TERMS) == eur(4 + 1 - 2 - 0.5 - 1, 5.5, 6 + 3 - 0 - 0.5 + 1)


@pytest.mark.parametrize(
    "unknown", [c for n in range(1, 6) for c in itertools.combinations(NAMES, n)]
)
def test_any_unknown_term_makes_the_value_unknown(unknown: tuple[str, ...]) -> None:
    terms = replace(TERMS, **dict.fromkeys(unknown))
    assert incremental_value(terms) is None
    assert terms.unknown == tuple(n for n in NAMES if n in unknown)


@given(st.tuples(*[intervals] * 5))
def test_interval_holds_every_combination_of_ends(parts: tuple[ValueInterval, ...]) -> None:
    total = incremental_value(ValueTerms(*parts))
    ends = [
        value_per_task(*combination)
        for combination in itertools.product(*[(p.low, p.high) for p in parts])
    ]
    assert (total.low, total.high) == (min(ends), max(ends))
    assert total.value == value_per_task(*[p.value for p in parts])


@given(intervals, intervals)
def test_difference_undoes_nothing_but_the_middle(one: ValueInterval, other: ValueInterval) -> None:
    back = (one + other) - other
    assert back.value == one.value
    assert back.low <= one.low
    assert back.high >= one.high


def test_terms() -> None:
    assert latency_value(2.0, 0.5) == 1.0
    assert avoided_capacity(3.0, 1.0, 0.25) == 0.5
    assert avoided_capacity(1.0, 3.0, 0.25) == -0.5
    assert draft_cost(2.0, 0.5, 1e9, 1e-9, idle=0.25) == 2.25
    assert operational_cost(100.0, 50.0) == 2.0
    assert quality_loss(0.02, 10.0) == 0.2


@pytest.mark.parametrize(
    "call",
    [
        lambda: eur(2, 1, 3),
        lambda: eur(0, float("nan"), 1),
        lambda: eur(0, 1, float("inf")),
        lambda: eur(0, 0, 0) + ValueInterval(0, 0, 0, "USD"),
        lambda: avoided_capacity(-1, 0, 1),
        lambda: draft_cost(1, 1, 1, -1),
        lambda: operational_cost(1, 0),
        lambda: quality_loss(2, 1),
    ],
)
def test_impossible_inputs_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        call()
