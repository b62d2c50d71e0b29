from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

Api = Any  # the fixture's class lives in conftest


def put(api: Api, name: str = "nightly", **changes: Any) -> Any:
    body = {"route": "prose", "cron": "30 3 * * *", "zone": "Europe/Berlin", **changes}
    return api.operator.put(f"/v1/schedules/{name}", json=body)


def test_a_schedule_is_set_listed_fired_and_deleted(routed: Api) -> None:
    made = put(routed, jitter_s=900)
    assert made.status_code == 200, made.text
    view = routed.reader.get("/v1/schedules/nightly").json()
    assert view == made.json()
    assert (view["route"], view["gates"], view["paused_at"]) == ("prose", None, None)
    assert [slot["local"][11:16] for slot in view["upcoming"]] == ["03:30"] * 5
    for slot in view["upcoming"]:
        late = datetime.fromisoformat(slot["due_at"]) - datetime.fromisoformat(slot["at"])
        assert timedelta(0) <= late <= timedelta(seconds=900)
    assert view["next_at"] == view["upcoming"][0]["due_at"]
    put(routed, "other", cron=None, zone=None, on_new_version=True)
    listed = routed.reader.get("/v1/schedules", params={"limit": 1}).json()
    assert ([i["name"] for i in listed["items"]], listed["next"]) == (["nightly"], "nightly")
    rest = routed.reader.get("/v1/schedules", params={"after": "nightly", "route": "prose"}).json()
    assert [i["name"] for i in rest["items"]] == ["other"]

    with routed.services.db.write() as session:
        session.execute(text("UPDATE schedules SET next_at = 0, since_at = since_at - 200000"))
    routed.services.reconciler.fire_schedules()
    newest, *older = routed.reader.get("/v1/schedules/nightly/fires").json()["items"]
    assert newest["outcome"] in {"fired", "caught_up"}
    assert {fire["outcome"] for fire in older} == {"missed"}
    for run in newest["runs"]:
        assert routed.reader.get(f"/v1/gate-runs/{run}").json()["state"] == "pending"
    assert len(newest["runs"]) == 2
    path = "/v1/schedules/nightly/fires"
    page = routed.reader.get(path, params={"after": newest["id"], "limit": 1}).json()
    assert page["items"] == older[:1]
    assert routed.reader.get(path, params={"after": "x"}).json()["field"] == "after"

    assert routed.operator.post("/v1/schedules/nightly/pause").json()["paused_at"]
    assert routed.operator.post("/v1/schedules/nightly/resume").json()["paused_at"] is None
    assert routed.operator.delete("/v1/schedules/nightly").status_code == 200
    assert routed.reader.get("/v1/schedules/nightly").status_code == 404
    trail = routed.admin.get("/v1/audit").json()["items"]
    (gone,) = [e for e in trail if e["action"] == "schedule.delete"]
    assert gone["detail"]["schedule"]["cron"] == "30 3 * * *"
    assert gone["detail"]["fires"] == 1 + len(older)
    assert gone["actor"].startswith("operator (")


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_refusals_name_field_value_and_remedy(routed: Api) -> None:
    for changes, status, field in (
        ({"cron": "61 3 * * *"}, 422, "cron"),
        ({"zone": "Europe/Berlim"}, 422, "zone"),
        ({"zone": "localtime"}, 422, "zone"),
        ({"zone": "../../etc/passwd"}, 422, "zone"),
        ({"before_expiry_s": 1e300}, 422, "before_expiry_s"),
        ({"gates": ["speed"]}, 422, "gates.0"),
        ({"route": "nowhere"}, 404, "route"),
        ({"colour": "red"}, 422, "colour"),
    ):
        answer = put(routed, **changes)
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["field"]) == (status, field)
        assert answer.json()["remedy"]
    assert "Europe/Berlin" in put(routed, zone="Europe/Berlim").json()["remedy"]
    assert put(routed, "No Name").json()["field"] == "name"
    assert routed.reader.get("/v1/schedules").json()["items"] == []
    put(routed)
    body = {"route": "prose", "on_new_version": True}
    for refused in (
        routed.reader.put("/v1/schedules/x", json=body),
        routed.reader.post("/v1/schedules/nightly/pause"),
        routed.worker.post("/v1/schedules/nightly/resume"),
    ):
        assert refused.status_code == 403
    for missing in (
        routed.reader.get("/v1/schedules/x/fires"),
        routed.operator.delete("/v1/schedules/x"),
    ):
        assert (missing.status_code, missing.json()["field"]) == (404, "name")
