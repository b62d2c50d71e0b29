from __future__ import annotations

import time
from importlib.resources import files
from typing import Any

import pandas as pd
import pytest
from pricing_cases import serving
from sqlalchemy import select
from value_rollout import PASS, Rollout, add_tasks, economics, policy

from gatekeeper.actions import price, pricing_due
from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.store import schema, schema_traces, schema_value

Api = Any  # the fixture's class lives in conftest


@pytest.fixture
def priced(routed: Api) -> Rollout:
    """A route under a policy with a minimum value, with prices and tasks and no gate yet."""
    rollout = Rollout(routed.clients, routed)
    rollout.apply()
    routed.route(policy="priced")
    add_tasks(routed.services.db)
    return rollout


def wrong(rollout: Rollout) -> set[str]:
    services = rollout.api.services
    return {r["id"] for r in verify_ledger(services.db, services.evidence) if not r["agrees"]}


BAD = {name: ("FAIL", {}) for name in PASS}
SLOW = serving(1.05, spread=0.01)
NOISY = serving(1.2, spread=0.3)
ENVELOPE = {"envelope": {"max_concurrency": 2}}
NO_REGION = {"gamma_by_concurrency": {"1": 0, "2": 0}, "regions": [], **ENVELOPE}


TABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "gates_passed"),
    # each failure decides, whatever comes after it, and in the order of the gates
    ({"equivalence": BAD["equivalence"]}, "equivalence_failed"),
    (dict(BAD), "equivalence_failed"),
    ({"serving": BAD["serving"]}, "serving_failed"),
    ({"serving": ("PASS", NO_REGION)}, "serving_failed"),
    ({"serving": BAD["serving"], "outcome": BAD["outcome"]}, "serving_failed"),
    ({"outcome": BAD["outcome"]}, "outcome_failed"),
    # value below, and astride of, the minimum
    ({"serving": ("PASS", SLOW | ENVELOPE)}, "value_negligible"),
    ({"serving": ("PASS", NOISY | ENVELOPE)}, "insufficient_evidence"),
    # everything unclear
    *[
        ({gate: (outcome, {})}, "insufficient_evidence")
        for gate in PASS
        for outcome in ("INCONCLUSIVE", "ERROR")
    ],
    *[({gate: None}, "insufficient_evidence") for gate in PASS],
]


def test_every_row_of_the_decision_table(priced: Rollout) -> None:
    for index, (gates, reason) in enumerate(TABLE):
        route = f"row-{index}"
        priced.api.route(route, policy="priced")
        add_tasks(priced.api.services.db, route)
        priced.gates(route, **gates)
        lease = priced.api.decision(route)
        assert lease["reason"] == reason, (gates, lease["explanation"])
        assert lease["action"] == ("enable" if reason == "gates_passed" else "bypass")
        if reason == "gates_passed":
            assert lease["value"]["low"] > 0.001
            assert lease["gamma_by_concurrency"] == {"2": 4}
        if reason == "outcome_failed":
            for cause in ("configuration", "stopping", "structured decoding", "application"):
                assert cause in lease["explanation"]
        if reason == "insufficient_evidence":
            assert "still needed: " in lease["explanation"]
    assert wrong(priced) - {f"run/{r}/summary" for r in _runs(priced)} == set()


def _runs(rollout: Rollout) -> list[str]:
    """Runs whose stand-in evidence no gate could judge again."""
    items = rollout.api.reader.get("/v1/gate-runs", params={"limit": 500}).json()["items"]
    return [run["id"] for run in items]


@pytest.mark.parametrize(
    ("allowed", "deviation", "reason"),
    [
        (True, [{"deviation": 0.01}], "gates_passed"),
        (True, None, "insufficient_evidence"),
        (False, [{"deviation": 0.01}], "equivalence_failed"),
    ],
)
def test_an_approximate_artifact_needs_leave_and_a_measured_deviation(
    priced: Rollout, *, allowed: bool, deviation: Any, reason: str
) -> None:
    api = priced.api
    priced.apply(policy_changes={"allow_approximate": allowed})
    document = api.document(acceptance={"method": "typical", "contract": "approximate"})
    answer = api.operator.post("/v1/artifacts", json=document)
    if not answer.is_success:
        pytest.fail(answer.text)
    api.operator.put("/v1/artifacts/aliases/current", json={"digest": answer.json()["digest"]})
    summary = {} if deviation is None else {"tolerance": deviation}
    priced.gates(equivalence=("PASS", summary))
    lease = api.decision()
    assert lease["reason"] == reason, lease["explanation"]
    assert ("approximate" in lease["explanation"]) or reason == "insufficient_evidence"


def test_the_route_is_decided_once_with_its_value(priced: Rollout) -> None:
    priced.gates()
    items = priced.api.reader.get("/v1/decisions", params={"route": "prose"}).json()["items"]
    assert items[0]["action"] == "enable"
    # never a decision in between that lacked the value of what had just been measured
    needed = [item["document"]["explanation"] for item in items]
    assert not [text for text in needed if "follows within seconds" in text]
    total = priced.value()["total"]
    lease = priced.api.decision()
    assert lease["value"] == {**total, "currency": "EUR"}


def test_a_hundredth_of_the_price_of_a_second_turns_the_enable_into_negligible(
    priced: Rollout,
) -> None:
    priced.gates()
    before = priced.api.decision()
    assert before["action"] == "enable"
    began = time.monotonic()
    priced.apply(prices={"value_of_second": 0.0001})
    after = priced.api.decision()
    assert time.monotonic() - began < 10
    assert (after["action"], after["reason"]) == ("bypass", "value_negligible")
    assert after["version"] > before["version"]
    assert "At most" in after["explanation"]
    assert wrong(priced) - {f"run/{r}/summary" for r in _runs(priced)} == set()
    priced.apply()
    assert priced.api.decision()["value"] == before["value"]


def test_more_tasks_move_the_value_and_the_reconciler_prices_them(
    priced: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced.gates()
    services = priced.api.services
    before = priced.api.decision()["value"]
    add_tasks(services.db, count=40, decode=3.0)
    services.reconciler.price_routes()  # tasks alone may wait a little
    assert priced.api.decision()["value"] == before
    monkeypatch.setattr(pricing_due, "TASKS_EVERY_S", 0.0)
    services.reconciler.price_routes()
    after = priced.api.decision()["value"]
    assert after["per_task"] > before["per_task"]
    assert priced.value()["tasks"] == 48
    (kept,) = (services.evidence / "pricings" / "prose").iterdir()  # the one before is gone
    assert kept.suffix == ".parquet"


def test_only_the_tasks_that_came_last_are_priced(
    priced: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = priced.api.services
    whole = schema_traces.task
    add_tasks(services.db, count=6, decode=3.0)
    with services.db.write() as session:
        later = whole.update().where(whole.c.id.startswith("prose-3.0")).values(created_at=2.0)
        session.execute(later)
    monkeypatch.setattr(price, "NEWEST_TASKS", 6)
    document = priced.value()
    assert (document["tasks"], document["ceiling"]["saved_s"]) == (6, pytest.approx(3.0))


def test_a_new_artifact_has_no_value_until_it_is_gated(priced: Rollout) -> None:
    priced.gates()
    digest = priced.api.register(gamma=3)
    priced.api.operator.put("/v1/artifacts/aliases/current", json={"digest": digest})
    lease = priced.api.decision()
    assert (lease["action"], lease["value"]) == ("bypass", None)
    document = priced.value()
    assert document["ceiling"]["saved_s"] == pytest.approx(1.2)  # tasks stay
    assert (document["speedup"], document["total"]) == (None, None)


def test_a_route_uses_its_own_economics_or_its_policys(priced: Rollout) -> None:
    priced.gates()
    other = {**economics(value_of_second=0.02), "name": "other"}
    assert priced.api.admin.put("/v1/economics/other", json=other).json()["changed"] is True
    before = priced.value()
    priced.api.route(policy="priced", economics="other")
    after = priced.value()
    assert (before["economics"]["name"], after["economics"]["name"]) == ("priced", "other")
    assert after["terms"]["latency_value"]["value"] == pytest.approx(
        2 * before["terms"]["latency_value"]["value"]
    )
    priced.api.route(policy="priced", economics="nowhere")
    lost = priced.value()
    assert lost["economics"] == {"name": "nowhere", "digest": None, "document": None}
    assert priced.api.decision()["reason"] == "insufficient_evidence"


def test_economics_over_http(routed: Api) -> None:
    names = [e["name"] for e in routed.reader.get("/v1/economics").json()["items"]]
    assert names == ["demo", "production"]
    shown = routed.reader.get("/v1/economics/demo").json()
    assert shown["document"]["currency"] == "EUR"
    assert routed.reader.get(f"/v1/economics/{shown['digest']}").json() == shown
    again = routed.admin.put("/v1/economics/demo", json=shown["document"]).json()
    assert again["changed"] is False
    typo = {**shown["document"], "value_of_seconds": 1}
    answer = routed.admin.put("/v1/economics/demo", json=typo)
    assert (answer.status_code, answer.json()["field"]) == (422, "value_of_seconds")
    named = routed.admin.put("/v1/economics/other", json=shown["document"])
    assert (named.status_code, named.json()["field"]) == (422, "name")
    assert routed.operator.put("/v1/economics/demo", json=shown["document"]).status_code == 403
    assert routed.reader.get("/v1/economics/nowhere").status_code == 404
    assert routed.reader.get("/v1/routes/nowhere/value").status_code == 404
    changed = routed.admin.put(
        "/v1/economics/demo", json={**shown["document"], "value_of_second": 1.0}
    ).json()
    assert changed["changed"] is True
    trail = routed.admin.get("/v1/audit", params={"limit": 1}).json()["items"][0]
    assert (trail["action"], trail["object"]) == ("economics.apply", "demo")
    assert trail["detail"] == {"from": shown["digest"], "to": changed["digest"]}


def test_what_was_tampered_with_is_named(priced: Rollout) -> None:
    priced.gates()
    services = priced.api.services
    stand_in = {f"run/{r}/summary" for r in _runs(priced)}
    assert wrong(priced) == stand_in

    def edit(table: Any, where: Any, column: str, change: Any) -> Any:
        with services.db.write() as session:
            before = session.execute(select(table.c[column]).where(where)).scalar_one()
            session.execute(table.update().where(where).values({column: change(before)}))
        return before

    pricing, claim = schema_value.pricing, schema.claim
    # an input of one claim
    ours = claim.c.id == "value/prose/latency_value.low"
    before = edit(claim, ours, "inputs", lambda i: {**i, "value_per_s": 1.0})
    assert wrong(priced) == stand_in | {"value/prose/latency_value.low"}
    edit(claim, ours, "inputs", lambda _: before)
    # the document that decisions read
    mine = pricing.c.route == "prose"
    before = edit(
        pricing, mine, "document", lambda d: {**d, "total": {**d["total"], "low": 0.00101}}
    )
    assert wrong(priced) == stand_in | {"pricing/prose/total.low", "decision/prose/value"}
    edit(pricing, mine, "document", lambda _: before)
    # a gate's result behind it
    result = schema.gate_result.c.gate == "serving"

    def faster(document: dict[str, Any]) -> dict[str, Any]:
        (row,) = document["summary"]["regions"]
        faster_row = {**row, "log_speedup": {**row["log_speedup"], "mean": 1.0}}
        summary = {**document["summary"], "regions": [faster_row]}
        return {**document, "summary": summary}

    before = edit(schema.gate_result, result, "document", faster)
    named = wrong(priced)
    assert {"pricing/prose/saved_s.value", "pricing/prose/total.per_task"} <= named
    edit(schema.gate_result, result, "document", lambda _: before)
    # one cell of the curves
    (path,) = (services.evidence / "pricings" / "prose").iterdir()
    data = path.read_bytes()
    table = pd.read_parquet(path)
    table["makespan_s"] = [
        [t + 1.0 * (i == 0) for i, t in enumerate(r)] for r in table["makespan_s"]
    ]
    table.to_parquet(path, index=False)
    named = wrong(priced)
    assert {"pricing/prose/document", "value/prose/saved_s", "value/prose/ceiling.saved_s"} <= named
    path.write_bytes(data)
    assert wrong(priced) == stand_in
    path.unlink()
    assert "value/prose/saved_s" in wrong(priced)


def test_what_keeps_a_route_from_being_priced_is_told(priced: Rollout) -> None:
    priced.apply(prices={"value_of_second": None, "energy": None})
    priced.gates()
    lease = priced.api.decision()
    assert lease["reason"] == "insufficient_evidence"
    assert "value_of_second in economics priced" in lease["explanation"]
    assert "energy in economics priced" in lease["explanation"]
    document = priced.value()
    assert document["unknown"] == ["latency_value", "operational_cost"]
    assert document["saved_s"]["value"] == pytest.approx(0.6, rel=0.01)


def test_a_route_that_cannot_be_priced_keeps_no_other_waiting(priced: Rollout) -> None:
    api = priced.api
    priced.gates()
    api.route("aaa", policy="priced")
    add_tasks(api.services.db, "aaa")
    table = schema_traces.task_route
    with api.services.db.write() as session:
        # over a grid that does not hold 1
        session.execute(table.update().where(table.c.route == "aaa").values(curve=[[0.5, 1.0]]))
    api.route("zzz", policy="priced")
    api.services.reconciler.price_routes()
    with api.services.db.read() as session:
        rows = session.execute(select(schema_value.pricing.c.route)).scalars().all()
    assert set(rows) >= {"prose", "zzz"}
    assert "aaa" not in rows
    assert api.decision("aaa")["action"] == "bypass"


def test_policies_that_demand_no_value_show_it_all_the_same(priced: Rollout) -> None:
    priced.apply(policy_changes={"minimum_value": None})
    priced.gates()
    lease = priced.api.decision()
    assert lease["action"] == "enable"
    assert lease["value"] == priced.value()["total"]
    assert policy()["minimum_value"]["per_task"] == 0.001


def test_posted_traces_become_the_value_of_their_route(routed: Api) -> None:
    essay = files("gatekeeper").joinpath("examples/essay-trace.json").read_text()
    rollout = Rollout(routed.clients, routed)
    rollout.apply()
    rules = [{"gatekeeper.route": "order-desk/*"}]
    routed.route("desk", policy="priced", rules=rules, task_rules={"quiet_s": 0})
    for index in range(6):
        text = essay.replace("0f1e2d3c4b5a69788796a5b4c3d2e1f0", f"{index + 1:032x}")
        answer = routed.clients["ingester"].post("/v1/traces/import", content=text.encode())
        assert answer.is_success, answer.text
    routed.settle()
    rollout.gates("desk")
    lease = routed.decision("desk")
    assert (lease["action"], lease["reason"]) == ("enable", "gates_passed"), lease["explanation"]
    document = rollout.value("desk")
    assert (document["tasks"], document["sessions"]) == (6, 6)
    assert document["ceiling"]["saved_s"] == pytest.approx(1.2)
    # twice the decoding speed takes twelve per cent off a task of five seconds
    assert document["saved_s"]["value"] / 5.0 == pytest.approx(0.12, rel=0.01)
    assert rollout.value("prose")["tasks"] == 0
    assert wrong(rollout) - {f"run/{r}/summary" for r in _runs(rollout)} == set()
