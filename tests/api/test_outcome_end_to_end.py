"""All three gates over HTTP with the real worker: the outcome run takes its load from serving."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from reported import FAST, artifact
from shipped_policies import shipped_policy

from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.testing import FakeEngine, FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions
from gatekeeper.workloads import tasks as task_suite
from gatekeeper.workloads.tasks import Task

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer

pytestmark = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


def policy() -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("demo")
    document |= {
        "name": "three",
        "mandatory_gates": ["equivalence", "serving", "outcome"],
        "minimum_value": None,
    }
    document["serving"] |= {"tokens_per_request": 8, "max_prompt_tokens": 400}
    document["serving"] |= {"gammas": [2], "concurrency": [1, 3]}
    document["equivalence"]["tolerance"] |= {"window": 0.2, "bonus": 0.3}
    document["outcome"] |= {"pairs": 80, "samples": 2, "max_tokens": 6, "concurrency": 2}
    return document


def usual_text() -> tuple[Task, ...]:
    """Tasks that the fake engine's target solves often: every token a usual successor."""
    usual = np.argsort(-FakeEngine()._target, axis=1)[:, :12]

    def plausible(text: str) -> bool:
        ids = [int(token) for token in re.findall(r"<(\d+)>", text)]
        return all(b in usual[a] for a, b in itertools.pairwise(ids))

    return tuple(Task(f"task-{i}", "copy", "x" * (3 + i), "", plausible) for i in range(40))


@pytest.fixture
def server(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> LiveServer:
    monkeypatch.setattr(task_suite, "suite", usual_text)
    with live_server.client("admin") as admin:
        digest = (
            admin.post("/v1/artifacts", json=artifact(gamma=4)).raise_for_status().json()["digest"]
        )
        admin.put("/v1/policies/three", json=policy()).raise_for_status()
        route = {"slice": "prose", "artifact": digest, "policy": "three"}
        admin.put("/v1/routes/prose", json=route).raise_for_status()
    return live_server


def submit(server: LiveServer, gate: str, **more: Any) -> Any:
    with server.client("operator") as operator:
        body = {"route": "prose", "gate": gate, **more}
        headers = {"Idempotency-Key": f"{gate}-once"}
        return operator.post("/v1/gate-runs", json=body, headers=headers)


def work(server: LiveServer, cache: Path, times: int) -> None:
    spent = [0.0]
    said: list[str] = []

    def spend(seconds: float) -> None:
        spent[0] += seconds

    provider = FakeProvider(costs=FAST, spend=spend, agreement=0.9)
    for _ in range(times):
        with server.client("worker") as client:
            status = Worker(
                WorkerApi(client, "w1"),
                {"fake": provider},
                WorkerOptions(cache=cache, devices=[{"kind": "cpu", "count": 1}], once=True),
                clock=lambda: spent[0],
                sleep=time.sleep,
                say=said.append,
                lost=said.append,
            ).run()
        assert status == 0, said


def view(server: LiveServer, path: str) -> Any:
    with server.client("reader") as reader:
        return reader.get(path).raise_for_status().json()


def test_three_gates_lead_to_an_enable_and_the_ledger_judges_the_pairs_anew(
    server: LiveServer, tmp_path: Path
) -> None:
    first = None
    for gate in ("equivalence", "serving", "outcome"):
        first = submit(server, gate)
        assert first.is_success
    # not yet known what serving will confirm
    assert first.json()["parameters"] == {"gamma": 4, "concurrency": 2}
    work(server, tmp_path, 2)
    assert view(server, "/v1/routes/prose/decision")["reason"] == "insufficient_evidence"
    again = submit(server, "outcome")
    assert (first.status_code, again.status_code) == (201, 200)
    assert submit(server, "outcome", parameters={"seed": 3}).status_code == 409
    run_id = first.json()["id"]
    windows = next(
        view(server, f"/v1/gate-runs/{run['id']}")["result"]["summary"]["gamma_by_concurrency"]
        for run in view(server, "/v1/gate-runs")["items"]
        if run["gate"] == "serving"
    )
    # 3 passes too, but the budget stops at 2
    assert set(windows) == {"1", "3"}
    work(server, tmp_path, 1)
    result = view(server, f"/v1/gate-runs/{run_id}")["result"]
    assert result["outcome"] == "PASS", result["parts"]
    summary = result["summary"]
    assert (summary["gamma"], summary["concurrency"]) == (windows["1"], 1)
    lease = view(server, "/v1/routes/prose/decision")
    assert (lease["action"], lease["reason"]) == ("enable", "gates_passed")
    rows = verify_ledger(server.db, server.evidence)
    assert [row["reason"] for row in rows if not row["agrees"]] == []
    named = {row["id"] for row in rows}
    assert f"run/{run_id}/summary.pairs_needed" in named
    assert f"run/{run_id}/outcome.cost_ratio.high" in named

    [stored] = view(server, f"/v1/gate-runs/{run_id}")["evidence"]
    [path] = server.evidence.rglob(f"*{stored['sha256']}*")
    table = pd.read_parquet(path)
    table["candidate_success"] = 1
    table.to_parquet(path, index=False)
    wrong = [r for r in verify_ledger(server.db, server.evidence) if not r["agrees"]]
    assert {row["id"].split("/")[1] for row in wrong} == {run_id}
    assert {row["cause"] for row in wrong} <= {"evidence_changed", "not_computable"}


def test_without_a_serving_result_the_artifacts_window_and_the_budget_hold(
    server: LiveServer,
) -> None:
    body = {"route": "prose", "gate": "outcome"}
    with server.client("operator") as operator:
        plan = operator.post("/v1/gate-runs", params={"plan": "true"}, json=body).json()
        refused = operator.post("/v1/gate-runs", json={**body, "parameters": {"gamma": 9}})
    assert (plan["gamma"], plan["concurrency"], plan["pairs"]) == (4, 2, 80)
    assert plan["minutes"] is None
    assert plan["tokens"] == 960
    assert "power" in plan["attainable_power"]
    assert refused.status_code == 422
    assert refused.json()["field"] == "parameters.gamma"
    run_id = submit(server, "outcome").json()["id"]
    assert view(server, f"/v1/gate-runs/{run_id}")["parameters"] == {"gamma": 4, "concurrency": 2}
