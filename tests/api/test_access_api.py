from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from gatekeeper.actions import catalog
from gatekeeper.actions.identity import ROLES, SYSTEM, create_token
from gatekeeper.config import data_dir
from gatekeeper.errors import InputError
from gatekeeper.store.migrate import head

Api = Any  # the fixture's class lives in conftest


def test_no_token_and_a_wrong_one(api: Api) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        answer = api.anonymous.get("/v1/routes", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "token create" in answer.json()["remedy"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/routes", {"reader", "worker", "operator", "admin"}),
        ("POST", "/v1/runs/claim", {"worker", "admin"}),
        ("POST", "/v1/gate-runs", {"operator", "admin"}),
        ("PUT", "/v1/policies/demo", {"admin"}),
        ("GET", "/v1/tokens", {"admin"}),
        ("GET", "/v1/audit", {"admin"}),
        ("POST", "/ofrep/v1/evaluate/flags/x", {"reader", "worker", "operator", "admin"}),
    ],
)
def test_what_each_role_may_do(api: Api, method: str, path: str, allowed: set[str]) -> None:
    may = set()
    for role in ROLES:
        status = api.clients[role].request(method, path, json={}).status_code
        assert status != 401
        if status != 403:
            may.add(role)
    assert may == allowed


def test_a_token_is_shown_once_and_stored_as_its_hash(api: Api) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "ci", "role": "reader"}).json()
    secret = made["token"]
    assert len(secret) >= 43  # 32 bytes in base64
    listed = api.admin.get("/v1/tokens").text
    assert secret not in listed
    assert "sha256" not in listed
    with api.services.db.read() as session:
        stored = session.execute(text("SELECT sha256 FROM tokens WHERE name = 'ci'")).scalar_one()
    assert stored == hashlib.sha256(secret.encode()).hexdigest()


def test_revoked_and_expired_tokens_are_unknown(api: Api) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "a", "role": "reader"}).json()
    short = api.admin.post("/v1/tokens", json={"name": "b", "role": "reader", "ttl_s": 1.0}).json()

    def status(secret: str) -> int:
        headers = {"Authorization": f"Bearer {secret}"}
        code: int = api.anonymous.get("/v1/routes", headers=headers).status_code
        return code

    assert (status(made["token"]), status(short["token"])) == (200, 200)
    api.admin.delete(f"/v1/tokens/{made['id']}")
    time.sleep(1.1)
    assert (status(made["token"]), status(short["token"])) == (401, 401)
    assert api.admin.delete("/v1/tokens/nowhere").status_code == 404


def test_every_change_is_audited_with_its_actor(routed: Api) -> None:
    routed.admin.post("/v1/tokens", json={"name": "x", "role": "reader"})
    routed.submit()
    actions = {e["action"]: e["actor"] for e in routed.admin.get("/v1/audit").json()["items"]}
    assert {"artifact.register", "alias.move", "route.set", "token.create", "run.submit"} <= set(
        actions
    )
    assert actions["route.set"].startswith("operator (")


def test_health_readiness_and_metrics(routed: Api) -> None:
    assert routed.anonymous.get("/healthz").status_code == 200
    assert routed.anonymous.get("/readyz").json() == {"status": "ready"}
    routed.decision()
    routed.submit()
    page = routed.anonymous.get("/metrics").text
    assert 'gatekeeper_runs{state="pending"} 1.0' in page
    assert 'gatekeeper_route_enabled{route="prose"} 0.0' in page
    assert 'path="/v1/routes/{route}/decision"' in page
    routed.services.reconciler.ready.clear()
    assert routed.anonymous.get("/readyz").status_code == 503


def test_not_ready_before_the_migrations(api: Api) -> None:
    def stamp(revision: str | None) -> None:
        with api.services.db.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": revision})

    stamp("old")
    answer = api.anonymous.get("/readyz")
    stamp(head(data_dir("migrations")))
    assert answer.status_code == 503
    assert "gatekeeper db upgrade" in answer.json()["remedy"]


def test_unknown_paths_and_methods_are_problems_too(api: Api) -> None:
    for answer in (api.anonymous.get("/v1/nowhere"), api.anonymous.patch("/v1/routes")):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code


def test_text_that_is_no_utf8_and_nan_are_refused_by_name(api: Api) -> None:
    for body in (b'{"\\ud800": 1}', b'{"a": "\\ud800"}', b'{"a": NaN}'):
        headers = {"Content-Type": "application/json"}
        answer = api.admin.post("/v1/artifacts", content=body, headers=headers)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"


def test_bodies_too_large_for_memory_are_refused_before_they_are_read(api: Api) -> None:
    chunks = (b" " * 2**20 for _ in range(20))
    headers = {"Content-Type": "application/json"}
    answer = api.anonymous.post("/v1/artifacts", content=chunks, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "larger than" in answer.json()["detail"]


@pytest.mark.parametrize("ttl_s", [float("inf"), float("nan"), 1e300, 0])
def test_no_token_outlives_the_calendar(api: Api, ttl_s: float) -> None:
    with pytest.raises(InputError, match="ttl_s"):
        create_token(api.services.db, SYSTEM, name="x", role="reader", ttl_s=ttl_s)
    with pytest.raises(InputError, match="name"):
        create_token(api.services.db, SYSTEM, name="a\x1b[2J", role="reader", ttl_s=None)


def test_a_defect_is_logged_without_local_variables(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        held = "gk_never_in_a_log"
        raise LookupError(len(held))

    monkeypatch.setattr(catalog, "list_routes", broken)
    client = TestClient(api.admin.app, raise_server_exceptions=False, headers=api.admin.headers)
    answer = client.get("/v1/routes")
    logged = capsys.readouterr()
    assert answer.status_code == 500
    assert "LookupError" in logged.out + logged.err
    assert "gk_never" not in logged.out + logged.err


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/routes", "reader"),
        ("POST", "/v1/traces/import", "ingester"),
        ("POST", "/v1/runs/claim", "worker"),
        ("POST", "/v1/gate-runs", "operator"),
        ("GET", "/v1/tokens", "admin"),
    ],
)
def test_a_refused_token_is_answered_with_the_command_for_one_that_will_do(
    api: Api, method: str, path: str, role: str
) -> None:
    command = f"gatekeeper token create --role {role} --home HOME"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = api.anonymous.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert command in answer.json()["remedy"]
    for have, may in ROLES.items():
        if role not in may:
            answer = api.clients[have].request(method, path, json={})
            assert answer.status_code == 403
            assert command in answer.json()["remedy"]
