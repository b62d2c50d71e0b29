"""llama.cpp's real server, gated by one command through the real control plane and worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from gated_servers import gated
from llama import gguf, llama

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from live import LiveServer

__all__ = ["gguf"]

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def plain(gguf: Path) -> Iterator[str]:
    with llama(gguf, "plain") as url:
        yield url


@ON_SQLITE
def test_lookup_speculation_is_gated_by_one_command(
    live_server: LiveServer,
    gguf: Path,
    plain: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    page = tmp_path / "calls.html"
    with llama(gguf, "ngram") as candidate:
        urls = ("--baseline-url", plain, "--candidate-url", candidate, "--gamma", "8")
        options = ("--route", "calls", *urls, "--wait", "--html", str(page))
        done = gated(live_server, monkeypatch, *options)
    assert done.exit_code == 1, done.output
    assert "calls: bypass" in done.output
    with live_server.client("reader") as reader:
        runs = reader.get("/v1/gate-runs").raise_for_status().json()["items"]
        views = {
            run["gate"]: reader.get(f"/v1/gate-runs/{run['id']}").raise_for_status().json()
            for run in runs
        }
        lease = reader.get("/v1/routes/calls/decision").raise_for_status().json()
        report = reader.get("/v1/reports/calls")
    equivalence, serving = views["equivalence"]["result"], views["serving"]["result"]
    assert equivalence["outcome"] == "INCONCLUSIVE", equivalence["parts"]
    greedy = next(p for p in equivalence["parts"] if p["name"] == "greedy text")
    assert greedy["outcome"] != "FAIL"
    assert equivalence["summary"]["greedy"]["prompts"] == 8
    assert len(equivalence["summary"]["missing"]) == 6
    assert serving["outcome"] in {"PASS", "INCONCLUSIVE", "FAIL", "ERROR"}
    (region,) = serving["summary"]["regions"]
    assert region["speedup"]["ratio"] > 0
    (row,) = serving["summary"]["acceptance_matrix"]
    assert 0 < row["acceptance_rate"] <= 1
    assert lease["action"] == "bypass"
    assert report.status_code == httpx.codes.OK
    assert "Bypass" in page.read_text()


@ON_SQLITE
def test_synthetic_acceptance_is_found_out(
    live_server: LiveServer, gguf: Path, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with llama(gguf, "synthetic") as candidate:
        urls = ("--baseline-url", plain, "--candidate-url", candidate)
        done = gated(live_server, monkeypatch, "--route", "lossy", "equivalence", *urls, "--wait")
    assert done.exit_code == 1, done.output
    assert "FAIL         greedy text" in done.output
    assert "lossy: bypass (equivalence_failed)" in done.output
