from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gatekeeper.reports.charts import (
    Forest,
    Interval,
    Lines,
    Series,
    Stack,
    Step,
    Waterfall,
    draw,
    ticks,
)


def parsed(chart: Any) -> Any:
    return ET.fromstring(str(draw(chart)))  # noqa: S314 - our own markup


def with_class(root: Any, tag: str, name: str) -> list[Any]:
    return [e for e in root.iter(tag) if name in (e.get("class") or "").split()]


def titles(root: Any) -> list[str]:
    return [str(e.text) for e in root.iter("title")]


def forest(*rows: Interval, at: float = 1.0) -> Forest:
    return Forest("t", "what it shows", "ratio", rows, (("limit", at),))


def test_a_forest_draws_bounds_in_order_and_the_limit_on_the_right_side() -> None:
    root = parsed(
        forest(Interval("one", 1.7, 1.3, 2.1, "1.7"), Interval("two", 0.8, 0.7, 0.9, "0.8"))
    )
    first, second = with_class(root, "rect", "mark")
    limit = float(with_class(root, "line", "reference")[0].get("x1"))
    assert float(second.get("x")) < limit < float(first.get("x"))
    spans = [
        (float(e.get("x1")), float(e.get("x2")))
        for e in with_class(root, "line", "whisker")
        if e.get("y1") == e.get("y2")
    ]
    assert len(spans) == 2
    (low, high), centre = spans[0], float(first.get("x")) + 4
    assert low < centre < high
    # distances are proportional to the figures
    assert (centre - low) / (high - low) == pytest.approx(0.5, abs=0.01)
    assert titles(root) == ["one: 1.7", "two: 0.8"]


def test_an_unknown_bound_is_not_drawn() -> None:
    root = parsed(forest(Interval("one", 1.7, None, None, "1.7 without bounds")))
    assert with_class(root, "line", "whisker") == []
    half = parsed(forest(Interval("one", 1.7, 1.2, None, "1.7")))
    assert len([e for e in with_class(half, "line", "whisker") if e.get("x1") == e.get("x2")]) == 1


def test_equal_figures_still_have_an_axis() -> None:
    root = parsed(forest(Interval("one", 1.0, 1.0, 1.0, "1"), at=1.0))
    assert all("nan" not in ET.tostring(e).decode() for e in root.iter())


def test_lines_stand_on_zero_and_keep_their_order() -> None:
    series = (
        Series("ordinary", 0, (("1", 10.0, "10"), ("2", 20.0, "20"))),
        Series("speculative", 1, (("1", 5.0, "5"), ("2", 40.0, "40"))),
    )
    root = parsed(Lines("t", "alt", "x", ("1", "2"), series))
    paths = {
        e.get("class"): [tuple(map(float, p.split(","))) for p in e.get("points").split()]
        for e in root.iter("polyline")
    }
    ordinary, speculative = paths["line s0"], paths["line s1"]
    assert ordinary[0][1] < speculative[0][1]  # y grows downwards
    assert ordinary[1][1] > speculative[1][1]
    zero = next(float(e.get("y")) - 4 for e in root.iter("text") if e.text == "0")
    heights = [zero - y for _, y in (*ordinary, *speculative)]
    assert heights[1] / heights[0] == pytest.approx(2, abs=0.01)
    assert heights[3] / heights[2] == pytest.approx(8, abs=0.05)


def test_a_waterfall_adds_up() -> None:
    steps = (
        Step("ceiling", 10.0, None, None, "10", total=True),
        Step("gain", 6.0, 5.0, 7.0, "6"),
        Step("cost", -2.0, -2.5, -1.5, "−2"),
        Step("total", 4.0, 2.5, 5.5, "4", total=True),
    )
    root = parsed(Waterfall("t", "alt", "EUR", steps))
    bars = {
        e.find("title").text.partition(":")[0]: (float(e.get("x")), float(e.get("width")))
        for e in root.iter("rect")
    }
    zero = bars["ceiling"][0]
    assert bars["gain"][0] == pytest.approx(zero)  # the ceiling is no summand
    end_of_gain = sum(bars["gain"])
    assert sum(bars["cost"]) == pytest.approx(end_of_gain, abs=0.02)
    assert bars["total"] == pytest.approx((zero, bars["cost"][0] - zero), abs=0.02)
    assert bars["gain"][1] / bars["ceiling"][1] == pytest.approx(0.6, abs=0.01)


def test_a_stack_shows_shares_and_names_what_is_nothing() -> None:
    root = parsed(Stack("t", "alt", (("a", 3.0, "3 B"), ("b", 1.0, "1 B"), ("c", 0.0, "0 B"))))
    widths = [float(e.get("width")) for e in root.iter("rect") if e.get("height") == "26"]
    assert widths == pytest.approx([255.0, 85.0])
    assert {"a", "b", "c", "0 B"} <= {e.text for e in root.iter("text")}


def test_names_are_escaped_and_said_to_readers() -> None:
    hostile = '"><script>alert(1)</script>'
    chart = Forest(hostile, hostile, hostile, (Interval(hostile, 1, 0, 2, hostile),), ())
    root = parsed(chart)
    assert root.get("role") == "img"
    assert root.get("aria-label") == hostile
    assert [e.tag for e in root.iter() if "script" in e.tag] == []
    assert "<script" not in str(draw(chart))


def test_the_same_chart_is_the_same_bytes() -> None:
    chart = forest(Interval("one", 1 / 3, 0.1, 0.7, "a third"))
    assert draw(chart) == draw(chart)
    assert re.search(r"\d\.\d{3}", str(draw(chart))) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 100.0, [0, 50, 100]),
        (0.9, 2.2, [1, 1.5, 2]),
        (-0.01, 0.021, [-0.01, 0, 0.01, 0.02]),
        (5.0, 5.0, [5.0]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
