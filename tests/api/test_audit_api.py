"""No change without an entry: every endpoint that writes is either audited here or brings data."""

from __future__ import annotations

from typing import Any

import yaml
from fastapi.routing import APIRoute

from gatekeeper.api import ofrep, traces
from gatekeeper.api.app import ROUTERS
from gatekeeper.config import data_dir

Api = Any  # the fixture's class lives in conftest

DATA = {
    "POST /v1/gate-runs",  # both: it is below
    "POST /v1/runs/claim",
    "POST /v1/runs/{run_id}/heartbeat",
    "PUT /v1/gate-runs/{run_id}/evidence/{table}",
    "POST /v1/rounds",  # an alarm that they raise is audited
    "POST /v1/watches",
    "POST /v1/outcomes",
    "POST /v1/traces/import",
}
"""Measurements and spans: who sends them is in their own rows or nobody's business."""

ANSWERS = {
    "POST /v1/routes/{route}/decision",
    "POST /v1/policies/try",
    "POST /ofrep/v1/evaluate/flags",
    "POST /ofrep/v1/evaluate/flags/{key}",
}

ELSEWHERE = {"POST /v1/runs/{run_id}/finish"}
"""Audited, and tried with real evidence in test_ledger_end_to_end.py."""


def document(name: str) -> Any:
    return yaml.safe_load((data_dir("policies") / name).read_text())


def test_every_change_leaves_an_entry_with_who_made_it(routed: Api) -> None:
    admin, digest = routed.admin, routed.register(gamma=2)
    token = admin.post("/v1/tokens", json={"name": "a", "role": "reader"}).json()["id"]
    cancelled, failed = routed.submit("equivalence"), routed.submit("serving")
    tried = set()

    def change(method: str, path: str, action: str, body: Any = None, **ids: str) -> None:
        newest = admin.get("/v1/audit?limit=1").json()["items"][0]["id"]
        answer = admin.request(method, path.format(**ids), json=body)
        assert answer.is_success, (path, answer.text)
        fresh = [e for e in admin.get("/v1/audit").json()["items"] if e["id"] > newest]
        assert action in {e["action"] for e in fresh}, (path, fresh)
        assert {e["actor_record"]["role"] for e in fresh} == {"admin"}
        assert {e["actor_record"]["name"] for e in fresh} == {e["actor"] for e in fresh}
        tried.add(f"{method} {path}")

    route = {"slice": "prose", "artifact": "current", "policy": "ci"}
    override = {"route": "prose", "action": "bypass", "reason": "x", "ttl_s": 60}
    schedule = {"route": "prose", "on_new_version": True}
    prices = {**document("economics/demo.yaml"), "value_of_second": 0.5}
    policy = {**document("ci.yaml"), "decision_ttl_s": 30}
    alias = {"kind": "alias", "name": "next", "digest": digest}
    change("POST", "/v1/artifacts", "artifact.register", routed.document(gamma=3))
    change("PUT", "/v1/artifacts/aliases/{alias}", "alias.move", {"digest": digest}, alias="other")
    change("PUT", "/v1/policies/{name}", "policy.apply", policy, name="ci")
    change("PUT", "/v1/economics/{name}", "economics.apply", prices, name="demo")
    change("PUT", "/v1/routes/{route}", "route.set", route, route="new")
    change("POST", "/v1/overrides", "override.set", override)
    change("DELETE", "/v1/overrides/{route}", "override.clear", route="prose")
    change("PUT", "/v1/schedules/{name}", "schedule.set", schedule, name="s")
    for verb in ("pause", "resume"):
        change("POST", f"/v1/schedules/{{name}}/{verb}", f"schedule.{verb}", name="s")
    change("DELETE", "/v1/schedules/{name}", "schedule.delete", name="s")
    run = {"route": "new", "gate": "serving"}
    change("POST", "/v1/gate-runs", "run.submit", run)
    change("POST", "/v1/gate-runs/{run_id}/cancel", "run.cancel", run_id=cancelled)
    fence = routed.claim(run_id=failed).json()["run"]["fence"]
    failure = {"fence": fence, "error": "no device", "retry": False}
    change("POST", "/v1/runs/{run_id}/fail", "run.fail", failure, run_id=failed)
    change("POST", "/v1/tokens", "token.create", {"name": "b", "role": "reader"})
    change("POST", "/v1/tokens/{token_id}/rotate", "token.rotate", {"overlap_s": 9}, token_id=token)
    change("DELETE", "/v1/tokens/{token_id}", "token.revoke", token_id=token)
    hook = {"url": "https://example.com/hook"}
    change("POST", "/v1/webhooks", "webhook.add", hook)
    hook_id = admin.get("/v1/webhooks").json()["items"][0]["id"]
    path = "/v1/webhooks/{webhook_id}"
    change("POST", f"{path}/redeliver", "webhook.redeliver", {}, webhook_id=hook_id)
    change("DELETE", path, "webhook.remove", webhook_id=hook_id)
    one = {"file": "a.yaml", "document": alias}
    change("POST", "/v1/configuration", "configuration.apply", {"documents": [one]})

    every = {
        f"{method} {route.path}"
        for router in (*ROUTERS, ofrep.router, traces.router)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods - {"GET", "HEAD"}
    }
    assert every == tried | DATA | ANSWERS | ELSEWHERE
