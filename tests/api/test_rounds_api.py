"""The live watch over HTTP: looks and rounds in, bypass out, and only fresh evidence back."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pandas as pd
import pytest

from gatekeeper.actions import decide, watch
from gatekeeper.actions.watch_reference import _expected
from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.running_pair import pair_document
from gatekeeper.reports.route_report import lay_out
from gatekeeper.store import rounds

Api = Any  # the fixture's class lives in conftest
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # one database is enough

TABLE = pd.DataFrame({"request_id": ["a"], "drafted": [4]})
COUNTS = AcceptanceCounts(
    rounds=500,
    drafted=2000,
    accepted=1160,
    requests=40,
    accepted_sq=34_000,
    drafted_sq=100_000,
    accepted_drafted=58_000,
)
WEIGHTS = {"files": {"model.safetensors": "1" * 64}, "dtype": "float32"}
GATED = {
    "engine": "reference",
    "version": "1",
    "weights": hashlib.sha256(json.dumps(WEIGHTS, sort_keys=True).encode()).hexdigest(),
}


def begin(api: Api, gate: str) -> Any:
    return api.claim(run_id=api.submit(gate)).json()["run"]


def end(api: Api, run: Any, gate: str) -> None:
    sha256 = api.upload(run, "rounds", api.parquet(TABLE)).json()["sha256"]
    windows = {"gamma_by_concurrency": {"1": 2, "4": 2}, "envelope": {"max_concurrency": 4}}
    counts = [{"concurrency": c, "gamma": 2, **COUNTS.to_dict()} for c in (1, 4)]
    body = {
        "fence": run["fence"],
        "result": {
            "gate": gate,
            "outcome": "PASS",
            "parts": [{"name": "all", "outcome": "PASS", "detail": "as planned"}],
            "summary": windows if gate == "serving" else {},
            "claims": [],
            "still_needed": None,
        },
        "evidence": {"rounds": sha256},
        "info": {"name": "reference"},
        "acceptance": counts if gate == "serving" else [],
    }
    answer = api.worker.post(f"/v1/runs/{run['id']}/finish", json=body)
    assert answer.is_success, answer.text


def run_gates(api: Api, *gates: str) -> None:
    for gate in gates:
        end(api, begin(api, gate), gate)


@pytest.fixture
def enabled(routed: Api) -> Api:
    run_gates(routed, "equivalence", "serving")
    assert routed.decision()["action"] == "enable"
    return routed


def look(api: Api, rate: float | None = 0.58, *, key: str | None = None, **changes: Any) -> Any:
    body: dict[str, Any] = {"route": "prose", "source": "http://engine", "interval_s": 15.0}
    if rate is not None:
        body |= {"rounds": 1000, "drafted": 4000, "accepted": round(4000 * rate)}
    headers = {} if key is None else {"Idempotency-Key": key}
    sent = {**body, "readings": GATED, **changes}
    return api.clients["ingester"].post("/v1/watches", json=sent, headers=headers)


def seen(answer: Any) -> tuple[str, str, str]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["outcome"], body["decision"]["action"], body["decision"]["reason"]


def alarms(api: Api) -> list[tuple[str, list[str]]]:
    items = api.reader.get("/v1/watches/alarms", params={"route": "prose"}).json()["items"]
    return [(item["reason"], item["needed"]) for item in items]


def test_low_acceptance_bypasses_until_evidence_begun_after_it(enabled: Api) -> None:
    """Shows 8: "flapping after abort"."""
    assert seen(look(enabled)) == ("ok", "enable", "gates_passed")
    early = begin(enabled, "serving")  # what it measures may be from before the alarm
    before = enabled.decision()
    assert seen(look(enabled, 0.1)) == ("alarm", "bypass", "low_acceptance")
    lease = enabled.decision()
    assert (lease["action"], lease["gamma"]) == ("bypass", 0)
    assert lease["version"] > before["version"]
    assert "0.100" in lease["explanation"]
    # with nothing drafted, and with good looks, nothing comes back
    assert seen(look(enabled, None)) == ("unknown", "bypass", "low_acceptance")
    for _ in range(3):
        assert look(enabled).json()["decision"]["action"] == "bypass"
    end(enabled, early, "serving")
    run_gates(enabled, "equivalence")
    enabled.services.reconciler.tick()
    assert enabled.decision()["reason"] == "low_acceptance"
    assert alarms(enabled) == [("low_acceptance", ["serving"])]
    assert decide.contradictions(enabled.services.db) == []
    report = str(lay_out(enabled.reader.get("/v1/reports/prose").json()))
    assert "until evidence begun after the live watch's alarm passes" in report
    assert "what the policy demands of serving: the live watch alarmed" in report
    run_gates(enabled, "serving")
    assert enabled.decision()["reason"] == "gates_passed"
    assert alarms(enabled) == [("low_acceptance", [])]
    assert seen(look(enabled)) == ("ok", "enable", "gates_passed")
    assert seen(look(enabled, 0.1)) == ("alarm", "bypass", "low_acceptance")
    assert len(alarms(enabled)) == 2


@ON_SQLITE
def test_another_version_needs_every_gate_again(enabled: Api) -> None:
    assert seen(look(enabled, 0.99)) == ("alarm", "bypass", "high_acceptance")
    wrong = {**GATED, "version": "2"}
    assert seen(look(enabled, readings=wrong)) == ("alarm", "bypass", "version_mismatch")
    assert look(enabled, readings={**wrong, "model": "m"}).json()["outcome"] == "alarm"
    assert seen(look(enabled, readings={**GATED, "model": "n"}))[2] == "version_mismatch"
    reasons = ("high_acceptance", "version_mismatch", "target_changed")
    assert dict(alarms(enabled)) == {reason: ["equivalence", "serving"] for reason in reasons}
    run_gates(enabled, "serving")
    assert enabled.decision()["reason"] == "version_mismatch"
    run_gates(enabled, "equivalence")
    assert enabled.decision()["action"] == "enable"


@ON_SQLITE
def test_nothing_that_is_seen_enables_and_unknown_is_not_well(routed: Api) -> None:
    assert seen(look(routed))[1:] == ("bypass", "insufficient_evidence")
    assert seen(look(routed, 0.9, problems=["x is missing"]))[0] == "unknown"
    assert (
        seen(look(routed, None, rounds=5, accepted=2))[0] == "ok"
    )  # the window stands for drafted
    impossible = look(routed, None, rounds=5, drafted=4, accepted=9).json()
    assert (impossible["outcome"], impossible["counts"]["rounds"]) == ("unknown", 2005)
    for name in ("memory_utilisation", "drafted", "interval_s"):
        body = {"route": "prose", "source": "s", "interval_s": 1.0, name: 1.0}
        text = json.dumps(body).replace(f'"{name}": 1.0', f'"{name}": NaN')
        headers = {"Content-Type": "application/json"}
        answer = routed.admin.post("/v1/watches", content=text, headers=headers)
        assert answer.status_code == 422, answer.text
    assert routed.clients["ingester"].get("/v1/watches").status_code == 403
    for role in ("reader", "worker", "operator"):
        answer = routed.clients[role].post("/v1/watches", json={})
        assert answer.status_code == 403


@ON_SQLITE
def test_memory_and_queue_and_who_looked_when(routed: Api) -> None:
    pressed: dict[str, Any] = {"memory_utilisation": 0.95, "waiting": 50, "interval_s": 0.02}
    assert seen(look(routed, key="a", **pressed))[0] == "ok"
    assert seen(look(routed, key="a", **pressed))[0] == "ok"  # the same look again
    assert seen(look(routed, key="b", **pressed))[0] == "alarm"
    assert {reason for reason, _ in alarms(routed)} == {"memory_pressure", "draft_overloaded"}
    time.sleep(0.1)
    (one,) = routed.reader.get("/v1/watches", params={"route": "prose"}).json()["items"]
    assert (one["source"], one["looks"], one["overdue"]) == ("http://engine", 2, True)
    assert one["counts"]["drafted"] == 8000
    assert one["last_at"] > one["first_at"]
    trail = routed.admin.get("/v1/audit").json()["items"]
    assert sum(entry["action"] == "watch.alarm" for entry in trail) == 2


@ON_SQLITE
def test_an_override_answers_the_alarms_before_it(routed: Api) -> None:
    def force() -> None:
        body = {"route": "prose", "action": "enable", "gamma": 3, "reason": "known", "ttl_s": 60}
        assert routed.admin.post("/v1/overrides", json=body).status_code == 201

    look(routed, 0.1)
    force()
    assert routed.decision()["reason"] == "override"
    assert seen(look(routed, readings={**GATED, "version": "2"})) == (
        "alarm",
        "bypass",
        "version_mismatch",
    )
    force()
    assert routed.decision()["gamma"] == 3


def test_rounds_are_counted_once_and_judged(enabled: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    http = enabled.clients["ingester"]

    def send(rate: float, key: str | None = None, **changes: Any) -> Any:
        rows = [
            {"request": f"r{i % 50}", "drafted": 10, "accepted": round(10 * rate)}
            for i in range(400)
        ]
        body = {"route": "prose", "source": "gateway", "rounds": rows, **changes}
        return http.post(
            "/v1/rounds", json=body, headers={} if key is None else {"Idempotency-Key": key}
        )

    first = send(0.6, "k")
    assert seen(first) == ("ok", "enable", "gates_passed")
    assert first.json()["counts"]["clusters"]["requests"] == 50
    assert send(0.6, "k").json()["counts"] == first.json()["counts"]
    assert send(0.5, "k").status_code == 409
    other = enabled.register(gamma=3)
    kept = send(0.0, artifact=other).json()  # of another artifact: counted, never held against this
    assert (kept["outcome"], kept["counts"]["drafted"]) == ("unknown", 4000)
    assert send(0.6, artifact="0" * 64).status_code == 404
    assert send(0.6, route="nowhere").status_code == 404
    assert send(0.6, counts={"rounds": 1, "drafted": 1, "accepted": 1}).status_code == 422
    worse = {"request": "r", "drafted": 1, "accepted": 2}
    assert send(0.6, rounds=[worse]).json()["field"] == "rounds[0].accepted"
    summed = {"rounds": 400, "drafted": 4000, "accepted": 400}
    assert seen(send(0.1, rounds=None, counts=summed)) == ("alarm", "bypass", "low_acceptance")
    monkeypatch.setattr(watch, "MAX_WATCHES", 2)
    assert send(0.6, source="third").json()["field"] == "route"
    monkeypatch.setattr(watch, "KEPT_S", -1.0)
    assert send(0.6, "later", source="third").is_success  # the others are silent by now
    with enabled.services.db.read() as session:
        assert rounds.rounds_by_key(session, "k") is None
        assert rounds.rounds_by_key(session, "later") is not None


def test_a_pair_of_servers_is_held_against_what_its_gate_read_back() -> None:
    said = {"url": "u", "model": "m", "version": "b1", "weights": "{}", "fingerprint": "f"}
    urls = ("http://a:1", "http://b:2")
    pair = pair_document(*urls, model=None, gamma=4, version="1")
    summary = {"servers": {"candidate": said, "baseline": {"version": "b0"}}}
    digest = hashlib.sha256(b"{}").hexdigest()
    expected = {"model": "m", "version": "b1", "weights": digest}
    assert _expected(pair, summary) == expected
    assert _expected(pair, {}) == {}
    alias = pair_document(*urls, model="alias", gamma=4, version="1")
    assert "model" not in _expected(alias, summary)
