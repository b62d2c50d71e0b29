from __future__ import annotations

from typing import Any

import pytest
from shipped_policies import shipped_policy
from value_rollout import Rollout, add_tasks, policy

Api = Any  # the fixture's class lives in conftest


def fields(answer: Any) -> tuple[int, str, str]:
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "field", "value", "remedy"} <= set(body)
    return answer.status_code, body["title"], body["field"]


def test_first_start_seeds_policies_and_the_ledger(api: Api) -> None:
    names = {p["name"] for p in api.reader.get("/v1/policies").json()["items"]}
    assert {"demo", "ci", "production"} <= names
    claims = api.reader.get("/v1/claims").json()["items"]
    assert any(c["id"] == "essay.speedup.high" for c in claims)


def test_an_artifact_is_stored_once(api: Api) -> None:
    digest = api.register()
    again = api.register()
    assert digest == again
    listed = api.reader.get("/v1/artifacts").json()
    assert [a["digest"] for a in listed["items"]] == [digest]
    trail = api.admin.get("/v1/audit").json()["items"]
    assert sum(e["action"] == "artifact.register" for e in trail) == 1


@pytest.mark.parametrize(
    ("changes", "status", "title", "field"),
    [
        ({"gammma": 3}, 422, "Unknown key", "gammma"),
        ({"gamma": 0}, 422, "Invalid input", "gamma"),
        ({"acceptance": {"method": "typical", "contract": "exact"}}, 422, None, None),
    ],
)
def test_a_bad_artifact_names_field_and_remedy(
    api: Api, changes: dict[str, Any], status: int, title: str | None, field: str | None
) -> None:
    answer = api.operator.post("/v1/artifacts", json=api.document(**changes))
    got = fields(answer)
    assert got[0] == status
    assert answer.json()["remedy"]
    if title is not None:
        assert got[1:] == (title, field)
    assert api.reader.get("/v1/artifacts").json()["items"] == []


def test_moving_an_alias_is_audited_and_voids_the_evidence(routed: Api) -> None:
    first = routed.decision()
    other = routed.register(gamma=2)
    moved = routed.operator.put("/v1/artifacts/aliases/current", json={"digest": other})
    assert moved.status_code == 200
    second = routed.decision()
    assert second["artifact"] == other != first["artifact"]
    assert second["version"] > first["version"]
    entry = next(
        e for e in routed.admin.get("/v1/audit").json()["items"] if e["action"] == "alias.move"
    )
    assert entry["detail"]["from"] == first["artifact"]
    assert entry["detail"]["to"] == other
    assert entry["actor"].startswith("operator (")


def test_an_alias_move_that_would_leave_a_route_untested_is_refused(routed: Api) -> None:
    routed.route(sampling=[{"temperature": 1.0}])
    other = routed.register(sampling=[{"temperature": 0.5}])
    answer = routed.operator.put("/v1/artifacts/aliases/current", json={"digest": other})
    assert fields(answer) == (422, "Incompatible artifact", "sampling")
    assert routed.reader.get("/v1/artifacts/current").json()["digest"] != other


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"artifact": "nowhere"}, 404, "artifact"),
        ({"policy": "nowhere"}, 404, "policy"),
        ({"sampling": [{"temperature": 0.3}]}, 422, "sampling"),
        ({"slo": {"ttft_ms": 3}}, 422, "slo.ttft_ms"),
        ({"colour": "red"}, 422, "colour"),
        ({"rules": [{}]}, 422, "rule"),
    ],
)
def test_a_bad_route_is_refused_whole(
    routed: Api, changes: dict[str, Any], status: int, field: str
) -> None:
    body = {"slice": "prose", "artifact": "current", "policy": "demo", **changes}
    answer = routed.operator.put("/v1/routes/other", json=body)
    got = fields(answer)
    assert (got[0], got[2]) == (status, field)
    assert routed.reader.get("/v1/routes/other").status_code == 404


def test_a_policy_change_decides_its_routes_anew(routed: Api) -> None:
    document = shipped_policy("ci")
    before = routed.decision()
    document["decision_ttl_s"] = 30
    answer = routed.admin.put("/v1/policies/ci", json=document)
    assert answer.json()["changed"] is True
    assert routed.admin.put("/v1/policies/ci", json=document).json()["changed"] is False
    after = routed.decision()
    assert before["ttl_s"] == 60
    assert after["ttl_s"] == 30
    typo = {**document, "decision_tll_s": 1}
    assert fields(routed.admin.put("/v1/policies/ci", json=typo)) == (
        422,
        "Unknown key",
        "decision_tll_s",
    )


def test_pages_are_complete_and_do_not_repeat(routed: Api) -> None:
    for index in range(5):
        routed.route(f"r{index}")
    seen: list[str] = []
    after = None
    while True:
        params = {"limit": 2} | ({"after": after} if after else {})
        answer = routed.reader.get("/v1/routes", params=params).json()
        seen += [r["name"] for r in answer["items"]]
        after = answer["next"]
        if after is None:
            break
    assert seen == sorted({*seen})
    assert len(seen) == 6


def test_text_that_a_database_cannot_hold_is_no_defect(routed: Api) -> None:
    answers = [
        routed.reader.get("/v1/artifacts/%00"),
        routed.reader.get("/v1/routes/a%00b"),
        routed.operator.put(
            "/v1/routes/prose",
            content=b'{"slice": "\\ud800", "artifact": "current", "policy": "demo"}',
        ),
    ]
    assert {a.status_code for a in answers} <= {404, 422}


def test_a_policy_is_tried_on_the_past_and_nothing_is_stored(routed: Api) -> None:
    ours = Rollout(routed.clients, routed)
    ours.apply(policy_changes={"mandatory_gates": ["equivalence", "serving"]})
    routed.route(policy="priced")
    add_tasks(routed.services.db)
    ours.gates()
    assert routed.decision()["action"] == "enable"
    before = routed.reader.get("/v1/decisions").json()
    strict = policy(minimum_value={"per_task": 1e6, "currency": "EUR"})

    def tried(document: dict[str, Any], **more: Any) -> Any:
        return routed.reader.post("/v1/policies/try", json={"document": document, **more})

    answer = tried(strict).json()
    (one,) = answer["routes"]
    assert one["route"] == "prose"
    assert one["was"]["decisions"][-1]["action"] == "enable"
    assert one["would"]["decisions"][-1]["reason"] == "value_negligible"
    assert one["would"]["enables"] == 0
    same = tried(policy(mandatory_gates=["equivalence", "serving"])).json()["routes"][0]
    assert same["would"]["decisions"][-1]["action"] == "enable"
    assert same["assumed"] == []
    other = policy(mandatory_gates=["equivalence", "serving"])
    other["serving"] = {**other["serving"], "sweep_blocks": 5}
    assumed = tried(other, days=1, routes=["prose"]).json()["routes"][0]["assumed"]
    assert [item["gate"] for item in assumed] == ["serving"]
    assert routed.reader.get("/v1/decisions").json() == before
    assert tried({**strict, "name": "nobody's"}).status_code == 404
    assert tried({**strict, "hysteresis_s": -1}).status_code == 422
    assert tried(strict, days=400).status_code == 422
