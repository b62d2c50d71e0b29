from __future__ import annotations

import time
from typing import Any

import pandas as pd
import pytest
from shipped_policies import shipped_policy

from gatekeeper.actions import queue
from gatekeeper.errors import Unavailable
from gatekeeper.store import schema

Api = Any  # the fixture's class lives in conftest

ROUNDS = pd.DataFrame(
    {
        "request_id": ["a", "a", "b"],
        "index": [0, 1, 0],
        "gamma": [4, 4, 4],
        "drafted": [4, 4, 2],
        "accepted": [4, 1, 2],
        "rejection_position": pd.array([None, 1, None], dtype="Int64"),
        "committed": [5, 2, 3],
        "draft_s": [0.1] * 3,
        "verify_s": [0.2] * 3,
        "correction_s": [0.0] * 3,
        "transfer_s": [0.0] * 3,
        "memory_bytes": [1] * 3,
        "batch": [1] * 3,
        "context": [10, 15, 12],
    }
)


def result(gate: str = "serving", outcome: str = "PASS", **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "gate": gate,
        "outcome": outcome,
        "parts": [{"name": "all", "outcome": outcome, "detail": "as planned"}],
        "summary": {"gamma_by_concurrency": {"1": 2, "4": 2}, "envelope": {"max_concurrency": 4}},
        "claims": [
            {
                "id": "acceptance",
                "equation": "acceptance.rate",
                "inputs": {"table": "rounds"},
                "value": 0.7,
                "unit": "share",
                "status": "measured",
                "source": "test",
            }
        ],
        "still_needed": None,
    }
    return {**document, **changes}


def run_gate(api: Api, gate: str, **changes: Any) -> Any:
    """Submit, claim, upload and finish one run; return the answer to finish."""
    return end_gate(api, api.submit(gate), gate, **changes)


def end_gate(api: Api, run_id: str, gate: str, **changes: Any) -> Any:
    """Claim, upload and finish a run that was submitted."""
    run = api.claim(run_id=run_id).json()["run"]
    uploaded = api.upload(run, "rounds", api.parquet(ROUNDS))
    assert uploaded.status_code == 201, uploaded.text
    sha256 = uploaded.json()["sha256"]
    return api.finish(run, result(gate, **changes), {"rounds": sha256})


def problem(answer: Any, status: int, field: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["field"] == field
    assert body["remedy"]
    return body


def test_from_queue_to_enable(routed: Api) -> None:
    assert routed.decision()["reason"] == "insufficient_evidence"
    for gate in ("equivalence", "serving"):
        assert run_gate(routed, gate).status_code == 200
    lease = routed.decision()
    assert (lease["action"], lease["gamma"], lease["reason"]) == ("enable", 2, "gates_passed")
    assert lease["envelope"]["max_concurrency"] == 4
    assert 0 < lease["ttl_s"] <= 60
    runs = routed.reader.get("/v1/gate-runs").json()["items"]
    assert [r["outcome"] for r in runs] == ["PASS", "PASS"]
    detail = routed.reader.get(f"/v1/gate-runs/{runs[0]['id']}").json()
    assert detail["result"]["summary"]["envelope"] == {"max_concurrency": 4}
    assert detail["evidence"][0]["rows"] == 3
    ledger = {c["id"]: c for c in routed.reader.get("/v1/claims").json()["items"]}
    claim = ledger[f"run/{runs[0]['id']}/acceptance"]
    assert claim["inputs"] == {"table": "rounds", "evidence": detail["evidence"][0]["sha256"]}
    back = routed.reader.get(f"/v1/gate-runs/{runs[0]['id']}/evidence/rounds")
    assert back.content == routed.parquet(ROUNDS)


def test_a_fail_stands_however_often_the_gate_is_repeated(routed: Api) -> None:
    queued = routed.submit("equivalence")
    assert end_gate(routed, routed.submit("equivalence"), "equivalence", outcome="FAIL").is_success
    assert end_gate(routed, queued, "equivalence").is_success  # it was in the queue already
    assert run_gate(routed, "serving").is_success
    assert routed.decision()["reason"] == "equivalence_failed"
    body = {"route": "prose", "gate": "equivalence"}
    refused = problem(routed.operator.post("/v1/gate-runs", json=body), 409, "gate")
    assert "has failed in run" in refused["detail"]
    digest = routed.register(gamma=3)
    routed.operator.put("/v1/artifacts/aliases/current", json={"digest": digest})
    assert routed.decision()["reason"] == "insufficient_evidence"
    assert routed.submit("equivalence")


def test_a_false_claim_stores_nothing(routed: Api) -> None:
    claims = [{**result()["claims"][0], "value": 0.71}]
    answer = run_gate(routed, "serving", claims=claims)
    assert answer.status_code == 422
    assert answer.json()["title"] == "Evidence does not hold"
    (run,) = routed.reader.get("/v1/gate-runs").json()["items"]
    assert (run["state"], run["outcome"]) == ("running", None)
    assert not [
        c for c in routed.reader.get("/v1/claims").json()["items"] if c["id"].startswith("run/")
    ]


def test_a_pass_without_evidence_is_refused(routed: Api) -> None:
    routed.submit()
    run = routed.claim().json()["run"]
    answer = routed.finish(run, result(claims=[]), {})
    problem(answer, 422, "evidence")


def test_evidence_announced_but_not_uploaded_is_refused(routed: Api) -> None:
    routed.submit()
    run = routed.claim().json()["run"]
    answer = routed.finish(run, result(), {"rounds": "0" * 64})
    problem(answer, 422, "evidence.rounds")


def test_a_table_with_broken_pages_supports_no_figure(routed: Api) -> None:
    routed.submit()
    run = routed.claim().json()["run"]
    data = bytearray(routed.parquet(ROUNDS))
    data[4:60] = b"\xff" * 56  # the footer, all that an upload reads, stays whole
    sha256 = routed.upload(run, "rounds", bytes(data)).json()["sha256"]
    answer = routed.finish(run, result(), {"rounds": sha256})
    assert "cannot be read" in problem(answer, 422, f"run/{run['id']}/acceptance")["detail"]


def test_a_broken_upload_leaves_nothing(routed: Api) -> None:
    routed.submit()
    run = routed.claim().json()["run"]
    data = routed.parquet(ROUNDS)
    wrong = routed.upload(run, "rounds", data, headers={"X-Content-SHA256": "0" * 64})
    problem(wrong, 422, "X-Content-SHA256")
    problem(routed.upload(run, "rounds", b"not parquet"), 422, "body")
    stale = routed.upload(run, "rounds", data, fence=run["fence"] - 1)
    problem(stale, 409, "fence")
    assert [p for p in routed.services.evidence.rglob("*") if p.is_file()] == []
    assert routed.reader.get(f"/v1/gate-runs/{run['id']}/evidence").json()["items"] == []


def test_the_fenced_out_worker_cannot_write(routed: Api) -> None:
    run_id = routed.submit()
    zombie = routed.claim(lease_s=0.05).json()["run"]
    data = routed.parquet(ROUNDS)
    sha256 = routed.upload(zombie, "rounds", data).json()["sha256"]
    time.sleep(0.1)
    owner = routed.claim(worker="w2").json()["run"]
    assert owner["id"] == run_id
    assert owner["fence"] == zombie["fence"] + 1
    assert owner["attempt"] == 2
    late = [
        routed.worker.post(f"/v1/runs/{run_id}/heartbeat", json={"fence": zombie["fence"]}),
        routed.upload(zombie, "rounds", data),
        routed.finish(zombie, result(), {"rounds": sha256}),
        routed.worker.post(
            f"/v1/runs/{run_id}/fail",
            json={"fence": zombie["fence"], "error": "late", "retry": False},
        ),
    ]
    for answer in late:
        assert problem(answer, 409, "fence")["title"] == "Fenced out"
    # the zombie's table is not the owner's
    problem(routed.finish(owner, result(), {"rounds": sha256}), 422, "evidence.rounds")
    routed.upload(owner, "rounds", data)
    assert routed.finish(owner, result(), {"rounds": sha256}).is_success
    (view,) = routed.reader.get("/v1/gate-runs").json()["items"]
    assert (view["state"], view["owner"]) == ("finished", "w2")


def test_the_reaper_ends_a_run_nobody_can_finish(routed: Api) -> None:
    run_id = routed.submit()
    for attempt in (1, 2, 3):
        run = routed.claim(lease_s=0.02).json()["run"]
        assert run["attempt"] == attempt
        time.sleep(0.05)
        routed.services.reconciler.tick()
    view = routed.reader.get(f"/v1/gate-runs/{run_id}").json()
    assert (view["state"], view["outcome"]) == ("failed", "ERROR")
    lease = routed.decision()
    assert (lease["action"], lease["reason"]) == ("bypass", "insufficient_evidence")


def test_a_heartbeat_renews_and_tells_of_a_cancellation(routed: Api) -> None:
    run_id = routed.submit()
    run = routed.claim(lease_s=5).json()["run"]
    beat = {"fence": run["fence"], "progress": {"phase": "sweep", "done": 1, "total": 4}}
    first = routed.worker.post(f"/v1/runs/{run_id}/heartbeat", json=beat).json()
    assert first["cancel_requested"] is False
    assert first["lease_until"] > run["lease_until"]
    progress = routed.reader.get(f"/v1/gate-runs/{run_id}").json()["progress"]
    assert (progress["phase"], progress["done"]) == ("sweep", 1)
    assert routed.operator.post(f"/v1/gate-runs/{run_id}/cancel").is_success
    second = routed.worker.post(f"/v1/runs/{run_id}/heartbeat", json={"fence": run["fence"]})
    assert second.json()["cancel_requested"] is True
    cancelled = result(outcome="CANCELLED", claims=[])
    assert routed.finish(run, cancelled, {}).is_success
    assert routed.reader.get(f"/v1/gate-runs/{run_id}").json()["state"] == "cancelled"
    again = routed.operator.post(f"/v1/gate-runs/{run_id}/cancel")
    problem(again, 409, "run")


def test_a_failed_run_is_retried_then_an_error(routed: Api) -> None:
    run_id = routed.submit()
    states = []
    for retry in (True, False):
        run = routed.claim().json()["run"]
        body = {"fence": run["fence"], "error": "out of memory", "retry": retry}
        states.append(routed.worker.post(f"/v1/runs/{run_id}/fail", json=body).json()["state"])
    assert states == ["pending", "failed"]


def test_nothing_to_do_and_wrong_worker(routed: Api) -> None:
    assert routed.claim().status_code == 204
    run_id = routed.submit()
    other = [{"name": "vllm", "version": "9"}]
    assert routed.claim(engines=other).status_code == 204
    problem(routed.claim(engines=other, run_id=run_id), 409, "run_id")
    view = routed.reader.get(f"/v1/gate-runs/{run_id}").json()
    assert view["state"] == "pending"
    assert "pip install" in view["waiting_for"]
    assert routed.claim(run_id=run_id).status_code == 200
    problem(routed.claim(run_id=run_id), 409, "run_id")
    problem(routed.claim(run_id="nowhere"), 404, "run")


def test_one_key_is_one_run(routed: Api) -> None:
    body = {"route": "prose", "gate": "serving"}
    headers = {"Idempotency-Key": "once"}
    first = routed.operator.post("/v1/gate-runs", json=body, headers=headers)
    second = routed.operator.post("/v1/gate-runs", json=body, headers=headers)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    other = {"route": "prose", "gate": "equivalence"}
    clash = routed.operator.post("/v1/gate-runs", json=other, headers=headers)
    problem(clash, 409, "Idempotency-Key")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"route": "nowhere", "gate": "serving"}, 404, "route"),
        ({"route": "prose", "gate": "speed"}, 422, "gate"),
        ({"route": "prose", "gate": "serving", "parameters": {"sed": 1}}, 422, "parameters.sed"),
        ({"route": "prose", "gate": "serving", "prio": 1}, 422, "prio"),
    ],
)
def test_a_run_that_cannot_be_queued(
    routed: Api, body: dict[str, Any], status: int, field: str
) -> None:
    problem(routed.operator.post("/v1/gate-runs", json=body), status, field)
    assert routed.reader.get("/v1/gate-runs").json()["items"] == []


@pytest.mark.parametrize("gate", ["equivalence", "serving", "outcome"])
def test_a_plan_costs_nothing(routed: Api, gate: str) -> None:
    answer = routed.operator.post(
        "/v1/gate-runs", params={"plan": "true"}, json={"route": "prose", "gate": gate}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["tokens"]
    assert answer.json()["minutes"] is None
    assert routed.reader.get("/v1/gate-runs").json()["items"] == []


def planned(api: Api, gate: str) -> dict[str, Any]:
    answer = api.operator.post(
        "/v1/gate-runs", params={"plan": "true"}, json={"route": "prose", "gate": gate}
    )
    plan: dict[str, Any] = answer.json()
    return plan


def test_a_plan_tells_the_minutes_that_the_last_run_took(routed: Api) -> None:
    assert run_gate(routed, "serving").is_success
    rates = {"decode_tokens_per_s": 20.0, "score_tokens_per_s": 30.0}
    slow = {"info": {"details": {"rates": rates}}, "started_at": 1000.0, "finished_at": 1066.0}
    with routed.services.db.write() as session:
        session.execute(schema.run.update().values(started_at=1000.0, finished_at=1090.0))
    assert planned(routed, "serving")["minutes"] == pytest.approx(1.5)
    assert planned(routed, "serving")["minutes_from"] == "last_run"
    # speeds are the equivalence gate's, and another gate's run takes another time
    assert (planned(routed, "equivalence")["minutes"]) is None
    assert run_gate(routed, "equivalence", outcome="INCONCLUSIVE").is_success
    of_equivalence = schema.run.c.gate == "equivalence"
    with routed.services.db.write() as session:
        session.execute(schema.run.update().where(of_equivalence).values(**slow))
    assert planned(routed, "equivalence")["minutes"] == pytest.approx(1.1)
    assert planned(routed, "serving")["minutes"] == pytest.approx(1.5)
    whole = planned(routed, "outcome")
    assert whole["minutes_from"] == "speeds"
    assert whole["slice"] is None
    assert planned(routed, "serving")["slice"] == "prose"
    # taken up again after a loss: the time between is no measurement
    with routed.services.db.write() as session:
        session.execute(schema.run.update().values(attempt=2))
    assert planned(routed, "serving")["minutes_from"] == "speeds"
    # a forward that scores reads prompts too: they are no slower to read than answers
    read = {"details": {"rates": {**rates, "read_tokens_per_s": 210.0}}}
    with routed.services.db.write() as session:
        session.execute(schema.run.update().where(of_equivalence).values(info=read))
    assert planned(routed, "outcome")["minutes"] == pytest.approx(
        (whole["tokens"] / 20 + whole["prompt_tokens"] / 210) / 60
    )
    assert planned(routed, "outcome")["minutes"] < whole["minutes"] / 2


class Recorder:
    """An executor that starts nothing."""

    name = "recorder"

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.asked: list[tuple[str, int]] = []

    def submit(self, run_id: str, attempt: int, requirements: Any) -> str:
        self.asked.append((run_id, attempt))
        if self.broken:
            raise Unavailable("no capacity", field="executor")
        return f"job-{run_id}-{attempt}"

    def stop(self, job_id: str) -> None:
        raise AssertionError(job_id)


def test_an_executor_is_asked_once_for_each_attempt(routed: Api) -> None:
    run_id = routed.submit()
    executor = Recorder()
    db = routed.services.db
    assert [queue.dispatch(db, executor) for _ in range(2)] == [1, 0]
    assert routed.reader.get(f"/v1/gate-runs/{run_id}").json()["executor_job_id"] == (
        f"job-{run_id}-1"
    )
    run = routed.claim().json()["run"]
    body = {"fence": run["fence"], "error": "killed", "retry": True}
    routed.worker.post(f"/v1/runs/{run_id}/fail", json=body)
    queue.dispatch(db, executor)
    assert executor.asked == [(run_id, 1), (run_id, 2)]


def test_a_broken_executor_leaves_the_run_to_any_worker(routed: Api) -> None:
    run_id = routed.submit()
    assert queue.dispatch(routed.services.db, Recorder(broken=True)) == 0
    assert routed.claim().json()["run"]["id"] == run_id


def test_hysteresis_delays_an_enable_and_the_reconciler_grants_it(routed: Api) -> None:
    document = shipped_policy("ci")
    document["hysteresis_s"] = 4.0
    assert routed.admin.put("/v1/policies/ci", json=document).is_success
    for gate in ("equivalence", "serving"):
        assert run_gate(routed, gate).is_success
    waiting = routed.decision()
    assert waiting["action"] == "bypass"
    assert "must hold until" in waiting["explanation"]
    assert waiting["ttl_s"] <= 4.0
    time.sleep(4.1)  # a lease lapses before its decision may change: its lifetime is shorter
    routed.services.reconciler.tick()
    assert routed.decision()["action"] == "enable"


def test_evidence_that_expires_takes_the_enable_with_it(routed: Api) -> None:
    document = shipped_policy("ci")
    document["evidence_ttl_s"] = 5.0
    assert routed.admin.put("/v1/policies/ci", json=document).is_success
    for gate in ("equivalence", "serving"):
        assert run_gate(routed, gate).is_success
    lease = routed.decision()
    assert lease["action"] == "enable"
    assert lease["ttl_s"] <= 5.0
    time.sleep(5.1)  # a lease lapses before its evidence does: its lifetime is shorter
    after = routed.decision()
    assert (after["action"], after["reason"]) == ("bypass", "insufficient_evidence")
    assert "expired" in after["explanation"]
