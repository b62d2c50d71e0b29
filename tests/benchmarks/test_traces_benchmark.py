"""The traces benchmark: its tasks are what it says, and its promise can be broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from benchmark_scripts import script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def bench() -> Any:
    return script("traces")


def row(shape: str, rate: float) -> dict[str, Any]:
    return {"shape": shape, "spans_per_s": rate}


def test_each_shape_has_the_spans_that_are_timed_and_a_path_through_its_decode(bench: Any) -> None:
    for shape in bench.SHAPES:
        found = bench.measure(shape, 121)
        assert found["spans"] == 121
        assert min(found["us_per_span"].values()) > 0
        assert found["nodes"] > 120
        assert found["spans_per_s_from_spans"] < found["spans_per_s"]


def test_the_promise_is_speed_and_linear_growth(bench: Any) -> None:
    fast, slow = bench.PROMISE * 3, bench.PROMISE
    assert bench._kept([row("flat", fast), row("flat", fast * 0.9), row("deep", slow)])
    assert not bench._kept([row("flat", fast), row("deep", slow - 1)])
    assert not bench._kept([row("flat", fast), row("flat", fast / 2.5)])


def test_it_prints_a_table_and_writes_it_down(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    status = bench.main(["--spans", "50", "--depth", "100", "--json", str(file)])
    figures = json.loads(file.read_text())
    rows = figures["rows"]
    assert [(r["shape"], r["spans"]) for r in rows] == [
        ("agent", 50),
        ("flat", 50),
        ("deep", 10),
        ("deep", 100),
    ]
    printed = capsys.readouterr().out
    assert status == (0 if printed.splitlines()[-1].startswith("kept") else 1)
    assert figures["holds"] == (status == 0)
