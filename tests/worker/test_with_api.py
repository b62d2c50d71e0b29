"""The worker against the real API, over real HTTP."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from look_up_artifact import look_up_artifact
from shipped_policies import shipped_policy

from gatekeeper.errors import Conflict
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    from live import LiveServer

SCRIPT = Path(__file__).parents[1] / "worker_process.py"
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


def artifact() -> Any:
    return look_up_artifact("reference")


def policy() -> Any:
    """The demo's, small enough for a test and wide enough for its few tokens."""
    document = shipped_policy("demo")
    document["name"] = "test"
    document |= {"mandatory_gates": ["equivalence", "serving"], "minimum_value": None}
    equivalence, serving = document["equivalence"], document["serving"]
    equivalence |= {"tokens_per_request": 12}
    equivalence["greedy"]["prompts"] = 2
    equivalence["sampled"] |= {"min_tokens": 100, "max_tokens": 600}
    equivalence["tolerance"] |= {"window": 0.3, "bonus": 0.4}
    serving |= {
        "gammas": [4],
        "concurrency": [1],
        "tokens_per_request": 8,
        "requests_per_block": 2,
        "sweep_blocks": 1,
        "confirm_blocks": 5,
        "max_prompt_tokens": 150,
    }
    return document


@pytest.fixture
def server(live_server: LiveServer) -> LiveServer:
    with live_server.client("operator") as operator:
        digest = operator.post("/v1/artifacts", json=artifact()).raise_for_status().json()["digest"]
        with live_server.client("admin") as admin:
            admin.put("/v1/policies/test", json=policy()).raise_for_status()
        body = {"slice": "prose", "artifact": digest, "policy": "test"}
        operator.put("/v1/routes/prose", json=body).raise_for_status()
    return live_server


def submit(server: LiveServer, gate: str) -> Any:
    with server.client("operator") as operator:
        body = {"route": "prose", "gate": gate}
        return operator.post("/v1/gate-runs", json=body).raise_for_status().json()["id"]


def view(server: LiveServer, run_id: str) -> Any:
    with server.client("reader") as reader:
        return reader.get(f"/v1/gate-runs/{run_id}").raise_for_status().json()


def work(server: LiveServer, run_id: str | None = None, **options: Any) -> Any:
    lines, lost = [], []
    provider = FakeProvider("reference", max_context=4096, agreement=0.6, order=2)
    with server.client("worker") as client:
        status = Worker(
            WorkerApi(client, "in-process"),
            {"reference": provider},
            WorkerOptions(
                cache=Path(),
                devices=[{"kind": "cpu", "count": 1, "memory_bytes": 1}],
                once=True,
                run_id=run_id,
                **options,
            ),
            clock=time.monotonic,
            sleep=time.sleep,
            say=lines.append,
            lost=lost.append,
        ).run()
    assert lost == []
    return status, lines


@ON_SQLITE
@pytest.mark.parametrize("gate", ["equivalence", "serving"])
def test_a_run_ends_with_a_verdict_whose_evidence_can_be_read_back(
    server: LiveServer, gate: str
) -> None:
    run_id = submit(server, gate)
    status, lines = work(server, run_id)
    assert status == 0, lines
    done = view(server, run_id)
    assert done["state"] == "finished"
    assert done["result"]["outcome"] in {"PASS", "INCONCLUSIVE", "FAIL"}
    if gate == "equivalence":
        assert done["result"]["outcome"] == "PASS"
    with server.client("reader") as reader:
        for table in done["evidence"]:
            path = f"/v1/gate-runs/{run_id}/evidence/{table['table']}"
            data = reader.get(path).raise_for_status().content
            assert len(pd.read_parquet(io.BytesIO(data))) == table["rows"]


def test_a_killed_worker_is_replaced_and_its_fence_is_dead(server: LiveServer) -> None:
    run_id = submit(server, "equivalence")
    first = start(server, "first", lease_s=1.5, sleep_s=0.2)
    try:
        wait_for(lambda: (view(server, run_id)["progress"] or {}).get("phase") == "equivalence")
        fence = view(server, run_id)["attempt"]
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        assert view(server, run_id)["state"] == "running"  # nobody knows yet
        second = start(server, "second", lease_s=30, sleep_s=0)
        output, _ = second.communicate(timeout=120)
        assert second.returncode == 0, output
    finally:
        first.kill()
        first.communicate()
    done = view(server, run_id)
    assert (done["state"], done["owner"], done["attempt"]) == ("finished", "second", fence + 1)
    with server.client("worker") as worker:
        late = worker.post(f"/v1/runs/{run_id}/heartbeat", json={"fence": 1, "progress": None})
        assert late.status_code == 409


@ON_SQLITE
def test_a_worker_whose_run_was_taken_leaves_at_once(server: LiveServer) -> None:
    run_id = submit(server, "equivalence")
    first = start(server, "first", lease_s=2, sleep_s=0.2)
    try:
        wait_for(lambda: view(server, run_id)["state"] == "running")
        first.send_signal(signal.SIGSTOP)  # a machine that hangs for longer than its lease
        wait_for(lambda: view(server, run_id)["state"] == "pending")
        status, lines = work(server, run_id)
        assert status == 0, lines
        first.send_signal(signal.SIGCONT)
        output, _ = first.communicate(timeout=30)
        assert first.returncode == 4, output
        assert "stopping" in output
    finally:
        first.kill()
        first.communicate()
    assert view(server, run_id)["owner"] == "in-process"


@ON_SQLITE
def test_a_cancelled_run_ends_cancelled(server: LiveServer) -> None:
    run_id = submit(server, "equivalence")
    process = start(server, "first", lease_s=2, sleep_s=0.2)
    wait_for(lambda: view(server, run_id)["state"] == "running")
    with server.client("operator") as operator:
        operator.post(f"/v1/gate-runs/{run_id}/cancel").raise_for_status()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert view(server, run_id)["state"] == "cancelled"


@ON_SQLITE
def test_a_second_start_for_the_same_run_is_refused(server: LiveServer) -> None:
    run_id = submit(server, "equivalence")
    assert work(server, run_id)[0] == 0
    with pytest.raises(Conflict, match="finished"):
        work(server, run_id)


def start(server: LiveServer, name: str, *, lease_s: Any, sleep_s: Any) -> Any:
    command = [sys.executable, str(SCRIPT), server.url, server.tokens["worker"], name]
    return subprocess.Popen(
        [*command, str(lease_s), str(sleep_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Any, seconds: Any = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
