"""The walk on a GPU, as far as a machine without one can take it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_scripts import script
from tiny_models import write_tiny_llama

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_gate.py"


def walk(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")
def test_a_machine_without_a_gpu_is_told_so() -> None:
    done = walk()
    assert (done.returncode, done.stdout) == (3, "no CUDA device\n")


def test_a_dry_run_registers_and_plans_every_gate(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "tiny")
    home, report = tmp_path / "home", tmp_path / "found.json"
    given = ("--device", "cpu", "--dry-run", "--target", f"file:{target}")
    done = walk(*given, "--home", str(home), "--json", str(report))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert set(found["plans"]) == {"equivalence", "serving", "outcome"}
    assert {plan["policy"] for plan in found["plans"].values()} == {"gpu-gate"}
    assert found["plans"]["equivalence"]["artifact"] == found["plans"]["serving"]["artifact"]
    assert (found["device"], found["dtype"]) == ("cpu", "float32")
    assert "decision" not in found
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert "policy, register" in done.stdout


def test_every_walk_has_a_home_of_its_own_and_one_model_cache(tmp_path: Path) -> None:
    # what an earlier walk measured would be taken for this one's
    fresh = script("gpu_gate")._fresh
    first, second = fresh(tmp_path), fresh(tmp_path)
    assert first != second
    (first / "cache" / "model").write_text("converted")
    assert (second / "cache" / "model").read_text() == "converted"


@pytest.mark.parametrize(
    ("outcomes", "total_s", "status"),
    [
        (["PASS", "FAIL", "INCONCLUSIVE"], 400.0, 0),
        (["PASS", "ERROR", "PASS"], 400.0, 1),
        (["PASS", None, "PASS"], 400.0, 1),
        (["PASS", "PASS", "PASS"], 481.0, 4),
        ([], 100.0, 0),
    ],
)
def test_the_exit_status_says_measured_and_in_time(
    outcomes: list[str | None], total_s: float, status: int
) -> None:
    runs = {str(i): {"outcome": outcome} for i, outcome in enumerate(outcomes)}
    # a gate whose run would change nothing is not queued
    found = {"runs": {**runs, "skipped": None}, "total_s": total_s}
    assert script("gpu_gate")._status(found) == status


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = walk(
        *("--device", "cpu", "--dry-run", "--target", f"file:{tmp_path}/none"),
        *("--home", str(tmp_path / "home")),
    )
    assert done.returncode == 1
    assert "config.json" in done.stderr
