"""``gatekeeper outcome check``: what passes, and all that must not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from gatekeeper.core.stats.noninferiority import tango_interval
from gatekeeper.gates.outcome_check import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = "task,baseline_success,candidate_success,baseline_cost,candidate_cost"


def rows(b: int, c: int, n: int, cost: float = 0.9) -> list[str]:
    wins = ["1,0"] * b + ["0,1"] * c + ["1,1"] * (n - b - c)
    return [f"t{i},{won},{1 + i % 7},{cost * (1 + i % 5)}" for i, won in enumerate(wins)]


@pytest.fixture
def answer(gatekeeper: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def run(lines: list[str], *options: str, header: str = HEADER) -> Any:
        path = tmp_path / "PAIRS.csv"
        path.write_text("\n".join([header, *lines]) + "\n")
        return gatekeeper("outcome", "check", path, "--json", *options)

    return run


def test_thirty_equal_pairs_are_inconclusive_and_say_how_many_are_needed(answer: Any) -> None:
    done = answer(rows(0, 0, 30))
    assert done.status == 1
    assert done.json["outcome"] == "INCONCLUSIVE"
    assert done.json["pairs_needed"] == 133
    assert answer(rows(0, 0, 132)).json["outcome"] == "INCONCLUSIVE"
    assert (answer(rows(0, 0, 133)).status, answer(rows(0, 0, 133)).json["outcome"]) == (0, "PASS")


def test_equal_losses_and_gains_pass(answer: Any) -> None:
    done = answer(rows(30, 30, 1500))
    found = done.json
    assert (done.status, found["outcome"]) == (0, "PASS")
    assert (found["b"], found["c"], found["n"], found["difference"]) == (30, 30, 1500, 0)
    assert found["interval"] == pytest.approx(list(tango_interval(30, 30, 1500, 0.9)))
    assert found["margin"] == 0.02


def test_a_loss_fails(answer: Any) -> None:
    done = answer(rows(130, 20, 1500))
    assert (done.status, done.json["outcome"]) == (1, "FAIL")
    assert done.json["difference"] == pytest.approx(-110 / 1500)


def test_tangos_check_value(answer: Any) -> None:
    low, high = answer(rows(25, 28, 618)).json["interval"]
    assert (round(low, 4), round(high, 4)) == (-0.0148, 0.0247)


def test_margin_and_alpha_move_the_verdict(answer: Any) -> None:
    assert answer(rows(0, 0, 60), "--margin", "0.05").json["outcome"] == "PASS"
    assert answer(rows(0, 0, 60), "--margin", "0.05", "--alpha", "0.025").json["outcome"] != "PASS"


def test_a_rise_of_the_cost_fails_when_proven_or_above_a_given_limit(answer: Any) -> None:
    dearer = answer(rows(0, 0, 200, cost=2.0))
    assert (dearer.status, dearer.json["outcome"]) == (1, "FAIL")
    assert dearer.json["cost_ratio_interval"][0] > 1
    assert answer(rows(0, 0, 200, cost=2.0), "--max-cost-ratio", "3").json["outcome"] == "PASS"
    assert answer(rows(0, 0, 200), "--max-cost-ratio", "0.1").json["outcome"] == "FAIL"


def test_no_success_in_an_arm_is_never_a_number(answer: Any) -> None:
    found = answer([f"t{i},0,0,1,1" for i in range(200)]).json
    assert found["outcome"] == "INCONCLUSIVE"
    assert (found["cost_ratio"], found["cost_ratio_interval"]) == (None, None)


def test_clusters_count_for_less_than_their_pairs(answer: Any) -> None:
    alone = answer(rows(10, 10, 1500)).json
    tied = [f"{row},g{i // 10}" for i, row in enumerate(rows(10, 10, 1500))]
    found = answer(tied, header=f"{HEADER},cluster").json
    assert found["clusters"] == 150
    assert found["design_effect"] > 5
    assert found["interval"][0] < alone["interval"][0]


BAD = {
    "empty": ([], HEADER),
    "no header": (["t1,1,1,1,1"], "t0,1,1,1,1"),
    "nan success": (["t0,nan,1,1,1"], HEADER),
    "nan cost": (["t0,1,1,nan,1"], HEADER),
    "infinite cost": (["t0,1,1,1,inf"], HEADER),
    "blank success": (["t0,,1,1,1"], HEADER),
    "blank id": ([",1,1,1,1"], HEADER),
    "non-binary": (["t0,0.5,1,1,1"], HEADER),
    "two": (["t0,2,1,1,1"], HEADER),
    "words": (["t0,yes,1,1,1"], HEADER),
    "negative cost": (["t0,1,1,-1,1"], HEADER),
    "duplicated": (["t3,1,1,1,1"], HEADER),
    "unpaired": (["t0,1"], HEADER),
    "too long": (["t0,1,1,1,1,5"], HEADER),
    "typo": (["t0,1,1,1,1,a"], f"{HEADER},clusters"),
    "column twice": (["t0,1,1,1,1,1"], f"{HEADER},task"),
    "blank cluster": (["t0,1,1,1,1,"], f"{HEADER},cluster"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_pairs_is_refused_in_one_line(answer: Any, name: str) -> None:
    lines, header = BAD[name]
    good = [] if name == "empty" else rows(0, 0, 300)
    if header.endswith(("clusters", "cluster", "task")):
        good = [f"{row},g{i}" for i, row in enumerate(good)]
    lines = [line.replace("t0,", "new,", 1) for line in lines]
    done = answer(good + lines, header=header)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("gatekeeper: error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b'task,"a\n'])
def test_unreadable_files_are_refused(gatekeeper: Any, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "PAIRS.csv"
    path.write_bytes(data)
    assert gatekeeper("outcome", "check", path).status == 2
    assert gatekeeper("outcome", "check", tmp_path / "none.csv").status == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "{path}: the file is empty; write a CSV file whose first line is task,"),
        (HEADER, "{path}: has no pairs"),
        (HEADER + "\nt3,1,1,1,1\nt3,1,1,1,1", "{path}: task=t3: is given twice"),
        (HEADER + "\nt0,2,1,1,1", "{path}: baseline_success='2' in row 1: is not a success"),
        (HEADER + ",task", "{path}: column=task: must be given once"),
        (HEADER + ",extra", "{path}: column=extra: is not a column of pairs"),
        (None, "{path}: no such file or directory; name a readable CSV file"),
    ],
)
def test_a_refusal_names_the_file(
    gatekeeper: Any, tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "pairs.csv"
    if content is not None:
        path.write_text(content)
    done = gatekeeper("outcome", "check", path)
    assert done.status == 2
    assert done.err.startswith(f"gatekeeper: error: {words.format(path=path)}"), done.err
    assert "Errno" not in done.err


@pytest.mark.parametrize(
    "options", [("--margin", "0"), ("--margin", "nan"), ("--alpha", "0.5"), ("--alpha", "nan")]
)
def test_limits_out_of_range_are_refused(answer: Any, options: tuple[str, str]) -> None:
    assert answer(rows(0, 0, 300), *options).status == 2
    assert answer(rows(0, 0, 300), "--max-cost-ratio", "nan").status == 2


def test_the_text_names_outcome_parts_and_pairs(gatekeeper: Any, tmp_path: Path) -> None:
    path = tmp_path / "PAIRS.csv"
    path.write_text("\n".join([HEADER, *rows(0, 0, 30)]))
    done = gatekeeper("outcome", "check", path)
    assert done.status == 1
    assert done.out.startswith("INCONCLUSIVE: 30 pairs, b=0, c=0\n")
    assert "about 133 pairs" in done.out
    assert "equal arms pass 9 times in 10 with about" in done.out
    assert "fewer were enough" not in done.out


def test_a_pass_with_fewer_pairs_than_planned_says_why(gatekeeper: Any, tmp_path: Path) -> None:
    path = tmp_path / "PAIRS.csv"
    path.write_text("\n".join([HEADER, *rows(2, 18, 64)]))
    done = gatekeeper("outcome", "check", path, "--margin", "0.2")
    assert done.out.startswith("PASS: 64 pairs")
    needed = check(pd.read_csv(path), margin=0.2, alpha=0.05)["pairs_needed"]
    assert needed is not None
    assert "here fewer were enough, because the low end" in done.out
    assert needed > 64


def test_spreadsheets_and_booleans_are_read(answer: Any, gatekeeper: Any, tmp_path: Path) -> None:
    lines = [f"t{i},True,FALSE,1.5,2" for i in range(20)]
    assert answer(lines).json["b"] == 20
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([HEADER, *lines]).encode())
    assert json.loads(gatekeeper("outcome", "check", path, "--json").out)["b"] == 20


def test_the_answer_is_the_same_for_a_frame() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "task": range(200),
            "baseline_success": rng.integers(0, 2, 200),
            "candidate_success": rng.integers(0, 2, 200),
            "baseline_cost": rng.random(200),
            "candidate_cost": rng.random(200),
        }
    )
    shuffled = frame.sample(frac=1, random_state=1)
    one, other = (check(f, margin=0.2, alpha=0.05) for f in (frame, shuffled))
    assert one["interval"] == pytest.approx(other["interval"])
    assert one["b"] == int(((frame.baseline_success == 1) & (frame.candidate_success == 0)).sum())


@pytest.mark.parametrize("costs", ["1e308,1e308", "1e-300,1e300"])
def test_costs_beyond_what_can_be_compared_pass_nothing(answer: Any, costs: str) -> None:
    done = answer([f"t{i},1,1,{costs}" for i in range(500)])
    assert done.status == 1
    assert done.json["outcome"] == "INCONCLUSIVE"


def test_a_json_file_is_said_to_be_one(gatekeeper: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_text('[{"task": "a", "baseline_success": 1}]')
    done = gatekeeper("outcome", "check", path)
    assert done.status == 2
    assert f"{path}: looks like JSON, not CSV; " in done.err.replace("\n", "")
