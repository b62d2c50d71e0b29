"""Tokens over time: rotation, rates, and a trail that outlives them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from gatekeeper.actions import identity
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.store import access, schema

if TYPE_CHECKING:
    from gatekeeper.store.database import Database

Api = Any  # the fixture's class lives in conftest


def made(api: Api, **body: Any) -> Any:
    answer = api.admin.post("/v1/tokens", json={"name": "ci", "role": "reader", **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def client(api: Api, secret: str) -> TestClient:
    return TestClient(api.anonymous.app, headers={"Authorization": f"Bearer {secret}"})


def rotate(api: Api, token_id: str, **body: Any) -> Any:
    return api.admin.post(f"/v1/tokens/{token_id}/rotate", json=body)


def stand_still(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no reading of decisions grow old: only what is told makes a new one."""
    held = time.monotonic()
    monkeypatch.setattr(api.services.snapshots, "_clock", lambda: held)


def status(api: Api, secret: str) -> int:
    code: int = client(api, secret).get("/v1/decisions?route=prose").status_code
    return code


def test_a_rotated_token_ends_and_its_successor_is_like_it(routed: Api) -> None:
    old = made(routed, ttl_s=5_000, routes=["prose"], rate_per_s=30)
    answer = rotate(routed, old["id"])
    assert answer.status_code == 201
    new = answer.json()
    assert new["token"] not in {old["token"], None}
    for field in ("name", "role", "routes", "rate_per_s"):
        assert new[field] == old[field]
    assert new["replaces"] == old["id"]
    with routed.services.db.read() as session:
        rows = session.execute(text("SELECT id, created_at, expires_at FROM tokens")).all()
    (lifetime,) = [end - start for token_id, start, end in rows if token_id == new["id"]]
    assert lifetime == pytest.approx(5_000, abs=1)
    assert (status(routed, old["token"]), status(routed, new["token"])) == (401, 200)
    assert rotate(routed, old["id"]).status_code == 404  # it has ended
    trail = routed.admin.get("/v1/audit", params={"action": "token.rotate"}).json()["items"]
    assert [(e["object"], e["detail"]["to"]) for e in trail] == [(old["id"], new["id"])]


def test_both_are_good_during_the_overlap_and_only_one_successor_comes(routed: Api) -> None:
    old = made(routed)
    new = rotate(routed, old["id"], overlap_s=1.0).json()
    assert (status(routed, old["token"]), status(routed, new["token"])) == (200, 200)
    again = rotate(routed, old["id"])
    assert again.status_code == 409
    assert new["id"] in again.json()["remedy"]
    time.sleep(1.1)
    assert (status(routed, old["token"]), status(routed, new["token"])) == (401, 200)


def test_an_overlap_never_lengthens_a_life(routed: Api) -> None:
    old = made(routed, ttl_s=1.0)
    assert rotate(routed, old["id"], overlap_s=3_600).status_code == 201
    time.sleep(1.1)
    assert status(routed, old["token"]) == 401


def test_beyond_its_rate_a_token_is_told_when_to_come_again(routed: Api) -> None:
    now = [100.0]
    routed.services.rates.clock = lambda: now[0]
    mine = client(routed, made(routed, rate_per_s=4)["token"])
    codes = [mine.get("/v1/routes").status_code for _ in range(6)]
    assert codes == [200, 200, 200, 200, 429, 429]
    refused = mine.get("/v1/routes")
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["field"] == "token"
    assert routed.reader.get("/v1/routes").status_code == 200  # others are not concerned
    now[0] += 0.5
    assert [mine.get("/v1/routes").status_code for _ in range(3)] == [200, 200, 429]
    now[0] += 3_600  # a pause saves up one second's worth, no more
    assert [mine.get("/v1/routes").status_code for _ in range(5)] == [200, 200, 200, 200, 429]


def test_a_slow_rate_says_the_whole_wait(routed: Api) -> None:
    routed.services.rates.clock = lambda: 0.0
    mine = client(routed, made(routed, rate_per_s=0.1)["token"])
    assert mine.get("/v1/routes").status_code == 200
    assert mine.get("/v1/routes").headers["retry-after"] == "10"


def test_one_beyond_its_rate_costs_no_query(routed: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    routed.services.rates.clock = lambda: 0.0
    mine = client(routed, made(routed, rate_per_s=1)["token"])
    assert mine.get("/v1/routes").status_code == 200
    asked = []
    monkeypatch.setattr(access, "token_by_hash", lambda *a: asked.append(a))
    assert mine.get("/v1/routes").status_code == 429
    assert asked == []


def test_pollers_who_are_known_without_a_query_are_counted_all_the_same(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    routed.services.rates.clock = lambda: now[0]
    stand_still(routed, monkeypatch)
    one = made(routed, rate_per_s=4)
    mine = client(routed, one["token"])
    polls = (
        lambda: mine.get("/v1/decisions/snapshot"),
        lambda: mine.get("/v1/routes/prose/decision"),
        lambda: mine.post("/ofrep/v1/evaluate/flags", json={}),
        lambda: mine.post("/ofrep/v1/evaluate/flags/prose", json={}),
    )
    assert [poll().status_code for poll in polls] == [200] * 4
    assert routed.services.known_tokens.recall(one["token"]) is not None
    assert [poll().status_code for poll in polls] == [429] * 4
    assert mine.get("/v1/decisions/stream").status_code == 429
    now[0] += 0.25
    asked = []
    monkeypatch.setattr(access, "token_by_hash", lambda *a: asked.append(a))
    assert [polls[0]().status_code for _ in range(2)] == [200, 429]
    assert asked == []


def test_a_poller_whose_token_was_rotated_ends_with_the_overlap(routed: Api) -> None:
    old = made(routed)
    mine = client(routed, old["token"])
    assert [mine.get("/v1/decisions/snapshot").status_code for _ in range(2)] == [200, 200]
    rotate(routed, old["id"], overlap_s=1.0)
    assert mine.get("/v1/decisions/snapshot").status_code == 200
    time.sleep(1.1)
    assert mine.get("/v1/decisions/snapshot").status_code == 401


def test_a_revoked_poller_stays_out_when_the_numbers_of_tokens_come_round_again(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ended token is removed, one is revoked, one is made: as many of each as before."""
    stand_still(routed, monkeypatch)
    gone, one = made(routed), made(routed)
    routed.admin.delete(f"/v1/tokens/{gone['id']}")
    mine = client(routed, one["token"])
    assert [mine.get("/v1/decisions/snapshot").status_code for _ in range(2)] == [200, 200]
    assert routed.services.known_tokens.recall(one["token"]) is not None
    assert identity.remove_ended_tokens(routed.services.db, SYSTEM, age_s=0) == [gone["id"]]
    routed.admin.delete(f"/v1/tokens/{one['id']}")
    made(routed)
    routed.reader.get("/v1/decisions/snapshot")
    assert routed.services.known_tokens.recall(one["token"]) is None
    assert mine.get("/v1/decisions/snapshot").status_code == 401


def test_the_server_may_set_a_rate_for_all_and_a_token_one_of_its_own(routed: Api) -> None:
    routed.services.rates.clock = lambda: 0.0
    routed.services.rates.default_per_s = 2.0
    plain, fast = made(routed), made(routed, rate_per_s=5)
    counts = []
    for token in (plain, fast):
        mine = client(routed, token["token"])
        counts.append(sum(mine.get("/v1/routes").status_code == 200 for _ in range(8)))
    assert counts == [2, 5]


def test_exporters_and_openfeature_clients_get_their_own_form(routed: Api) -> None:
    routed.services.rates.clock = lambda: 0.0
    reader = client(routed, made(routed, rate_per_s=1)["token"])
    ingester = client(routed, made(routed, role="ingester", rate_per_s=0.5)["token"])
    answers = [reader.post("/ofrep/v1/evaluate/flags/prose", json={}) for _ in range(2)]
    assert [a.status_code for a in answers] == [200, 429]
    assert answers[1].headers["retry-after"] == "1"
    spans = [ingester.post("/v1/traces", json={"resourceSpans": []}) for _ in range(2)]
    assert [a.status_code for a in spans] == [200, 429]
    assert spans[1].headers["retry-after"] == "2"
    assert spans[1].json()["code"] == 8  # RESOURCE_EXHAUSTED


def test_a_token_that_has_ended_is_unknown_and_not_rate_limited(routed: Api) -> None:
    routed.services.rates.clock = lambda: 0.0
    one = made(routed, rate_per_s=1)
    mine = client(routed, one["token"])
    assert mine.get("/v1/routes").status_code == 200
    routed.admin.delete(f"/v1/tokens/{one['id']}")
    routed.services.rates.clock = lambda: 10.0
    assert [mine.get("/v1/routes").status_code for _ in range(3)] == [401, 401, 401]


def test_the_trail_knows_who_an_actor_was_after_its_token_is_gone(routed: Api) -> None:
    one = made(routed, name="night shift", role="operator", routes=["prose"])
    body = {"route": "prose", "action": "bypass", "reason": "slow", "ttl_s": 60}
    assert client(routed, one["token"]).post("/v1/overrides", json=body).is_success
    routed.admin.delete(f"/v1/tokens/{one['id']}")
    removed = identity.remove_ended_tokens(routed.services.db, SYSTEM, age_s=0)
    assert removed == [one["id"]]
    assert one["id"] not in routed.admin.get("/v1/tokens").text
    for query in ({"actor": one["id"]}, {"actor": f"night shift ({one['id']})"}):
        (entry,) = routed.admin.get("/v1/audit", params=query).json()["items"]
        assert (entry["action"], entry["object"]) == ("override.set", "prose")
        assert entry["actor_record"] == {
            "name": f"night shift ({one['id']})",
            "role": "operator",
            "token": one["id"],
            "routes": ["prose"],
            "rate_per_s": None,
        }
    (gone,) = routed.admin.get("/v1/audit", params={"action": "token.remove"}).json()["items"]
    assert gone["detail"]["tokens"] == [one["id"]]


def test_tokens_that_are_good_or_ended_lately_stay(routed: Api) -> None:
    one = made(routed)
    routed.admin.delete(f"/v1/tokens/{one['id']}")
    assert identity.remove_ended_tokens(routed.services.db, SYSTEM, age_s=60) == []
    assert len(routed.admin.get("/v1/tokens").json()["items"]) == 6


def test_pages_of_the_trail_skip_no_ties_while_it_grows(routed: Api, db: Database) -> None:
    def change(name: str) -> None:
        with db.write() as session:
            access.audit(session, actor=SYSTEM, action="tie", target=name, detail={})
            session.execute(schema.audit.update().values(at=1_000.0))  # all at one time

    for n in range(23):
        change(f"before-{n}")
    seen: list[str] = []
    query = {"action": "tie", "limit": 4}
    while True:
        page = routed.admin.get("/v1/audit", params=query).json()
        seen += [entry["object"] for entry in page["items"]]
        change(f"meanwhile-{len(seen)}")
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert seen == [f"before-{n}" for n in reversed(range(23))]
