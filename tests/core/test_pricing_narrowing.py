"""What would lift the low end above the minimum: the kind of evidence, and about how much of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pricing_cases import curves, inputs, serving, task

from gatekeeper.core.policies import MinimumValue
from gatekeeper.core.pricing import price


def spread_tasks(count: int) -> Any:
    rng = Random(1)
    lengths = [1.2 * rng.uniform(0.1, 2.5) for _ in range(8)]
    return curves([task(lengths[i % 8], 3.8, name=f"t{i}") for i in range(count)])


def priced(minimum: float, **changes: Any) -> dict[str, Any]:
    return price(inputs(minimum=MinimumValue(minimum, "EUR"), **changes)).document


def test_where_tasks_dominate_that_many_of_them_do() -> None:
    found = priced(0.007, curves=spread_tasks(8))["narrowing"]
    assert (found["dominant"], found["kind"], found["now"]) == ("tasks", "tasks", 8)
    assert 8 < found["needed"] < 80
    enough = priced(0.007, curves=spread_tasks(8 * -(-found["needed"] // 8)))
    assert enough["total"]["low"] > 0.007 - 0.0003
    half = priced(0.007, curves=spread_tasks(found["needed"] // 2))
    assert half["total"]["low"] < 0.007


def test_where_the_speed_up_dominates_block_pairs_do() -> None:
    document = priced(0.005, serving=("run-s", serving(spread=0.6)))
    found = document["narrowing"]
    assert (found["dominant"], found["kind"], found["now"]) == ("block_pairs", "block_pairs", 6)
    said = document["what_would_change"][0]
    assert f"about {found['needed']} block pairs of the serving gate instead of 6" in said
    assert "square-root law" in said


def test_an_estimate_below_the_minimum_is_said_not_to_be_a_matter_of_evidence() -> None:
    document = priced(0.0095, curves=spread_tasks(8))
    assert document["total"]["per_task"] < 0.0095 < document["total"]["high"]
    assert document["narrowing"]["factor"] is None
    assert "is not known: the estimate itself" in document["what_would_change"][0]


@pytest.mark.parametrize("minimum", [0.001, 1.0])
def test_an_interval_on_one_side_needs_nothing(minimum: float) -> None:
    document = priced(minimum)
    assert document["narrowing"] is None
    assert not any("square-root" in s for s in document["what_would_change"])
