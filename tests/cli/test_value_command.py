"""``gatekeeper value``: from outcomes to the rule of an economics document, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from abandonment_cases import outcomes
from pricing_cases import PRICES, priced

from gatekeeper.core.claims import Claim
from gatekeeper.core.economics import Economics
from gatekeeper.core.equations import verify
from gatekeeper.core.outcomes import read_outcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAST = ("--replicates", "120")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "OUTCOMES.csv"
    outcomes(0).to_csv(path, index=False)
    return path


@pytest.fixture
def run(gatekeeper: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: gatekeeper("value", *arguments)


def economics(rules: list[dict[str, Any]]) -> dict[str, Any]:
    document = {**PRICES, "value_of_time": rules}
    del document["value_of_second"]
    return document


def test_what_is_printed_prices_a_route_and_recomputes(
    run: Any, recorded: Path, tmp_path: Path
) -> None:
    done = run("fit", recorded, "--value-of-kept-task", "0.4", *FAST)
    assert (done.status, done.err) == (0, "")
    assert "196 of 900 tasks of 150 sessions" in done.out
    prices = economics(yaml.safe_load(done.out))  # the remarks are comments
    fit = Economics.from_dict(prices).value_of_time[0].abandonment.fit  # type: ignore[union-attr]
    assert fit.data == read_outcomes(recorded.read_bytes()).data
    found = priced(prices={**prices, "value_of_second": None})
    assert found.document["terms"]["latency_value"]["low"] > 0
    path = tmp_path / "economics.yaml"
    path.write_text(yaml.safe_dump(prices))
    again = run("check", recorded, path, "--json")
    assert again.status == 0
    assert len(again.json["figures"]) > 12
    assert all(row["agrees"] for row in again.json["figures"])


def test_json_holds_rule_intervals_bands_and_claims(run: Any, recorded: Path) -> None:
    found = run("fit", recorded, "--json", *FAST).json
    fit = found["rule"]["abandonment"]["fit"]
    assert "value_of_kept_task" not in found["rule"]["abandonment"]  # unknown, and never 0
    low, high = found["intervals"]["slope"]
    assert low < fit["slope"] < high
    assert sum(band["tasks"] for band in found["bands"]) == fit["tasks"] == 900
    assert found["log_likelihood"]["log_seconds"] > found["log_likelihood"]["seconds"]
    table = read_outcomes(recorded.read_bytes()).table
    claims = [Claim.from_dict(claim) for claim in found["claims"]]
    assert all(row.agrees for row in verify(claims, lambda name, sha: table))
    text = run("fit", recorded, *FAST).out
    assert "add value_of_kept_task" in text


def test_a_route_and_a_band_are_fitted_apart(run: Any, tmp_path: Path) -> None:
    table = outcomes(0, sessions=300)
    table["route"] = ["chat" if s % 2 else "mail" for s in table["session"]]
    table["concurrency"] = [1 if s < 200 else 8 for s in table["session"]]
    path = tmp_path / "OUTCOMES.csv"
    table.to_csv(path, index=False)
    chosen = ("--route", "chat", "--max-concurrency", "4")
    rule = run("fit", path, *chosen, *FAST, "--json").json["rule"]
    assert (rule["routes"], rule["max_concurrency"]) == (["chat"], 4)
    assert rule["abandonment"]["fit"]["sessions"] == 100
    prices = tmp_path / "economics.yaml"
    prices.write_text(yaml.safe_dump(economics([rule])))
    assert run("check", path, prices).status == 0  # the same rows are taken again


def test_a_document_that_says_something_else_does_not_agree(
    run: Any, recorded: Path, tmp_path: Path
) -> None:
    rule = run("fit", recorded, *FAST, "--json").json["rule"]
    path = tmp_path / "economics.yaml"
    fit = rule["abandonment"]["fit"]
    path.write_text(yaml.safe_dump(economics([{"abandonment": {"fit": {**fit, "slope": 2.0}}}])))
    changed = run("check", recorded, path, "--json")
    assert changed.status == 1
    wrong = [row["figure"] for row in changed.json["figures"] if not row["agrees"]]
    assert wrong == ["value_of_time[0].abandonment.fit.slope"]
    # other outcomes are another file
    recorded.write_text(recorded.read_text() + "5.0,0,1\n")
    lost = run("check", recorded, path)
    assert lost.status == 1
    assert "carries no curve fitted from these outcomes" in lost.err


def test_a_slope_that_may_be_0_is_said(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "OUTCOMES.csv"
    outcomes(5, slope=0.05).to_csv(path, index=False)
    done = run("fit", path, *FAST)
    assert done.status == 0
    assert "The slope may be 0" in done.out


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ("row,row,row\n", (), "outcomes.duration_s='row' in row 901"),
        ("-1,yes,a\n", (), "outcomes.duration_s='-1' in row 901"),
        ("nan,yes,a\n", (), "outcomes.duration_s='nan' in row 901"),
        ("1,perhaps,a\n", (), "outcomes.abandoned='perhaps' in row 901"),
        ("", ("--route", "chat"), "outcomes.route"),
        ("", ("--value-of-kept-task", "-1"), "value_of_kept_task=-1.0"),
        ("", ("--value-of-kept-task", "nan"), "value_of_kept_task=nan"),
        ("", ("--min-concurrency", "0"), "min-concurrency"),
        ("", ("--replicates", "5"), "replicates"),
        ("", ("--time", "minutes"), "time"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    run: Any, recorded: Path, change: str, options: tuple[str, ...], said: str
) -> None:
    recorded.write_text(recorded.read_text() + change)
    done = run("fit", recorded, *options)
    assert (done.status, done.out) == (2, "")
    assert len(done.err.strip().splitlines()) == 1
    assert said in done.err


def test_a_missing_file_is_one_line_and_exit_2(run: Any, tmp_path: Path) -> None:
    for arguments in (("fit", tmp_path / "none.csv"), ("check", tmp_path / "none.csv", tmp_path)):
        done = run(*arguments)
        assert done.status == 2
        assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("slope", "tasks", "said"),
    [(-1.2, 900, "longer tasks were abandoned less often"), (1.2, 40, "too few")],
)
def test_outcomes_that_bear_no_curve_are_a_no(
    run: Any, tmp_path: Path, slope: float, tasks: int, said: str
) -> None:
    path = tmp_path / "OUTCOMES.csv"
    outcomes(0, slope=slope).head(tasks).to_csv(path, index=False)
    done = run("fit", path, *FAST)
    assert (done.status, done.out) == (1, "")
    assert len(done.err.strip().splitlines()) == 1
    assert said in done.err
