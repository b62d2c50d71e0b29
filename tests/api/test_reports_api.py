from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from gatekeeper.actions.price import no_curves
from gatekeeper.core.pricing import PricingInputs, price
from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_report import lay_out
from gatekeeper.store import pricing, schema
from gatekeeper.store.pricing import PricingRecord

Api = Any  # the fixture's class lives in conftest

HOSTILE = "incident <b>7</b> & \x1b[2J \U0001f525"


def report(api: Api, route: str = "prose") -> Any:
    answer = api.reader.get(f"/v1/reports/{route}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_route_without_evidence_has_a_report_of_what_is_missing(routed: Api) -> None:
    document = report(routed)
    assert list(document["gates"]) == ["equivalence", "serving", "outcome"]
    assert set(document["gates"].values()) == {None}
    assert (document["value"], document["tasks"], document["overrides"]) == (None, None, [])
    assert document["decision"] | {"ttl_s": 0} == routed.decision() | {"ttl_s": 0}
    policy = routed.reader.get("/v1/routes/prose").json()["policy"]
    assert document["policy"]["name"] == document["policy"]["document"]["name"] == policy
    assert document["artifact"]["document"]["gamma"] == 4
    assert len(document["history"]) == 1
    assert document["slice"] == "prose"
    text = render_html(lay_out(document))
    assert "the evidence does not support enabling yet" in text


def test_who_may_read_it(routed: Api) -> None:
    assert routed.anonymous.get("/v1/reports/prose").status_code == 401
    assert routed.reader.get("/v1/reports/nowhere").status_code == 404
    assert routed.reader.get("/v1/reports/%00").status_code in {404, 422}


def test_an_override_keeps_actor_reason_and_expiry_to_the_end(routed: Api) -> None:
    body = {"route": "prose", "action": "enable", "gamma": 3, "reason": HOSTILE, "ttl_s": 600.0}
    stored = routed.admin.post("/v1/overrides", json=body).json()
    document = report(routed)
    (kept,) = document["overrides"]
    assert (kept["action"], kept["gamma"], kept["reason"]) == ("enable", 3, HOSTILE)
    assert kept["actor"].startswith("admin ")
    lasts = datetime.fromisoformat(kept["expires_at"]) - datetime.fromisoformat(kept["created_at"])
    assert lasts.total_seconds() == pytest.approx(600, abs=1)
    assert kept["expires_at"] == stored["expires_at"]
    assert (kept["cleared_at"], kept["cleared_by"]) == (None, None)
    assert "idempotency_key" not in kept
    lease = document["decision"]
    assert (lease["action"], lease["reason"]) == ("enable", "override")
    assert HOSTILE in lease["explanation"]
    assert kept["actor"] in lease["explanation"]
    claims = {claim["id"]: claim["value"] for claim in document["claims"]}
    assert claims[f"override/{kept['id']}/gamma"] == 3
    assert claims["decision/prose/gamma"] == 3
    text = render_html(lay_out(document))
    assert "Enable</span>: set by hand" in text
    assert "incident &lt;b&gt;7&lt;/b&gt; &amp;" in text
    assert "when the override ends and the gates decide again" in text

    assert routed.operator.delete("/v1/overrides/prose").is_success
    (ended,) = report(routed)["overrides"]
    assert ended["cleared_by"].startswith("operator ")
    assert datetime.fromisoformat(ended["cleared_at"]) <= datetime.fromisoformat(
        ended["expires_at"]
    )
    assert f"by {ended['cleared_by']}" in render_html(lay_out(report(routed)))
    with routed.services.db.read() as session:
        trail = session.execute(select(schema.audit).order_by(schema.audit.c.id)).mappings().all()
    set_, cleared = [row for row in trail if row["action"].startswith("override.")]
    assert (set_["action"], set_["object"], set_["actor"]) == (
        "override.set",
        "prose",
        kept["actor"],
    )
    assert set_["detail"] == {"action": "enable", "gamma": 3, "reason": HOSTILE, "ttl_s": 600.0}
    assert (cleared["action"], cleared["actor"]) == ("override.clear", ended["cleared_by"])
    assert cleared["detail"] == {"overrides": [kept["id"]]}


def test_overrides_of_other_routes_and_an_expired_one(routed: Api) -> None:
    routed.route("other")
    for route, ttl_s in (("prose", 0.05), ("other", 60.0)):
        body = {"route": route, "action": "bypass", "reason": route, "ttl_s": ttl_s}
        assert routed.operator.post("/v1/overrides", json=body).status_code == 201
    time.sleep(0.1)
    document = report(routed)
    assert [row["reason"] for row in document["overrides"]] == ["prose"]
    assert document["decision"]["reason"] == "insufficient_evidence"
    text = " ".join(render_html(lay_out(document)).split())
    assert "<span>expired 20" in text


def test_a_pricing_is_shown_only_while_it_rests_on_what_the_decision_rests_on(routed: Api) -> None:
    before = report(routed)
    found = price(
        PricingInputs(
            route="prose",
            curves=no_curves(),
            evidence=None,
            serving=None,
            outcome=None,
            economics_name="ci",
            economics=None,
            minimum=None,
        )
    )
    record = PricingRecord(
        route="prose",
        artifact=before["artifact"]["digest"],
        policy=before["policy"]["digest"],
        economics_name="ci",
        economics=None,
        serving_run=None,
        outcome_run=None,
        tasks="0" * 64,
        document=found.document,
        evidence=None,
        path=None,
        priced_at=0.0,
    )
    for changes, shown in (
        ({}, True),
        ({"policy": "0" * 64}, False),
        ({"serving_run": "another"}, False),
    ):
        with routed.services.db.write() as session:
            pricing.put(session, replace(record, **changes), found.claims)
        document = report(routed)
        assert (document["value"] is not None) is shown
        if shown:
            text = " ".join(render_html(lay_out(document)).split())
            assert "Economics ci is not known: no price is." in text
            assert "= Value per task" in text
            assert text.count(">unknown<") + text.count("unknown ") > 5
