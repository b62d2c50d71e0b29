"""Ramp, holdout, and promised against delivered, over HTTP and on both databases."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from rollout_steps import (
    ON_SQLITE,
    PROMISED_S,
    WALL_S,
    alarms,
    both,
    delivered,
    enable,
    step,
)
from value_rollout import arrive

from gatekeeper.actions import decide
from gatekeeper.client import DecisionClient, RequestContext
from gatekeeper.core.arms import ARMS, CANDIDATE, HOLDOUT, Split
from gatekeeper.store import rollouts, schema_traces, tasks

Api = Any  # the fixture's class lives in conftest


def test_a_ramp_goes_on_by_what_it_delivered(routed: Api) -> None:
    enable(routed)
    assert step(routed) == ("enable", 1)
    first = routed.decision()
    assert (first["action"], first["reason"]) == ("bypass", "no_targeting_key")
    both(routed, 0.6)
    assert step(routed) == ("enable", 2)
    assert routed.decision()["version"] > first["version"]
    routed.services.reconciler.judge_rollouts()  # the tasks of a step count for that step alone
    assert step(routed) == ("enable", 2)
    both(routed, 0.6)
    assert step(routed) == ("enable", 3)
    both(routed, 0.6)
    assert step(routed) == ("enable", 3)
    view = delivered(routed)
    assert [w["outcome"] for w in view["windows"]] == ["held"] * 3
    assert [w["share"] for w in view["windows"]] == [1.0, 0.25, 0.05]
    newest = view["windows"][0]
    assert newest["saving_s"]["value"] == pytest.approx(0.6, abs=0.05)
    assert newest["promised"]["saving_s"]["low"] > PROMISED_S
    assert newest["sides"]["candidate"] == {
        "tasks": 60, "sessions": 60, "judged": 0, "judged_sessions": 0,
    }  # fmt: skip
    assert decide.contradictions(routed.services.db) == []


@ON_SQLITE
def test_when_traffic_stops_the_ramp_stands(routed: Api) -> None:
    """Shows 8: "traffic stops and the gate advances"."""
    enable(routed)
    arrive(routed.services.db, CANDIDATE, WALL_S - 0.6, count=39)
    arrive(routed.services.db, HOLDOUT, WALL_S, count=39)
    for _ in range(3):
        routed.services.reconciler.judge_rollouts()
        decide.refresh(routed.services.db, everything=True)
    assert step(routed) == ("enable", 1)
    window = delivered(routed)["window"]
    assert window["outcome"] == "unknown"  # whatever the figures look like so far
    assert window["still_needed"][0] == "40 candidate tasks: there are 39"
    # one side alone is no comparison either
    arrive(routed.services.db, CANDIDATE, WALL_S - 0.6, count=100)
    routed.services.reconciler.judge_rollouts()
    assert step(routed) == ("enable", 1)


@ON_SQLITE
def test_a_step_takes_its_time_and_only_tasks_tell_it(routed: Api) -> None:
    enable(routed, min_step_s=10.0)  # more than a busy machine needs for the next two lines
    began = time.monotonic()
    both(routed, 0.6)
    assert step(routed) == ("enable", 1)
    time.sleep(began + 10.1 - time.monotonic())  # nothing comes in
    routed.services.reconciler.judge_rollouts()
    decide.refresh(routed.services.db, everything=True)
    assert step(routed) == ("enable", 1)
    both(routed, 0.6, count=1, name="late")
    assert step(routed) == ("enable", 2)


@ON_SQLITE
def test_few_sessions_are_too_little_evidence(routed: Api) -> None:
    enable(routed)
    arrive(routed.services.db, CANDIDATE, WALL_S - 0.6)
    arrive(routed.services.db, HOLDOUT, WALL_S)
    table = schema_traces.task_route
    with routed.services.db.write() as session:
        session.execute(table.update().where(table.c.arm == HOLDOUT).values(session="one"))
    routed.services.reconciler.judge_rollouts()
    assert step(routed) == ("enable", 1)
    assert "sessions of ordinary tasks: there are 1" in str(delivered(routed)["window"])


def test_less_than_promised_bypasses_until_a_newer_gate_passes(routed: Api) -> None:
    ours = enable(routed)
    both(routed, 0.6)
    assert step(routed) == ("enable", 2)
    both(routed, 0.1)
    assert alarms(routed) == ["below_promise"]
    lease = routed.decision()
    assert (lease["action"], lease["reason"]) == ("bypass", "below_promise")
    assert lease["explanation"].startswith("The rollout saw this: saving: 0.")
    assert (lease["rollout"]["share"], lease["rollout"]["step"]) == (0.0, 0)
    both(routed, 0.6)  # nothing that comes in re-arms it
    assert routed.decision()["reason"] == "below_promise"
    assert delivered(routed)["window"] is None
    ours.gates()
    assert step(routed) == ("enable", 1)  # from its first step
    assert decide.contradictions(routed.services.db) == []


@ON_SQLITE
def test_regating_leaves_the_step_and_queues_the_gate_once(routed: Api) -> None:
    enable(routed, below_promise="regate")
    for _ in range(2):
        both(routed, 0.1)
    assert step(routed) == ("enable", 1)
    assert alarms(routed) == []
    runs = routed.reader.get("/v1/gate-runs", params={"route": "prose"}).json()["items"]
    assert [(r["gate"], r["created_by"]) for r in runs if r["state"] == "pending"] == [
        ("serving", "system")
    ]
    assert [w["outcome"] for w in delivered(routed)["windows"]] == ["below", "below"]


@ON_SQLITE
def test_harm_bypasses_whatever_was_declared(routed: Api) -> None:
    enable(routed, below_promise="regate")
    both(routed, -0.5)
    assert (step(routed), alarms(routed)) == (("bypass", 0), ["slower_than_holdout"])


@ON_SQLITE
def test_success_counts_where_the_policy_demands_the_outcome_gate(routed: Api) -> None:
    enable(routed, policy={})
    both(routed, 0.6)
    assert step(routed) == ("enable", 1)
    assert "candidate tasks with an outcome: there are 0" in str(delivered(routed)["window"])
    both(routed, 0.6, success=0.9)
    assert step(routed) == ("enable", 2)
    arrive(routed.services.db, CANDIDATE, WALL_S - 0.6, success=0.4)
    arrive(routed.services.db, HOLDOUT, WALL_S, success=0.95)
    routed.services.reconciler.judge_rollouts()
    assert alarms(routed) == ["success_dropped"]
    assert routed.decision()["reason"] == "success_dropped"


@ON_SQLITE
def test_without_a_promise_nothing_is_success(routed: Api) -> None:
    enable(routed)
    with routed.services.db.write() as session:
        session.execute(schema_traces.task_route.delete())  # nothing to price
    routed.services.reconciler.price_routes()
    routed.admin.put(
        "/v1/economics/priced", json={"name": "priced", "description": "", "currency": "EUR"}
    )
    both(routed, 0.6)
    assert step(routed) == ("enable", 1)
    assert [w["outcome"] for w in delivered(routed)["windows"]] == ["unknown"]


@ON_SQLITE
def test_another_artifact_or_a_failed_gate_starts_at_the_first_step(routed: Api) -> None:
    ours = enable(routed)
    both(routed, 0.6)
    assert step(routed) == ("enable", 2)
    other = routed.register(gamma=3)
    routed.operator.put("/v1/artifacts/aliases/current", json={"digest": other})
    assert step(routed) == ("bypass", 0)
    ours.gates()
    assert step(routed) == ("enable", 1)
    both(routed, 0.6)
    ours.gate("serving", "FAIL", {})
    assert step(routed) == ("bypass", 0)


KEYS = [f"user-{i}" for i in range(300)]


@ON_SQLITE
def test_rest_ofrep_and_the_client_give_one_key_one_arm(routed: Api) -> None:
    enable(routed, steps=[0.4, 1.0], holdout=0.2)
    lease = routed.decision()
    split = Split.from_dict(lease["rollout"])
    assert {split.arm(key) for key in KEYS} == set(ARMS)

    def wire(request: httpx.Request) -> httpx.Response:
        answer = routed.reader.get(request.url.path)
        return httpx.Response(200, content=answer.content, headers={"ETag": answer.headers["ETag"]})

    with DecisionClient("http://server", "t", transport=httpx.MockTransport(wire)) as client:
        assert client.refresh_all()
        for key in KEYS[:40]:
            arm = split.arm(key)
            context = {"targeting_key": key}
            rest = routed.reader.post("/v1/routes/prose/decision", json=context).json()["request"]
            flag = routed.reader.post(
                "/ofrep/v1/evaluate/flags/prose", json={"context": {"targetingKey": key}}
            ).json()
            local = client.decide("prose", RequestContext(targeting_key=key))
            assert rest["arm"] == flag["metadata"]["arm"] == local.arm == arm
            expected = "enable" if arm == CANDIDATE else "bypass"
            assert rest["action"] == local.action == expected
            assert flag["value"] is (expected == "enable")
            assert flag["reason"] == "SPLIT"
            assert rest["reason"] == local.reason == flag["metadata"]["reason"]
        keyless = client.decide("prose")
        assert (keyless.action, keyless.reason, keyless.arm) == ("bypass", "no_targeting_key", None)
    plain = routed.reader.post("/ofrep/v1/evaluate/flags/prose", json={}).json()
    assert (plain["value"], plain["reason"]) == (False, "STATIC")
    assert plain["metadata"]["reason"] == "no_targeting_key"
    wrong = routed.reader.post(
        "/ofrep/v1/evaluate/flags/prose", json={"context": {"targetingKey": 7}}
    )
    assert (wrong.status_code, wrong.json()["errorCode"]) == (400, "INVALID_CONTEXT")


@ON_SQLITE
def test_a_rollout_stays_until_somebody_ends_it(routed: Api) -> None:
    enable(routed)
    routed.route(policy="priced", slice="other")
    assert routed.reader.get("/v1/routes/prose").json()["rollout"]["holdout"] == 0.05
    assert step(routed) == ("enable", 1)
    routed.route(policy="priced", rollout=None)
    lease = routed.decision()
    assert (lease["action"], lease["rollout"]) == ("enable", None)
    bad = {"slice": "s", "artifact": "current", "policy": "priced", "rollout": {"steps": [5, 25]}}
    answer = routed.operator.put("/v1/routes/prose", json=bad)
    assert (answer.status_code, answer.json()["field"]) == (422, "rollout.steps")


@ON_SQLITE
def test_an_override_is_for_all_but_the_holdout_and_the_ramp_begins_anew(routed: Api) -> None:
    enable(routed)
    both(routed, 0.6)
    body = {"route": "prose", "action": "enable", "gamma": 2, "reason": "trial", "ttl_s": 600}
    assert routed.admin.post("/v1/overrides", json=body).status_code == 201
    split = routed.decision()["rollout"]
    assert (split["share"], split["holdout"], split["step"]) == (1.0, 0.05, None)
    assert delivered(routed)["window"] is None
    assert routed.operator.delete("/v1/overrides/prose").is_success
    assert step(routed) == ("enable", 1)


def attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def trace(api: Api, number: int, *arms: str | None) -> str:
    """Send a trace of one call for each arm; return its id."""
    trace_id = f"{number:032x}"
    start = time.time_ns()
    spans = []
    for i, arm in enumerate(arms):
        marks = [attribute("gen_ai.operation.name", "chat"), attribute("gatekeeper.route", "prose")]
        marks += [] if arm is None else [attribute("gatekeeper.arm", arm)]
        spans.append(
            {
                "traceId": trace_id,
                "spanId": f"{i + 1:016x}",
                "name": "chat",
                "startTimeUnixNano": str(start),
                "endTimeUnixNano": str(start + 10**9),
                "attributes": marks,
            }
        )
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    assert api.clients["ingester"].post("/v1/traces", json=body).status_code == 200
    return trace_id


def test_spans_and_outcomes_carry_the_arm_and_candidates_are_not_priced(routed: Api) -> None:
    enable(routed)
    db = routed.services.db
    names = [
        trace(routed, 1, CANDIDATE, CANDIDATE),
        trace(routed, 2, HOLDOUT),
        trace(routed, 3, CANDIDATE, None),
        trace(routed, 4, None),
        trace(routed, 5, "no such arm"),
        trace(routed, 6, HOLDOUT),
    ]
    table = schema_traces.task
    with db.write() as session:
        session.execute(
            table.update()
            .where(table.c.id.in_(names))
            .values(touched_at=table.c.touched_at - 100, due_at=table.c.due_at - 100)
        )
    routed.settle()
    told = [
        {"route": "prose", "task": names[1], "success": True},
        {"route": "prose", "task": names[5], "arm": CANDIDATE, "success": True},  # contradicts
        {"route": "prose", "task": "untraced", "arm": HOLDOUT, "success": False},
    ]
    answer = routed.clients["ingester"].post("/v1/outcomes", json={"outcomes": told})
    assert answer.json() == {"stored": 3, "known": 0}
    with db.read() as session:
        found = {t.task: t for t in rollouts.arm_tasks(session, "prose", since=0.0)}
        priced = {part.task for part in tasks.route_tasks(session, "prose")}
    arms = {name: found[name].arm for name in found if name in names}
    assert arms == {
        names[0]: CANDIDATE, names[1]: HOLDOUT, names[2]: "mixed", names[4]: "mixed",
        names[5]: "mixed",
    }  # fmt: skip
    assert (found[names[1]].success, found[names[1]].wall_s) == (True, 1.0)
    assert (found["untraced"].success, found["untraced"].wall_s) == (False, None)
    assert priced.isdisjoint({names[0], names[2], names[4]})
    assert {names[1], names[3]} <= priced


def test_outcomes_are_stored_once(routed: Api) -> None:
    ingester = routed.clients["ingester"]

    def send(*items: dict[str, Any]) -> Any:
        return ingester.post("/v1/outcomes", json={"outcomes": list(items)})

    one = {"route": "prose", "task": "t1", "arm": "holdout", "success": True, "wall_s": 1.5}
    assert send(one).json() == {"stored": 1, "known": 0}
    two = {**one, "task": "t2"}
    assert send(one, two).json() == {"stored": 1, "known": 1}
    other = send({**one, "task": "t3"}, {**one, "success": False})
    assert (other.status_code, other.json()["field"]) == (409, "task")
    assert send({**one, "task": "t3"}).json() == {"stored": 1, "known": 0}  # nothing of it stayed
    for body, status, field in (
        ({**one, "route": "nowhere"}, 404, "route"),
        ({"route": "prose", "task": "t4"}, 422, "task"),
        ({**one, "arm": "control"}, 422, "outcomes.0.arm"),
        ({**one, "wall_s": -1}, 422, "outcomes.0.wall_s"),
    ):
        answer = send(body)
        assert answer.status_code == status
        assert field in answer.json()["field"], answer.json()
    assert send(one, one).status_code == 422
    assert routed.reader.post("/v1/outcomes", json={"outcomes": [one]}).status_code == 403


def test_a_window_is_judged_once_among_replicas(routed: Api) -> None:
    enable(routed)
    arrive(routed.services.db, CANDIDATE, WALL_S - 0.6)
    arrive(routed.services.db, HOLDOUT, WALL_S)
    from gatekeeper.actions import delivered as action

    look = action._look

    def overtaken(*args: Any) -> Any:
        action._look = look
        found = look(*args)
        action.judge_window(routed.services.db, "prose")  # another replica, in between
        return found

    action._look = overtaken
    try:
        assert action.judge_window(routed.services.db, "prose") == []
    finally:
        action._look = look
    assert len(delivered(routed)["windows"]) == 1
    assert step(routed) == ("enable", 2)


def test_a_route_without_a_rollout_delivers_nothing(routed: Api) -> None:
    view = delivered(routed)
    assert (view["rollout"], view["split"], view["window"], view["windows"]) == (
        None,
        None,
        None,
        [],
    )
    assert routed.reader.get("/v1/routes/nowhere/delivered").status_code == 404
