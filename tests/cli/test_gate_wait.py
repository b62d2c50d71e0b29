"""``gate run --wait`` never waits in silence: queue, workers, progress with the time left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.cli import gate

if TYPE_CHECKING:
    import pytest


def served(states: list[dict[str, Any]], others: dict[str, list[dict[str, Any]]]) -> httpx.Client:
    """A server whose run goes through ``states``, beside other runs by their state."""
    left = list(states)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/mine"):
            return httpx.Response(200, json=left.pop(0) if len(left) > 1 else left[0])
        items = others.get(str(request.url.params["state"]), [])
        return httpx.Response(200, json={"items": items, "next": None})

    return httpx.Client(base_url="http://api", transport=httpx.MockTransport(answer))


def run(state: str, **more: Any) -> dict[str, Any]:
    base = {"id": "mine", "gate": "serving", "priority": 0, "progress": None}
    return {**base, "state": state, "waiting_for": "any worker: gatekeeper worker", **more}


def test_a_run_that_waits_and_runs_says_so_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "_POLL_S", 0.0)
    progress = {"phase": "confirm", "done": 2, "total": 5, "seconds_left": 30.0}
    states = [run("pending"), run("running", progress=progress), run("finished")]
    before = {"id": "before", "priority": 0}
    http = served(states, {"pending": [before, {"id": "zz", "priority": 0}]})
    assert gate._follow(http, "mine", quiet=False)["state"] == "finished"
    said = capsys.readouterr()
    assert said.out == ""
    waits, runs, ended = said.err.splitlines()
    assert "1 in the queue before it; no worker has taken a run" in waits
    assert "gatekeeper worker" in waits
    assert "running: confirm 2/5, about 30 s left" in runs
    assert ended.endswith("finished")


def test_a_busy_worker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    http = served([run("pending")], {"running": [{"id": "theirs"}]})
    assert gate._waits(http, run("pending")) == (
        "pending, 0 in the queue before it; workers are at theirs"
    )
    assert gate._follow(served([run("cancelled")], {}), "mine", quiet=True)
    assert capsys.readouterr().err == ""
