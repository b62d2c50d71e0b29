"""``gate run --wait`` never waits in silence: queue, workers, progress with the time left."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click
import httpx
import pytest

from gatekeeper.cli import following, queueing
from gatekeeper.cli.next_steps import gates_lacking

if TYPE_CHECKING:
    from live import LiveServer

ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


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
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    progress = {"phase": "confirm", "done": 2.0, "total": 5.0, "seconds_left": 30.0}
    states = [run("pending"), run("running", progress=progress), run("finished")]
    before = {"id": "before", "priority": 0}
    http = served(states, {"pending": [before, {"id": "zz", "priority": 0}]})
    assert following.follow(http, "mine", quiet=False)["state"] == "finished"
    said = capsys.readouterr()
    assert said.out == ""
    waits, runs, ended = said.err.splitlines()
    assert "1 in the queue before it; no worker has taken a run" in waits
    assert "gatekeeper worker" in waits
    assert "running: confirm 2/5, about 30 s left" in runs
    assert ended.endswith("finished")


def test_a_busy_worker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    http = served([run("pending")], {"running": [{"id": "theirs"}]})
    assert following._waits(http, run("pending")) == (
        "pending, 0 in the queue before it; workers are at theirs"
    )
    assert following.follow(served([run("cancelled")], {}), "mine", quiet=True)
    assert capsys.readouterr().err == ""


PAIR = ("--baseline-url", "http://127.0.0.1:8000", "--candidate-url", "http://127.0.0.1:8001")


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run that is followed ends as a PASS; what the server decides is its own."""

    def follow(http: httpx.Client, run_id: str, *, quiet: bool) -> dict[str, Any]:
        del quiet
        view: dict[str, Any] = http.get(f"/v1/gate-runs/{run_id}").json()
        return {**view, "state": "finished", "outcome": "PASS"}

    monkeypatch.setattr(following, "follow", follow)


@pytest.fixture
def admin(gatekeeper: Any, live_server: LiveServer) -> Any:
    def typed(*arguments: object) -> Any:
        token = live_server.tokens["admin"]
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=token)

    return typed


@ON_SQLITE
@pytest.mark.usefixtures("passing")
def test_a_pair_whose_outcome_nobody_measured_is_no_success(admin: Any) -> None:
    done = admin("gate", "run", "--route", "calls", *PAIR, "--wait")
    assert done.status == 1, done.err
    (unmet,) = [line for line in done.out.splitlines() if line.startswith("no success")]
    assert unmet.endswith(
        "must pass, equivalence has not run, serving has not run, outcome has not run"
    )
    assert "outcome cannot be measured on servers that already run" in done.out
    again = admin("gate", "run", "calls", "--wait", "--json")  # the route knows what it serves
    assert again.status == 1, again.err
    assert [run["gate"] for run in again.json["items"]] == ["equivalence", "serving"]
    assert again.json["lacking"][-1] == "outcome has not run"


@ON_SQLITE
@pytest.mark.usefixtures("passing", "enabled")
def test_every_gate_passed_is_a_success(admin: Any) -> None:
    done = admin("gate", "run", "prose", "--wait")
    assert done.status == 0, done.out
    assert "no success" not in done.out
    assert admin("gate", "run", "prose", "serving", "--wait").status == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"state": "current", "outcome": "PASS"}, []),
        ({"state": "expired", "outcome": "PASS"}, ["serving has expired"]),
        ({"state": "current", "outcome": "INCONCLUSIVE"}, ["serving is INCONCLUSIVE"]),
        ({"state": "missing", "outcome": None}, ["serving has not run"]),
    ],
)
def test_only_a_current_pass_counts(row: dict[str, Any], said: list[str]) -> None:
    asked = {"gate": "serving", "mandatory": True, **row}
    assert gates_lacking({"gates": [asked, {**asked, "mandatory": False}]}) == said


@ON_SQLITE
def test_the_same_run_is_not_queued_twice(admin: Any) -> None:
    run = ("gate", "run", "--route", "calls", *PAIR)
    first = admin(*run, "--json").json["items"]
    again = admin(*run)
    for view in first:
        attached = f"attached to run {view['id']}: this {view['gate']} run is pending already"
        assert attached in again.out
    assert len(admin("gate", "list", "--json").json["items"]) == len(first)
    more_urgent = admin(*run, "--priority", "3").out
    assert more_urgent.count("with priority 0") == len(first)
    for view in first:
        admin("gate", "cancel", view["id"])
    other = admin(*run, "--json").json["items"]
    assert not {view["id"] for view in other} & {view["id"] for view in first}
    seeded = admin(*run, "--seed", "7", "--json").json["items"]
    assert not {view["id"] for view in seeded} & {view["id"] for view in other}


def test_whose_evidence_a_run_goes_on_with_is_said() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/gate-runs/before"
        return httpx.Response(200, json={"result": {"summary": {"tokens": 12345}}})

    http = httpx.Client(base_url="http://api", transport=httpx.MockTransport(answer))
    view = {"id": "mine", "parameters": {"continues": {"run": "before"}}}
    assert queueing._goes_on(http, view) == [
        "run mine goes on with run before's evidence: 12\u202f345 tokens"
    ]
    assert queueing._goes_on(http, {"id": "mine", "parameters": {}}) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_wait_says_how_to_come_back(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    # who started the tests may have them ignore it
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, ignored))
    views = {
        "r1": {"id": "r1", "gate": "equivalence", "state": "finished"},
        "r2": {"id": "r2", "gate": "serving", "state": "running"},
    }
    before = signal.getsignal(signal.SIGTERM)

    def wait() -> None:
        with following.coming_back(views, "gatekeeper gate run chat --wait"):
            os.kill(os.getpid(), number)
            time.sleep(10)

    with pytest.raises(click.Abort):
        wait()
    said = capsys.readouterr().err
    assert "not cancelled: serving run r2\n" in said
    assert "gatekeeper gate show r2" in said
    assert "wait again: gatekeeper gate run chat --wait" in said
    assert "r1" not in said
    assert signal.getsignal(signal.SIGTERM) is before
