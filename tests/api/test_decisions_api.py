from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import event

from gatekeeper.actions.snapshots import FRESH_S
from gatekeeper.errors import Unavailable

Api = Any  # the fixture's class lives in conftest


def override(api: Api, role: str = "operator", **changes: Any) -> Any:
    body = {
        "route": "prose",
        "action": "bypass",
        "reason": "incident 7",
        "ttl_s": 3600.0,
        **changes,
    }
    return api.clients[role].post("/v1/overrides", json=body)


def test_an_override_holds_until_it_is_cleared(routed: Api) -> None:
    before = routed.decision()
    assert override(routed, "admin", action="enable", gamma=3).status_code == 201
    held = routed.decision()
    assert (held["action"], held["gamma"], held["reason"]) == ("enable", 3, "override")
    assert held["version"] > before["version"]
    assert routed.operator.delete("/v1/overrides/prose").is_success
    after = routed.decision()
    assert (after["action"], after["reason"]) == ("bypass", "insufficient_evidence")
    assert after["version"] > held["version"]
    assert routed.operator.delete("/v1/overrides/prose").status_code == 404


def test_an_override_lapses_by_itself(routed: Api) -> None:
    assert override(routed, "admin", action="enable", gamma=3, ttl_s=1.5).status_code == 201
    held = routed.decision()
    assert held["action"] == "enable"
    assert held["ttl_s"] <= 1.5
    assert held["max_stale_s"] <= 1.5
    time.sleep(1.6)
    assert routed.decision()["action"] == "bypass"
    history = routed.reader.get("/v1/decisions", params={"route": "prose"}).json()["items"]
    assert [d["action"] for d in history] == ["bypass", "enable", "bypass"]
    counters = [d["counter"] for d in history]
    assert counters == sorted(counters, reverse=True)


def test_the_reconciler_notices_what_nobody_asks_for(routed: Api) -> None:
    override(routed, "admin", action="enable", gamma=3, ttl_s=0.1)
    time.sleep(0.2)
    routed.services.reconciler.tick()
    newest = routed.reader.get("/v1/decisions", params={"limit": 1}).json()["items"][0]
    assert newest["action"] == "bypass"


def test_enabling_against_the_gates_takes_an_admin(routed: Api) -> None:
    answer = override(routed, "operator", action="enable", gamma=3)
    assert answer.status_code == 403
    assert "admin" in answer.json()["remedy"]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"action": "enable"}, 422, "override.gamma"),
        ({"ttl_s": 1e9}, 422, "ttl_s"),
        ({"route": "nowhere"}, 404, "route"),
        ({"reason": ""}, 422, "reason"),
        ({"action": "on"}, 422, "action"),
    ],
)
def test_a_bad_override(routed: Api, changes: dict[str, Any], status: int, field: str) -> None:
    answer = override(routed, "admin", **changes)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_one_override_per_key(routed: Api) -> None:
    body = {"route": "prose", "action": "bypass", "reason": "r", "ttl_s": 60}
    headers = {"Idempotency-Key": "k"}
    first = routed.operator.post("/v1/overrides", json=body, headers=headers).json()
    second = routed.operator.post("/v1/overrides", json=body, headers=headers).json()
    assert first["id"] == second["id"]
    clash = routed.operator.post("/v1/overrides", json={**body, "reason": "s"}, headers=headers)
    assert clash.status_code == 409


def test_request_time_rules(routed: Api) -> None:
    override(routed, "admin", action="enable", gamma=3)
    context = {"remaining_tokens": 2, "acceptance": 0.9}
    answer = routed.reader.post("/v1/routes/prose/decision", json=context).json()
    assert answer["action"] == "enable"
    assert answer["request"]["action"] == "bypass"
    assert answer["request"]["reason"] == "few_remaining_tokens"
    wrong = routed.reader.post("/v1/routes/prose/decision", json={"remaning_tokens": 2})
    assert (wrong.status_code, wrong.json()["title"]) == (422, "Unknown key")
    other = {"artifact": "0" * 64, "remaining_tokens": 100}
    answer = routed.reader.post("/v1/routes/prose/decision", json=other).json()
    assert answer["request"]["reason"] == "version_mismatch"


def test_ofrep(routed: Api) -> None:
    flags = "/ofrep/v1/evaluate/flags"
    plain = routed.reader.post(f"{flags}/prose", json={})
    assert plain.status_code == 200
    assert plain.headers["content-type"] == "application/json"
    body = plain.json()
    assert (body["key"], body["value"], body["variant"]) == ("prose", False, "ordinary")
    assert body["reason"] == "STATIC"
    assert body["metadata"]["reason"] == "insufficient_evidence"
    assert all(isinstance(v, (str, int, float, bool)) for v in body["metadata"].values())
    override(routed, "admin", action="enable", gamma=3)
    context = {"targetingKey": "user-1", "remaining_tokens": 100, "tier": "gold"}
    aimed = routed.reader.post(f"{flags}/prose", json={"context": context}).json()
    assert (aimed["value"], aimed["variant"]) == (True, "gamma-3")
    assert aimed["reason"] == "TARGETING_MATCH"
    short = {"context": {**context, "remaining_tokens": 1}}
    assert routed.reader.post(f"{flags}/prose", json=short).json()["value"] is False


@pytest.mark.parametrize(
    ("key", "content", "status", "code"),
    [
        ("nowhere", b"{}", 404, "FLAG_NOT_FOUND"),
        ("prose", b"{", 400, "PARSE_ERROR"),
        ("prose", b'{"context": 3}', 400, "INVALID_CONTEXT"),
        ("prose", b'{"context": {"remaining_tokens": "many"}}', 400, "INVALID_CONTEXT"),
    ],
)
def test_ofrep_errors(routed: Api, key: str, content: bytes, status: int, code: str) -> None:
    answer = routed.reader.post(f"/ofrep/v1/evaluate/flags/{key}", content=content)
    assert (answer.status_code, answer.json()["errorCode"]) == (status, code)
    assert answer.json()["key"] == key


def test_the_snapshot_changes_its_etag_with_the_version(routed: Api) -> None:
    first = routed.reader.get("/v1/decisions/snapshot")
    same = routed.reader.get(
        "/v1/decisions/snapshot", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert same.status_code == 304
    override(routed)
    after = routed.reader.get("/v1/decisions/snapshot")
    assert after.headers["ETag"] != first.headers["ETag"]
    assert after.json()["items"][0]["reason"] == "override"


SNAPSHOT = "/v1/decisions/snapshot"


def test_not_modified_is_for_the_same_context_alone(routed: Api) -> None:
    override(routed, "admin", action="enable", gamma=3)
    few = {"remaining_tokens": 2}
    plain, aimed = routed.reader.get(SNAPSHOT), routed.reader.get(SNAPSHOT, params=few)
    assert "request" not in plain.json()["items"][0]
    assert aimed.json()["items"][0]["action"] == "enable"
    assert aimed.json()["items"][0]["request"]["reason"] == "few_remaining_tokens"
    assert plain.headers["cache-control"] == "private, no-cache"
    for etag, params, status in (
        (plain.headers["ETag"], {}, 304),
        (plain.headers["ETag"], few, 200),
        (aimed.headers["ETag"], few, 304),
        (aimed.headers["ETag"], {"remaining_tokens": 3}, 200),
        (f'"other", W/{plain.headers["ETag"]}', {}, 304),
    ):
        asked = {"If-None-Match": etag}
        answer = routed.reader.get(SNAPSHOT, params=params, headers=asked)
        assert answer.status_code == status, (etag, params)
    wrong = routed.reader.get(SNAPSHOT, params={"remaning_tokens": 2})
    assert (wrong.status_code, wrong.json()["title"]) == (422, "Unknown key")


def test_no_cache_on_the_way_keeps_a_decision(routed: Api) -> None:
    """An enable kept by a proxy would outlive the bypass that follows it."""
    path = "/v1/routes/prose/decision"
    flag = "/ofrep/v1/evaluate/flags/prose"
    for answer in (
        routed.reader.get(path),
        routed.reader.post(path, json={}),
        routed.reader.post(flag, json={}),
    ):
        assert answer.headers["cache-control"] == "no-store"


def test_a_revoked_token_polls_no_more(routed: Api) -> None:
    made = routed.admin.post("/v1/tokens", json={"name": "a", "role": "reader"}).json()
    short = routed.admin.post("/v1/tokens", json={"name": "b", "role": "reader", "ttl_s": 1}).json()

    def status(secret: str) -> int:
        headers = {"Authorization": f"Bearer {secret}"}
        code: int = routed.anonymous.get(SNAPSHOT, headers=headers).status_code
        return code

    for _ in range(3):
        assert (status(made["token"]), status(short["token"])) == (200, 200)
    assert routed.services.known_tokens.recall(made["token"]) is not None
    routed.admin.delete(f"/v1/tokens/{made['id']}")
    assert status(made["token"]) == 401
    time.sleep(1.1)
    assert status(short["token"]) == 401
    assert routed.anonymous.get(SNAPSHOT).status_code == 401
    assert routed.clients["ingester"].get(SNAPSHOT).status_code == 403


def test_polling_costs_one_query_a_second(routed: Api) -> None:
    headers = {"If-None-Match": routed.reader.get(SNAPSHOT).headers["ETag"]}
    sent: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            sent.append(statement)

    event.listen(routed.services.db.engine, "before_cursor_execute", count)
    began = time.monotonic()
    while time.monotonic() < began + 2.5 * FRESH_S:
        assert routed.reader.get(SNAPSHOT, headers=headers).status_code == 304
    event.remove(routed.services.db.engine, "before_cursor_execute", count)
    assert len(sent) <= (time.monotonic() - began) / FRESH_S + 1


def test_a_decision_that_cannot_be_read_is_an_error_and_no_old_one(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is out of reach must not serve old decisions for ever."""

    def gone(*_: object) -> None:
        raise Unavailable("does not answer", field="database")

    path, flags = "/v1/routes/prose/decision", "/ofrep/v1/evaluate/flags"
    assert routed.reader.get(path).status_code == 200
    monkeypatch.setattr("gatekeeper.actions.snapshots.read_decisions", gone)
    time.sleep(FRESH_S)
    for answer in (routed.reader.get(path), routed.reader.get(SNAPSHOT)):
        assert (answer.status_code, answer.json()["field"]) == (503, "database")
    for answer in (routed.reader.post(f"{flags}/prose"), routed.reader.post(flags)):
        assert (answer.status_code, answer.json()["errorCode"]) == (503, "GENERAL")
