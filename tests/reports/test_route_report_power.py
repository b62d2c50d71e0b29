"""Beside a verdict stands what its test could show, and why fewer pairs sufficed than were planned."""

from __future__ import annotations

import pytest

from gatekeeper.reports.route_report_figures import Ledger, RunFigures
from gatekeeper.reports.route_report_power import outcome_power


@pytest.mark.parametrize(
    ("outcome", "pairs", "told"),
    [("PASS", 64, True), ("PASS", 78, False), ("INCONCLUSIVE", 64, False), ("FAIL", 64, False)],
)
def test_a_pass_with_fewer_pairs_than_planned_says_why(
    outcome: str, pairs: int, *, told: bool
) -> None:
    summary = {"margin": 0.2, "pairs_needed": 78, "minimal_pairs": 12, "n": pairs}
    result = {"summary": summary, "parts": [{"name": "success", "outcome": outcome}]}
    said = outcome_power(RunFigures(Ledger.of(()), "run", "outcome", result))
    words = "".join(piece if isinstance(piece, str) else piece.text for piece in said)
    assert words.startswith("to rule out a loss of 20 %, arms that succeed alike need 78 pairs")
    assert words.count("9 times in 10") == 1
    assert (
        words.endswith(
            "; here fewer were enough, because the low end of the interval is inside "
            "the margin already"
        )
        == told
    )
