"""A second's worth by pieces or by an abandonment curve, from applied prices to the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from abandonment_cases import FIT, abandonment, pieces
from sqlalchemy import select
from value_rollout import Rollout, add_tasks

from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.actions.pricing_due import reprice_due
from gatekeeper.store import schema, schema_value

Api = Any  # the fixture's class lives in conftest


@pytest.fixture
def priced(routed: Api) -> Rollout:
    """A route with prices, tasks and passed gates."""
    rollout = Rollout(routed.clients, routed)
    rollout.apply()
    routed.route(policy="priced")
    add_tasks(routed.services.db)
    rollout.gates()
    return rollout


def wrong(rollout: Rollout) -> set[str]:
    """Figures that do not recompute, the stand-in gate runs apart."""
    services = rollout.api.services
    rows = verify_ledger(services.db, services.evidence)
    assert len([r for r in rows if r["id"].startswith("pricing/prose/sensitivity.rows[")]) > 20
    return {r["id"] for r in rows if not r["agrees"] and not r["id"].startswith("run/")}


def timed(rollout: Rollout, *rules: dict[str, Any]) -> dict[str, Any]:
    rollout.apply(prices={"value_of_second": None, "value_of_time": list(rules)})
    return rollout.value()


@pytest.mark.parametrize(
    "rule",
    [
        pieces((0, 0.0), (3, 0.01), (4.5, 0.05)),
        abandonment(),
        {"routes": ["pro*"], "max_concurrency": 4, **abandonment(2.0)},
    ],
)
def test_a_route_is_decided_by_what_its_time_is_worth_and_all_of_it_recomputes(
    priced: Rollout, rule: dict[str, Any]
) -> None:
    before = priced.api.decision()["value"]
    document = timed(priced, rule)
    lease = priced.api.decision()
    assert lease["value"] == {**document["total"], "currency": "EUR"}
    assert lease["value"] != before
    assert wrong(priced) == set()
    stored = priced.api.reader.get("/v1/economics/priced").json()["document"]
    if "abandonment" in rule:
        assert stored["value_of_time"][0]["abandonment"]["fit"]["data"] == FIT["data"]


def test_a_tampered_parameter_of_the_curve_is_named(priced: Rollout) -> None:
    timed(priced, abandonment())
    claim, services = schema.claim, priced.api.services
    ours = claim.c.id == "value/prose/kept.low"
    with services.db.write() as session:
        inputs = session.execute(select(claim.c.inputs).where(ours)).scalar_one()
        assert inputs["price"]["data"] == FIT["data"]
        steeper = {**inputs, "price": {**inputs["price"], "slope": 2.0}}
        session.execute(claim.update().where(ours).values(inputs=steeper))
    assert wrong(priced) == {"value/prose/kept.low"}


def test_what_kept_tasks_are_worth_turns_the_decision_where_the_table_says(priced: Rollout) -> None:
    document = timed(priced, abandonment())
    rows = {row["input"]: row for row in document["sensitivity"]["rows"]}
    row = rows["value_of_time[0].abandonment.value_of_kept_task"]
    assert (document["sensitivity"]["answer"], row["now"]) == ("above", 0.4)
    timed(priced, abandonment(row["flips_at"] * 1.001))
    assert priced.api.decision()["action"] == "enable"
    timed(priced, abandonment(row["flips_at"] * 0.999))
    assert priced.api.decision()["reason"] == "insufficient_evidence"  # astride


def test_an_unsound_curve_is_refused_by_name(priced: Rollout) -> None:
    before = priced.api.decision()
    document = priced.value()["economics"]["document"]
    bad = {**document, "value_of_time": [abandonment(slope=-0.5)]}
    answer = priced.api.admin.put("/v1/economics/priced", json=bad)
    assert answer.status_code == 422
    assert answer.json()["field"] == "value_of_time.abandonment.fit.slope"
    assert priced.api.decision() == before


def test_a_pricing_of_an_earlier_method_is_made_anew(priced: Rollout) -> None:
    services, table = priced.api.services, schema_value.pricing
    document = priced.value()
    old = {k: v for k, v in document.items() if k not in {"sensitivity", "time_value"}}
    old["method"] = {k: v for k, v in document["method"].items() if k != "version"}
    with services.db.write() as session:
        session.execute(table.update().values(document=old))
    assert reprice_due(services.db, services.evidence) == []  # the decision is as it was
    with services.db.read() as session:
        stored = session.execute(select(table.c.document)).scalar_one()
    assert stored == document
