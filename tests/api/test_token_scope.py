"""Tokens for some routes alone: what they reach, and that nothing of another route leaks."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from gatekeeper.api.app import ROUTERS

Api = Any  # the fixture's class lives in conftest

MINE, OTHER = "prose", "canary-route"
LOOK = {"route": OTHER, "source": "gpu-0", "interval_s": 10, "memory_utilisation": 0.5}
ROUNDS = {"route": OTHER, "source": "gateway", "counts": {"rounds": 1, "drafted": 1, "accepted": 1}}
STREAM = "/v1/decisions/stream"
FLAGS = "/ofrep/v1/evaluate/flags"
CRON = {"cron": "0 3 * * *", "zone": "UTC"}


def token(api: Api, role: str, **more: Any) -> TestClient:
    body = {"name": f"scoped {role}", "role": role, "routes": [MINE], **more}
    answer = api.admin.post("/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    return TestClient(api.anonymous.app, headers=headers)


@pytest.fixture
def both(routed: Api) -> Any:
    """A run, a schedule, a watch, an override and a decision on each of two routes."""
    routed.route(OTHER)
    ids = {}
    for route in (MINE, OTHER):
        ids[route] = routed.submit(route=route)
        schedule = routed.operator.put(f"/v1/schedules/at-{route}", json={"route": route, **CRON})
        assert schedule.is_success
        watched = routed.clients["ingester"].post("/v1/watches", json={**LOOK, "route": route})
        assert watched.is_success
        body = {"route": route, "action": "bypass", "reason": f"of {route}", "ttl_s": 60}
        assert routed.operator.post("/v1/overrides", json=body).is_success
    return routed, ids


def endpoints(method: str) -> list[str]:
    """Every path of the versioned API with this method."""
    return [
        f"{route.path}"
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and method in route.methods
    ]


def test_no_answer_to_a_token_of_one_route_tells_of_another(both: Any) -> None:
    api, ids = both
    reader = token(api, "reader")
    tried = 0
    for path in endpoints("GET"):
        if path == STREAM:  # has no end: test_stream.py reads it
            continue
        filled = path.format(
            route=OTHER,
            run_id=ids[OTHER],
            name=f"at-{OTHER}",
            table="x",
            reference="current",
            task_id="x",
            webhook_id="x",
        )
        for query in ({}, {"route": OTHER}, {"route": MINE}):
            answer = reader.get(filled, params=query)
            # the refusal repeats the route that was asked for, and nothing else of it
            told = [v for k, v in answer.json().items() if k != "value"]
            assert OTHER not in str(told), (path, query, answer.text)
            assert ids[OTHER] not in str(told), (path, query)
            assert answer.status_code in {200, 403, 404, 422}
            tried += 1
    assert tried > 60
    listed = api.reader.get("/v1/gate-runs").text
    assert OTHER in listed  # it is there to be told of


def test_a_scoped_reader_reads_its_own_route(both: Any) -> None:
    api, ids = both
    reader = token(api, "reader")
    for path in (
        f"/v1/routes/{MINE}",
        f"/v1/routes/{MINE}/decision",
        f"/v1/reports/{MINE}",
        f"/v1/gate-runs/{ids[MINE]}",
        f"/v1/schedules/at-{MINE}",
        f"/v1/gate-runs?route={MINE}",
        f"/v1/decisions?route={MINE}",
        f"/v1/schedules?route={MINE}",
        f"/v1/watches?route={MINE}",
    ):
        answer = reader.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert MINE in answer.text
    flag = reader.post(f"{FLAGS}/{MINE}", json={})
    assert (flag.status_code, flag.json()["value"]) == (200, False)
    assert reader.post(f"/v1/routes/{MINE}/decision", json={}).status_code == 200


def test_what_pollers_ask_for_by_name_is_refused_also_when_the_token_is_known(both: Any) -> None:
    api, _ = both
    reader = token(api, "reader")
    for _ in range(2):  # the second time without a query
        for name in (OTHER, "nowhere"):  # nor does the refusal say what there is
            refused = (
                reader.get(f"/v1/routes/{name}/decision"),
                reader.post(f"/v1/routes/{name}/decision", json={}),
                reader.post(f"{FLAGS}/{name}", json={}),
            )
            assert [(a.status_code, a.json()["value"]) for a in refused] == [(403, name)] * 3


def test_a_snapshot_holds_the_scope_alone_and_its_etag_no_other(both: Any) -> None:
    api, _ = both
    reader = token(api, "reader")
    mine, every = reader.get("/v1/decisions/snapshot"), api.reader.get("/v1/decisions/snapshot")
    assert [lease["route"] for lease in mine.json()["items"]] == [MINE]
    assert {lease["route"] for lease in every.json()["items"]} == {MINE, OTHER}
    assert mine.headers["etag"] != every.headers["etag"]
    stolen = {"If-None-Match": every.headers["etag"]}
    assert reader.get("/v1/decisions/snapshot", headers=stolen).status_code == 200
    flags, all_flags = reader.post(FLAGS, json={}), api.reader.post(FLAGS, json={})
    assert [flag["key"] for flag in flags.json()["flags"]] == [MINE]
    assert {flag["key"] for flag in all_flags.json()["flags"]} == {MINE, OTHER}
    stolen = {"If-None-Match": all_flags.headers["etag"]}
    assert reader.post(FLAGS, json={}, headers=stolen).status_code == 200
    own = {"If-None-Match": flags.headers["etag"]}
    assert reader.post(FLAGS, json={}, headers=own).status_code == 304


def test_tokens_that_see_other_routes_share_no_etag_however_long_the_scope(both: Any) -> None:
    api, _ = both
    first = [f"r{n}" for n in range(8)]
    scopes = [[*first, MINE], [*first, OTHER], [*first, MINE, OTHER], [*first, "r8"], [MINE]]
    readers = [token(api, "reader", routes=scope) for scope in scopes]
    for ask in (
        lambda one: one.get("/v1/decisions/snapshot"),
        lambda one: one.get("/v1/decisions/snapshot?concurrency=1"),
        lambda one: one.post(FLAGS, json={}),
    ):
        etags = [ask(one).headers["etag"] for one in [api.reader, *readers]]
        assert len(set(etags)) == len(etags)
    same = token(api, "reader", routes=[OTHER, *reversed(first)])
    assert same.get("/v1/decisions/snapshot").headers["etag"] in {
        one.get("/v1/decisions/snapshot").headers["etag"] for one in readers
    }


def test_a_scoped_operator_changes_its_own_route_alone(both: Any) -> None:
    api, ids = both
    operator = token(api, "operator")
    before = api.admin.get("/v1/audit?limit=1").json()["items"][0]["id"]
    body = {"slice": "prose", "artifact": "current", "policy": "ci"}
    override = {"action": "bypass", "reason": "x", "ttl_s": 60}
    digest = api.reader.get("/v1/artifacts/current").json()["digest"]
    attempts = [
        operator.put(f"/v1/routes/{OTHER}", json=body),
        operator.post("/v1/gate-runs", json={"route": OTHER, "gate": "serving"}),
        operator.post("/v1/gate-runs?route=prose", json={"route": OTHER, "gate": "serving"}),
        operator.post(f"/v1/gate-runs/{ids[OTHER]}/cancel"),
        operator.post("/v1/overrides", json={"route": OTHER, **override}),
        operator.delete(f"/v1/overrides/{OTHER}"),
        operator.put("/v1/schedules/new", json={"route": OTHER, **CRON}),
        # its own route on another's schedule would take that away
        operator.put(f"/v1/schedules/at-{OTHER}", json={"route": MINE, **CRON}),
        operator.post(f"/v1/schedules/at-{OTHER}/pause"),
        operator.delete(f"/v1/schedules/at-{OTHER}"),
        operator.post("/v1/artifacts", json=api.document()),
        # others may be on the same alias
        operator.put(f"/v1/artifacts/aliases/current?route={MINE}", json={"digest": digest}),
    ]
    assert {answer.status_code for answer in attempts} <= {403, 404}
    newest = api.admin.get("/v1/audit?limit=1").json()["items"][0]["id"]
    assert newest == before
    done = [
        operator.put(f"/v1/routes/{MINE}", json=body),
        operator.post("/v1/gate-runs", json={"route": MINE, "gate": "equivalence"}),
        operator.post("/v1/overrides", json={"route": MINE, **override}),
        operator.put("/v1/schedules/new", json={"route": MINE, **CRON}),
        operator.delete("/v1/schedules/new"),
    ]
    assert all(answer.is_success for answer in done), [a.text for a in done]


def test_a_scoped_ingester_sends_for_its_own_route_alone(both: Any) -> None:
    api, _ = both
    ingester = token(api, "ingester")
    for path, body in (("/v1/watches", LOOK), ("/v1/rounds", ROUNDS)):
        assert ingester.post(path, json=body).status_code == 403
        assert ingester.post(path, json={**body, "route": MINE}).status_code == 200
    # spans find their route by rules, whatever they say: such a token cannot send any
    assert ingester.post("/v1/traces", json={"resourceSpans": []}).status_code == 403


@pytest.mark.parametrize("role", ["admin", "worker"])
def test_who_could_free_itself_or_takes_any_run_has_no_scope(api: Api, role: str) -> None:
    body = {"name": "x", "role": role, "routes": [MINE]}
    answer = api.admin.post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "role")


@pytest.mark.parametrize("routes", [[], ["../x"], ["a" * 64]])
def test_a_scope_names_routes(api: Api, routes: list[str]) -> None:
    body = {"name": "x", "role": "reader", "routes": routes}
    answer = api.admin.post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "routes")
