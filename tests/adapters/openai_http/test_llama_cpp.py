"""llama.cpp's real server, gated by one command through the real control plane and worker."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from gatekeeper_adapters.engines.reference.sources import SMOLLM2, fetch, parse_source
from models import model_cache

from gatekeeper.cli import cli
from gatekeeper.config import data_dir
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live import LiveServer

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "llama_server.py"
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def gguf() -> Path:
    """SmolLM2-135M-Instruct as llama.cpp reads it, fetched the first time."""
    source = parse_source(SMOLLM2)
    path = model_cache() / "gguf" / Path(str(source.path)).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            try:
                shutil.move(fetch(source, Path(folder), print), path)
            except Unavailable as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(str(error))
    return path


@contextmanager
def llama(gguf: Path, how: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(gguf), str(port), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.endswith(str(port)), f"llama.cpp did not start: {line}"
        yield line
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def plain(gguf: Path) -> Iterator[str]:
    with llama(gguf, "plain") as url:
        yield url


def policy() -> Any:
    document = yaml.safe_load((data_dir("policies") / "demo.yaml").read_text())
    document["name"] = "small"
    document["equivalence"] |= {"tokens_per_request": 20}
    document["equivalence"]["sampled"] |= {"min_tokens": 100, "max_tokens": 8 * 3 * 20}
    document["serving"] |= {
        "concurrency": [1],
        "tokens_per_request": 20,
        "requests_per_block": 1,
        "sweep_blocks": 1,
        "confirm_blocks": 5,
        "max_prompt_tokens": 140,
    }
    return document


@contextmanager
def working(server: LiveServer) -> Iterator[None]:
    """A worker in a process of its own, as in real use: its event loop is its own."""
    command = [sys.executable, "-m", "gatekeeper", "worker", "--poll", "0.2"]
    settings = {"GATEKEEPER_URL": server.url, "GATEKEEPER_TOKEN": server.tokens["worker"]}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            ended = process.poll()
            process.kill()
            process.communicate()
            log.seek(0)
            print(f"worker, status {ended}:\n{log.read()}")  # noqa: T201 - shown where the test fails


def gated(server: LiveServer, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    with server.client("admin") as admin:
        admin.put("/v1/policies/small", json=policy()).raise_for_status()
    monkeypatch.setenv("GATEKEEPER_URL", server.url)
    monkeypatch.setenv("GATEKEEPER_TOKEN", server.tokens["admin"])
    with working(server):
        options = ("--policy", "small", "--slice", "code")
        return CliRunner().invoke(cli, ["gate", "run", *options, *arguments])


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
