"""``gate explain``: a run in plain words, from a real control plane."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from reported import ROUTE, set_up

from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer
    from reported import Reported

Run = Any


@pytest.fixture
def reader(gatekeeper: Run, reported_route: Reported) -> Run:
    def run(*arguments: object) -> Any:
        server = reported_route.server
        return gatekeeper(*arguments, URL=server.url, TOKEN=server.tokens["reader"])

    return run


def test_a_run_is_explained_on_the_terminal_as_page_as_markdown_and_as_json(
    reader: Run, reported_route: Reported, tmp_path: Path
) -> None:
    run = reported_route.full["gates"]["equivalence"]["run"]
    printed = reader("gate", "explain", run)
    assert printed.status == 0, printed.err
    assert "prose  Passed: no difference from the model alone was found" in printed.out
    page, notes = tmp_path / "run.html", tmp_path / "run.md"
    written = reader("gate", "explain", run, "--html", page, "--markdown", notes)
    assert written.status == 0
    assert written.out.splitlines() == [f"written: {page}", f"written: {notes}"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "†" not in text
    assert f"<code>/v1/gate-runs/{run}</code>" in text
    assert notes.read_text(encoding="utf-8").startswith("# prose: Passed: no difference")
    shown = reader("gate", "show", run).out
    assert re.search(
        r"cost, ms a token: generation \S+, scoring \S+, q at the bonus \S+, bank", shown
    )
    document = reader("gate", "explain", run, "--json").json
    assert document["headline"].startswith("Passed")
    assert document["run"]["id"] == run


def test_what_cannot_be_explained_is_refused(reader: Run, reported_route: Reported) -> None:
    unknown = reader("gate", "explain", "nothing")
    assert unknown.status == 2
    assert "nothing" in unknown.err
    serving = reader("gate", "explain", reported_route.full["gates"]["serving"]["run"])
    assert serving.status == 2
    assert "only equivalence runs are" in serving.err
    assert "gatekeeper report prose" in serving.err


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_failed_run_shows_the_token_that_was_written(
    gatekeeper: Run, live_server: LiveServer, tmp_path: Path
) -> None:
    set_up(live_server)

    def run(*arguments: object) -> Any:
        token = live_server.tokens["admin"]
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=token)

    queued = run("gate", "run", ROUTE, "equivalence", "--json").json["id"]
    waiting = run("gate", "explain", queued)
    assert waiting.status == 0, waiting.err
    assert "No verdict: the run is pending" in waiting.out
    assert "nothing is known of the text" in waiting.out
    headers = {"Authorization": f"Bearer {live_server.tokens['worker']}"}
    with httpx.Client(base_url=live_server.url, headers=headers, timeout=60) as client:
        said: list[str] = []
        worker = Worker(
            WorkerApi(client, "w1"),
            {"fake": FakeProvider(fault="correction_from_q", agreement=0.2)},
            WorkerOptions(cache=tmp_path, devices=[{"kind": "cpu", "count": 1}], once=True),
            clock=time.monotonic,
            sleep=time.sleep,
            say=said.append,
            lost=said.append,
        )
        assert worker.run() == 0, said
    document = run("gate", "explain", queued, "--json").json
    example = document["run"]["result"]["summary"]["counter_example"]
    assert example["text"] == f"<{example['token']}>"
    printed = " ".join(run("gate", "explain", queued).out.split())
    assert "Failed: with the draft, the model does not write what it would alone" in printed
    assert f"wrote “{example['text']}” (token number {example['token']})" in printed
    assert f"({example['prompt']})" in printed
    verified = {row["id"]: row for row in verify_ledger(live_server.db, live_server.evidence)}
    assert [row["reason"] for row in verified.values() if not row["agrees"]] == []
    ours = [c for c in document["claims"] if c["id"].startswith(f"run/{queued}/")]
    numbers = [c for c in ours if not isinstance(c["value"], str)]
    assert len(numbers) > 30
    for claim in numbers:
        assert verified[claim["id"]]["recomputed"] == pytest.approx(claim["value"], rel=1e-9)
    again = run("gate", "run", ROUTE, "equivalence")
    assert again.status == 2
    assert f"has failed in run {queued}: that stands for this artifact and policy" in again.err
