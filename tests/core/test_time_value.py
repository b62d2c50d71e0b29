"""What time is worth, as an economics document declares it: per route, per load, in three ways."""

from __future__ import annotations

from typing import Any

import pytest
from abandonment_cases import FIT, abandonment, pieces
from pricing_cases import PRICES

from gatekeeper.core.economics import Economics
from gatekeeper.errors import InputError


def economics(*rules: dict[str, Any], **changes: Any) -> Economics:
    return Economics.from_dict({**PRICES, "value_of_time": list(rules), **changes})


def test_the_three_ways_read_and_round_trip() -> None:
    prices = economics(
        {"routes": ["chat"], "per_second": 0.02},
        {"routes": ["agent-*"], **pieces((0, 0), (2, 0.01), (10, 0.002))},
        abandonment(),
    )
    assert [rule.kind for rule in prices.value_of_time] == [
        "per_second",
        "piecewise",
        "abandonment",
    ]
    again = Economics.from_dict(prices.to_dict())
    assert (again, again.digest) == (prices, prices.digest)
    assert prices.to_dict()["value_of_time"][2]["abandonment"]["fit"]["data"] == FIT["data"]


def test_documents_without_rules_keep_their_digest() -> None:
    assert "value_of_time" not in Economics.from_dict(PRICES).to_dict()
    assert economics().digest == Economics.from_dict(PRICES).digest
    assert economics({"per_second": 0.01}).digest != economics().digest


def test_the_fit_and_the_data_it_came_from_are_part_of_the_digest() -> None:
    digests = {economics(abandonment()).digest}
    for name, value in (("slope", 1.3), ("data", "e" * 64), ("longest_s", 61.0)):
        digests.add(economics(abandonment(**{name: value})).digest)
    digests.add(economics(abandonment(worth=0.5)).digest)
    assert len(digests) == 5


RULES = economics(
    {"routes": ["chat"], "max_concurrency": 4, "per_second": 1.0},
    {"routes": ["chat"], "min_concurrency": 5, "max_concurrency": 8, "per_second": 2.0},
    {"routes": ["agent-*", "batch"], "per_second": 3.0},
    {"min_concurrency": 64, "per_second": 4.0},
    value_of_second=5.0,
)


@pytest.mark.parametrize(
    ("route", "load", "price"),
    [
        ("chat", 1, 1.0),
        ("chat", 4, 1.0),
        ("chat", 5, 2.0),
        ("chat", 8, 2.0),
        ("chat", 9, 5.0),  # no rule: what holds everywhere
        ("chat", 64, 4.0),
        ("agent-7", 3, 3.0),
        ("batch", 100, 3.0),  # the first that matches
        ("mail", 63, 5.0),
        ("mail", 64, 4.0),
    ],
)
def test_the_first_rule_of_route_and_load_holds(route: str, load: int, price: float) -> None:
    found = RULES.time_rule(route, load)
    assert found is not None
    assert found[1].per_second == price
    assert (found[0] == "value_of_second") == (price == 5.0)


def test_what_hangs_on_an_unknown_load_is_unknown() -> None:
    assert RULES.time_rule("chat", None) is None
    found = RULES.time_rule("batch", None)
    assert found is not None
    assert found[1].per_second == 3.0
    assert (
        economics({"routes": ["a"], "per_second": 1.0}, value_of_second=None).time_rule("b", 1)
        is None
    )


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({}, "value_of_time"),
        ({"per_second": 1.0, **pieces((0, 1))}, "value_of_time"),
        ({"per_second": -1.0}, "value_of_time.per_second"),
        ({"per_second": 1.0, "min_concurrency": 0}, "value_of_time.min_concurrency"),
        (
            {"per_second": 1.0, "min_concurrency": 4, "max_concurrency": 3},
            "value_of_time.max_concurrency",
        ),
        ({"per_second": 1.0, "concurrency": 3}, "value_of_time[0].concurrency"),
        ({"per_second": "much"}, "value_of_time[0].per_second"),
        (pieces(), "value_of_time.piecewise[0].from_s"),
        (pieces((1, 1)), "value_of_time.piecewise[0].from_s"),
        (pieces((0, 1), (0, 2)), "value_of_time.piecewise[1].from_s"),
        (pieces((0, 1), (3, -2)), "value_of_time.piecewise[1].per_s"),
        (pieces((0, float("nan"))), "value_of_time[0].piecewise[0].per_s"),
        (abandonment(worth=-1.0), "value_of_time.abandonment.value_of_kept_task"),
        (abandonment(slope=-0.1), "value_of_time.abandonment.fit.slope"),
        (abandonment(slope=0.0), "value_of_time.abandonment.fit.slope"),
        (abandonment(slope=float("nan")), "value_of_time[0].abandonment.fit.slope"),
        (abandonment(time="minutes"), "value_of_time.abandonment.fit.time"),
        (abandonment(at_s=0.0), "value_of_time.abandonment.fit.at_s"),
        (abandonment(data="mine"), "value_of_time.abandonment.fit.data"),
        (abandonment(sessions=2), "value_of_time.abandonment.fit.sessions"),
        (abandonment(longest_s=0.1), "value_of_time.abandonment.fit.longest_s"),
        (abandonment(covariance=[[1.0]]), "value_of_time.abandonment.fit.covariance"),
        (
            abandonment(covariance=[[1.0, 2.0], [2.0, 1.0]]),
            "value_of_time.abandonment.fit.covariance",
        ),
        (
            abandonment(covariance=[[1.0, 0.1], [0.2, 1.0]]),
            "value_of_time.abandonment.fit.covariance",
        ),
        (
            abandonment(covariance=[[-1.0, 0.0], [0.0, 1.0]]),
            "value_of_time.abandonment.fit.covariance",
        ),
    ],
)
def test_what_says_nothing_sound_is_refused_by_name(rule: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        economics(rule)
    assert caught.value.field == field


def test_a_rule_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(InputError, match="never reached") as caught:
        economics({"per_second": 1.0}, {"routes": ["chat"], "per_second": 2.0})
    assert caught.value.field == "value_of_time[1]"
    economics({"routes": ["chat"], "per_second": 2.0}, {"per_second": 1.0})
