"""Plans and verdicts on a terminal are words: no lists or mappings as a program has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.cli.gate import _print_run
from gatekeeper.cli.plan_words import print_plan

if TYPE_CHECKING:
    import pytest

PLAN = {
    "gate": "equivalence",
    "route": "chat",
    "policy": "demo",
    "slice": "prose",
    "rates": "measured by an earlier run",
    "tokens": 1160,
    "settings": ["T=1", "T=0.7 top_k=5"],
    "sampling": "T=0.5",
    "gammas": [4, 1, 2],
    "minutes": 1.6,
    "minutes_at_least": 0.9,
    "minutes_from": "speeds",
    "declared_effect": {
        "share": 0.3,
        "power": 0.9,
        "tokens_needed": 700,
        "within_budget": True,
        "power_at_least": 0.67,
        "power_at_most": 0.97,
    },
    "attainable_power": {"correction drawn from q": 1.0, "bonus drawn from q": 0.58},
    "tokens_to_pass_tolerance": {"window": 420, "bonus": 60},
    "tolerance_attainable": True,
}


def test_a_plan_has_no_raw_data(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PLAN)
    said = capsys.readouterr().out
    assert not set("[]{}'_") & set(said)
    assert "True" not in said
    for line in (
        "minutes: at most about 1.6, at least 0.9 (every answer at full length; speeds measured by",
        "workload: prose",
        "sampling settings: temperature 1; temperature 0.7, top-k 5",
        "sampling: temperature 0.5",
        "windows (gamma): 4, 1, 2",
        "30% of the tokens drafted and not checked, to be found with probability 0.9: that needs 700",
        "probability 0.67 at its fewest tokens, 0.97 at its most",
        "within the tokens: 1 correction drawn from q, 0.58 bonus drawn from q",
        "420 for the window, 60 for the bonus",
        "within the budget: yes",
    ):
        assert line in said


def test_minutes_of_the_last_run_are_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan({**PLAN, "minutes": 1.14, "minutes_from": "last_run"})
    said = capsys.readouterr().out
    assert "minutes: about 1.14 (what the last run of this gate took)" in said


def view(above: str, outcome: str = "PASS") -> dict[str, Any]:
    parts = [
        {"name": f"concurrency {load}", "outcome": found, "detail": "said"}
        for load, found in ((1, outcome), (2, above))
    ]
    most = {"max_concurrency": 1 if above != "PASS" else 2} if outcome == "PASS" else None
    summary = {"envelope": most}
    result = {"outcome": outcome, "parts": parts, "summary": summary, "still_needed": None}
    base = {"id": "r", "gate": "serving", "route": "chat", "state": "finished", "error": None}
    return {**base, "result": result}


def test_a_pass_says_why_an_open_level_takes_nothing_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_run(view("INCONCLUSIVE"))
    assert (
        "PASS up to concurrency 1: the lowest level has to pass and did" in capsys.readouterr().out
    )
    _print_run(view("PASS"))
    _print_run(view("INCONCLUSIVE", "INCONCLUSIVE"))
    assert "up to concurrency" not in capsys.readouterr().out
