"""What time is worth, and what would flip the decision, as a report tells it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from abandonment_cases import abandonment, pieces
from pricing_cases import curves, priced, serving, task
from rich.console import Console

from gatekeeper.reports.route_claims import priced as claims_of
from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_markdown import render_markdown
from gatekeeper.reports.route_report import lay_out
from gatekeeper.reports.route_report_figures import Facts, Figure, Ledger, Table
from gatekeeper.reports.route_report_value import value_section
from gatekeeper.reports.route_terminal import render_terminal

if TYPE_CHECKING:
    from reported import Reported

    from gatekeeper.reports.route_report_figures import Line, Section


def section(**changes: Any) -> Section:
    """The section of a pricing, every figure of it borne out by a claim."""
    found = priced(**changes)
    rows = [claim.to_dict() for claim in found.claims]
    ledger = Ledger.of([*rows, *claims_of("prose", found.document)])
    laid = value_section({"route": "prose", "value": found.document, "tasks": None}, ledger)
    assert ledger.unclaimed == []
    return laid


def text(line: Line) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in line)


def facts(laid: Section) -> dict[str, str]:
    (found,) = [block for block in laid.blocks if isinstance(block, Facts)]
    return {name: text(line) for name, line in found.rows}


def table(laid: Section, caption: str) -> list[list[str]]:
    (found,) = [b for b in laid.blocks if isinstance(b, Table) and b.caption.startswith(caption)]
    return [[text(cell) for cell in row] for row in found.rows]


def by_rule(*rules: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"prices": {"value_of_second": None, "value_of_time": list(rules)}, **changes}


def test_a_constant_is_its_price() -> None:
    assert facts(section())["A second is worth"] == "0.01 EUR (value_of_second)"
    found = facts(section(**by_rule({"per_second": 0.02})))
    assert found["A second is worth"] == "0.02 EUR (value_of_time[0])"
    assert next(iter(found)).startswith("Ceiling")


def test_pieces_are_told_one_by_one() -> None:
    found = facts(section(**by_rule(pieces((0, 0.0), (2, 0.01)))))
    said = "0 EUR from 0 ms, then 0.01 EUR from 2\u202f000 ms (value_of_time[0])"
    assert found["A second is worth"] == said


def test_a_curve_is_told_with_its_data_and_what_it_keeps() -> None:
    found = facts(section(**by_rule(abandonment(longest_s=4.5))))
    said = found["A second is worth"]
    assert "0.4 EUR times the tasks kept" in said
    assert "fitted from 900 tasks of 150 sessions, data dddddddddddd" in said
    assert "8 tasks here last shorter or longer" in said
    kept = found["Tasks kept that would be abandoned"]
    assert kept.startswith("+")
    assert kept.count("%") == 3
    assert "Tasks kept that would be abandoned" not in facts(section())


def test_a_price_that_nobody_gave_is_unknown() -> None:
    laid = section(prices={"value_of_second": None})
    assert facts(laid)["A second is worth"] == "unknown"
    assert not [b for b in laid.blocks if isinstance(b, Table) and "flip" in b.caption]
    assert any(
        "not known while the value is not" in text(p.content)
        for p in laid.blocks
        if hasattr(p, "content")
    )


def test_loads_whose_seconds_are_not_worth_the_same_are_told_apart() -> None:
    two = serving() | {
        "regions": [
            {**serving(1.5)["regions"][0], "concurrency": 1},
            {**serving(3.0)["regions"][0], "concurrency": 8},
        ],
        "gamma_by_concurrency": {"1": 4, "8": 4},
    }
    rules = (
        {"max_concurrency": 2, "per_second": 0.01},
        {"min_concurrency": 3, **pieces((0, 1e-5))},
    )
    rows = table(section(**by_rule(*rules, serving=("run", two))), "Value by load")
    assert [row[:2] for row in rows] == [
        ["1", "the same for each second"],
        ["8", "by the task's duration"],
    ]
    gap = by_rule(rules[0], serving=("run", two))
    assert table(section(**gap), "Value by load")[1][1:] == ["unknown", "unknown"]


def test_every_input_is_shown_with_its_value_the_flip_and_its_bounds() -> None:
    document = priced().document
    rows = table(section(), "Inputs that flip")
    assert len(rows) == len(document["sensitivity"]["rows"])
    shown = {row[0]: row[1:] for row in rows}
    second = ["0.01", "0.00189 (−81.1 %)", "0 or more"]
    assert shown["value_of_second, EUR per s"] == second
    assert shown["decoding speed-up"][2] == "0.3333 to 1\u202f000"
    assert shown["replica_cost_per_hour, EUR per h"][1] == "none within its bounds"
    assert shown["the policy's minimum, EUR per task"][2] == "any"
    memory = shown["draft.memory_cost_per_gib_hour, EUR per GiB h"]
    assert "(+65" in memory[1]  # never in powers of ten
    assert "e+" not in "".join(cell for row in rows for cell in row)
    curve = table(section(**by_rule(abandonment())), "Inputs that flip")
    assert "value_of_kept_task, EUR per kept task" in {row[0] for row in curve}


def test_the_sentence_says_on_which_side_the_value_is() -> None:
    def said(laid: Section) -> str:
        return " ".join(text(b.content) for b in laid.blocks if hasattr(b, "content"))

    assert "low end of the value exceeds the minimum" in said(section())
    hidden = curves([task(1.2, 3.8, beside=2.0, name=f"t{i}") for i in range(8)])
    assert "does not exceed the minimum" in said(section(curves=hidden))


def test_terminal_page_and_markdown_hold_the_table(reported_route: Reported) -> None:
    report = lay_out(reported_route.full)
    assert report.unclaimed == ()
    rows = reported_route.full["value"]["sensitivity"]["rows"]
    assert len(rows) > 8
    console = Console(width=140, file=io.StringIO(), highlight=False, markup=False)
    console.print(render_terminal(report, width=138))
    for rendered in (
        console.file.getvalue(),  # type: ignore[attr-defined]
        render_html(report),
        render_markdown(report),
    ):
        assert "Inputs that flip the decision" in rendered
        assert "none within its bounds" in rendered
        plain = rendered.replace("\\_", "_")
        for name in ("value_of_second", "tasks_per_month", "cost_per_failure"):
            assert name in plain
    (found,) = [s for s in report.sections if s.name == "value"]
    figures = [
        piece
        for block in found.blocks
        if isinstance(block, Table) and "flip" in block.caption
        for row in block.rows
        for cell in row
        for piece in cell
        if isinstance(piece, Figure)
    ]
    assert len(figures) > 20
    assert all(figure.claim is not None for figure in figures)


@pytest.mark.parametrize("missing", ["time_value", "sensitivity"])
def test_a_pricing_of_an_earlier_version_is_still_shown(
    reported_route: Reported, missing: str
) -> None:
    document = reported_route.full
    value = {k: v for k, v in document["value"].items() if k != missing}
    assert "Value per task" in render_markdown(lay_out({**document, "value": value}))
