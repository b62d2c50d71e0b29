"""Configuration as documents: a diff, then all of it or nothing, and again nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from shipped_policies import shipped_policy

from gatekeeper.core.configuration import KINDS

Api = Any  # the fixture's class lives in conftest

CHAT = {
    "kind": "route",
    "name": "chat",
    "slice": "prose",
    "artifact": "stable",
    "policy": "team",
    "rules": [{"agent": "helper", "attributes": {"tier": "*"}}],
    "slo": {"ttft_s": 0.4, "tpot_s": 0.04},
    "sampling": [{"temperature": 0.0}],
    "task_rules": {"quiet_s": 5},
}
NIGHTLY = {
    "kind": "schedule",
    "name": "chat-nightly",
    "route": "chat",
    "cron": "30 3 * * mon-fri",
    "zone": "Europe/Berlin",
    "jitter_s": 60,
    "gates": ["equivalence"],
}


def policy(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("ci")
    return {**document, "name": "team", **changes}


def prices(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("economics/demo")
    return {**document, "name": "team", **changes}


def documents(digest: str) -> list[dict[str, Any]]:
    alias = {"kind": "alias", "name": "stable", "digest": digest}
    # in no useful order: each refers to those after it
    return [NIGHTLY, CHAT, alias, prices(), policy()]


def post(api: Api, *given: Any, role: str = "admin", **more: Any) -> Any:
    files = [{"file": f"{n}.yaml", "document": one} for n, one in enumerate(given)]
    return api.clients[role].post("/v1/configuration", json={"documents": files, **more})


def applied(api: Api, *given: Any, **more: Any) -> dict[str, Any]:
    answer = post(api, *given, **more)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def told(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["change"], one["kind"], one["name"]) for one in answer["changes"]]


def export(api: Api) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.reader.get("/v1/configuration").json()["items"]
    return items


def trail(api: Api) -> int:
    newest: int = api.admin.get("/v1/audit?limit=1").json()["items"][0]["id"]
    return newest


def test_everything_is_added_at_once_and_in_the_order_of_its_references(routed: Api) -> None:
    answer = applied(routed, *documents(routed.register(gamma=2)))
    assert answer["applied"] is True
    assert told(answer) == [
        ("add", "policy", "team"),
        ("add", "economics", "team"),
        ("add", "alias", "stable"),
        ("add", "route", "chat"),
        ("add", "schedule", "chat-nightly"),
    ]
    assert [one["file"] for one in answer["changes"]] == [f"{n}.yaml" for n in (4, 3, 2, 1, 0)]
    assert routed.decision("chat")["action"] == "bypass"
    assert routed.reader.get("/v1/schedules/chat-nightly").json()["jitter_s"] == 60
    entries = routed.admin.get("/v1/audit?limit=6").json()["items"]
    assert {e["action"] for e in entries} == {
        "policy.apply",
        "economics.apply",
        "alias.move",
        "route.set",
        "schedule.set",
        "configuration.apply",
    }
    assert {e["actor_record"]["role"] for e in entries} == {"admin"}


def test_applying_an_export_changes_nothing(routed: Api) -> None:
    applied(routed, *documents(routed.register(gamma=2)))
    routed.operator.post("/v1/schedules/chat-nightly/pause")
    found = export(routed)
    assert {one["kind"] for one in found} == set(KINDS)
    before, version = trail(routed), routed.decision("chat")["version"]
    files = yaml.safe_load(yaml.safe_dump(found))  # as they come from files
    for prune in (False, True):
        answer = applied(routed, *files, prune=prune)
        assert [one for one in answer["changes"] if one["change"] != "keep"] == []
    assert export(routed) == found
    assert (trail(routed), routed.decision("chat")["version"]) == (before, version)


def test_an_export_says_no_more_than_it_must(routed: Api) -> None:
    applied(routed, *documents(routed.register(gamma=2)))
    found = {(one["kind"], one["name"]): one for one in export(routed)}
    assert found["route", "prose"] == {
        "kind": "route",
        "name": "prose",
        "slice": "prose",
        "artifact": "current",
        "policy": "ci",
    }
    assert found["route", "chat"]["rules"] == CHAT["rules"]
    assert found["schedule", "chat-nightly"] == NIGHTLY


def test_a_change_is_told_field_by_field(routed: Api) -> None:
    digest = routed.register(gamma=2)
    applied(routed, *documents(digest))
    changed = copy.deepcopy(CHAT)
    changed["slo"]["tpot_s"] = 0.03
    del changed["task_rules"]
    changed["sampling"] = [{"temperature": 0.0}, {"temperature": 1.0}]
    answer = applied(routed, changed, policy(decision_ttl_s=30), dry_run=True)
    assert answer["applied"] is False
    one, two = answer["changes"]
    assert (one["kind"], one["fields"]) == (
        "policy",
        [{"field": "decision_ttl_s", "before": 60.0, "after": 30.0}],
    )
    assert two["fields"] == [
        {"field": "slo.tpot_s", "before": 0.04, "after": 0.03},
        {"field": "sampling[1].temperature", "after": 1.0},
        {"field": "task_rules.group_by", "before": "trace"},
        {"field": "task_rules.quiet_s", "before": 5.0},
    ]


def test_a_dry_run_stores_nothing_and_finds_what_applying_would(routed: Api) -> None:
    before, found = trail(routed), export(routed)
    digest = routed.register(gamma=2)
    registered = trail(routed)
    assert registered > before
    assert len(applied(routed, *documents(digest), dry_run=True)["changes"]) == 5
    lost = post(routed, {**CHAT, "artifact": "nowhere", "policy": "ci"}, dry_run=True)
    assert (lost.status_code, lost.json()["field"]) == (404, "0.yaml: artifact")
    assert (trail(routed), export(routed)) == (registered, found)


@pytest.mark.parametrize(
    ("bad", "status", "field", "value"),
    [
        ({**CHAT, "colour": "red"}, 422, "colour", "red"),
        ({**CHAT, "slo": {"ttft_s": "soon"}}, 422, "slo.ttft_s", "soon"),
        ({**CHAT, "rules": [{}]}, 422, "rule", "chat"),
        ({**CHAT, "sampling": [{"temperature": 0.3}]}, 422, "sampling", None),
        ({**CHAT, "policy": "nowhere"}, 404, "policy", "nowhere"),
        ({**CHAT, "name": "../etc"}, 422, "name", "../etc"),
        ({**CHAT, "kind": "pod"}, 422, "kind", "pod"),
        ({"name": "x"}, 422, "kind", None),
        ({"kind": "route", "slice": "x"}, 422, "name", None),
        ({**NIGHTLY, "zone": "Europe/Berlyn"}, 422, "zone", "Europe/Berlyn"),
        ({**NIGHTLY, "cron": "61 * * * *"}, 422, "cron", "61 * * * *"),
        ({**NIGHTLY, "route": "nowhere"}, 404, "route", "nowhere"),
        ({"kind": "alias", "name": "x", "digest": "abc"}, 422, "digest", "abc"),
        ({"kind": "alias", "name": "x", "digest": "0" * 64}, 404, "digest", "0" * 64),
        (policy(decision_tll_s=1), 422, "decision_tll_s", 1),
        (prices(currency=3), 422, "currency", 3),
    ],
)
def test_one_bad_document_is_named_and_none_is_applied(
    routed: Api, bad: Any, status: int, field: str, value: Any
) -> None:
    good = [policy(name="extra"), *documents(routed.register(gamma=2))]
    good = [
        one for one in good if (one.get("kind"), one["name"]) != (bad.get("kind"), bad.get("name"))
    ]
    before, found = trail(routed), export(routed)
    answer = post(routed, *good, bad)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert problem["field"] == f"{len(good)}.yaml: {field}"
    assert problem["remedy"]
    if value is not None:
        assert problem["value"] == value
    assert (trail(routed), export(routed)) == (before, found)


def test_a_ramp_does_not_end_by_omission(routed: Api) -> None:
    (route,) = [one for one in export(routed) if one["kind"] == "route"]
    ramped = {**route, "rollout": {"steps": [0.05, 1], "holdout": 0.02}}
    applied(routed, ramped)
    assert applied(routed, route)["changes"] == []
    (found,) = [one for one in export(routed) if one["kind"] == "route"]
    assert (found["rollout"]["steps"], found["rollout"]["holdout"]) == ([0.05, 1.0], 0.02)
    assert applied(routed, found)["changes"] == []
    applied(routed, {**route, "slice": "other"})  # a change elsewhere keeps it
    (found,) = [one for one in export(routed) if one["kind"] == "route"]
    assert found["rollout"]["holdout"] == 0.02
    (ended,) = applied(routed, {**found, "rollout": None})["changes"]
    assert {one["field"].partition(".")[0] for one in ended["fields"]} >= {"rollout"}
    assert export(routed)[-1] == {**route, "slice": "other"}
    wrong = post(routed, {**route, "rollout": {"steps": [1]}})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "0.yaml: rollout.steps")


def test_a_thing_declared_twice_is_refused(routed: Api) -> None:
    answer = post(routed, CHAT, policy(), {**CHAT, "slice": "other"})
    assert (answer.status_code, answer.json()["field"]) == (422, "2.yaml: name")
    assert "0.yaml" in answer.json()["detail"]


def test_an_alias_and_the_sampling_that_it_covers_move_together(routed: Api) -> None:
    routed.route(sampling=[{"temperature": 1.0}])
    colder = routed.register(sampling=[{"temperature": 0.5}])
    alias = {"kind": "alias", "name": "current", "digest": colder}
    refused = post(routed, alias)
    assert (refused.status_code, refused.json()["field"]) == (422, "0.yaml: sampling")
    route = next(one for one in export(routed) if one["kind"] == "route")
    answer = applied(routed, alias, {**route, "sampling": [{"temperature": 0.5}]})
    assert told(answer) == [("change", "alias", "current"), ("change", "route", "prose")]
    assert routed.decision()["artifact"] == colder


def test_pruning_removes_what_nothing_needs_and_says_why_the_rest_stays(routed: Api) -> None:
    digest = routed.register(gamma=2)
    applied(routed, *documents(digest))
    other = {"kind": "alias", "name": "unused", "digest": digest}
    hourly = {"kind": "schedule", "name": "chat-hourly", "route": "chat", "before_expiry_s": 60}
    applied(routed, other, hourly)
    assert applied(routed, *documents(digest))["changes"] == []  # nothing goes unless asked
    answer = applied(routed, *documents(digest), prune=True)
    assert told(answer) == [
        ("remove", "schedule", "chat-hourly"),
        ("keep", "route", "prose"),
        ("remove", "alias", "unused"),
        ("keep", "alias", "current"),
        ("remove", "economics", "production"),
        ("remove", "economics", "demo"),
        ("remove", "policy", "production"),
        ("remove", "policy", "demo"),
        ("keep", "policy", "ci"),
    ]
    reasons = {one["kind"]: one["why"] for one in answer["changes"] if one["change"] == "keep"}
    assert "decisions" in reasons["route"]
    assert reasons["alias"] == reasons["policy"] == "route prose needs it"
    left = {(one["kind"], one["name"]) for one in export(routed)}
    assert ("alias", "unused") not in left
    assert ("policy", "ci") in left
    actions = [e["action"] for e in routed.admin.get("/v1/audit").json()["items"]]
    assert {"alias.remove", "policy.remove", "economics.remove", "schedule.delete"} <= set(actions)


def test_pruning_concerns_the_kinds_that_the_documents_have(routed: Api) -> None:
    applied(routed, *documents(routed.register(gamma=2)))
    answer = applied(routed, policy(), prune=True, dry_run=True)
    assert {one["kind"] for one in answer["changes"]} == {"policy"}


def test_only_what_was_looked_at_is_applied(routed: Api) -> None:
    plan = applied(routed, policy(), dry_run=True)["plan"]
    applied(routed, policy(decision_ttl_s=30))
    answer = post(routed, policy(), plan=plan)
    assert (answer.status_code, answer.json()["field"]) == (409, "plan")
    fresh = applied(routed, policy(), dry_run=True)["plan"]
    assert applied(routed, policy(), plan=fresh)["applied"] is True


def test_roles_hold(routed: Api) -> None:
    digest = routed.register(gamma=2)
    before = trail(routed)
    assert post(routed, CHAT, role="reader").status_code == 403
    assert post(routed, policy(), role="operator").status_code == 403
    alias = {"kind": "alias", "name": "stable", "digest": digest}
    mixed = post(routed, alias, policy(), role="operator")  # the alias alone would do
    assert (mixed.status_code, trail(routed)) == (403, before)
    assert told(applied(routed, alias, role="operator")) == [("add", "alias", "stable")]
    applied(routed, policy())
    # unchanged policies beside it are no reason to refuse
    moved = {**alias, "digest": routed.register(gamma=3)}
    assert told(applied(routed, moved, policy(), role="operator")) == [
        ("change", "alias", "stable")
    ]
    assert post(routed, policy(), role="operator", prune=True).status_code == 403


def test_a_failure_in_the_middle_leaves_nothing(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gatekeeper.actions import configuration

    digest = routed.register(gamma=2)
    before, found = trail(routed), export(routed)

    def broken(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(configuration, "set_schedule", broken)
    with pytest.raises(LookupError):
        post(routed, *documents(digest))
    assert (trail(routed), export(routed)) == (before, found)
