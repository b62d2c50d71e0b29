"""Old spans go, figures stay: and nothing that comes later changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from gatekeeper.actions import retention
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.actions.retention import remove_old_spans
from gatekeeper.store import tasks
from gatekeeper.store.schema_traces import span as spans
from gatekeeper.store.schema_traces import task as table

if TYPE_CHECKING:
    import pytest

Api = Any  # the fixture's class lives in conftest

DAY = 86_400.0
SECOND = 10**9
START = 1_767_225_600 * SECOND
AT_ONCE = {"quiet_s": 0}
TALK = {"group_by": "conversation", "quiet_s": 0}


def send(api: Api, trace: str, *numbers: int) -> Any:
    """Send calls of one trace; its conversation is the same for all traces."""
    values = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.request.model": {"stringValue": "m"},
        "gen_ai.conversation.id": {"stringValue": "talk"},
        "gen_ai.response.time_to_first_chunk": {"doubleValue": 0.0},
    }
    made = [
        {
            "traceId": trace * 16,
            "spanId": f"{n:016x}",
            "name": "chat",
            "startTimeUnixNano": str(START + n * SECOND),
            "endTimeUnixNano": str(START + (n + 1) * SECOND),
            "attributes": [{"key": key, "value": value} for key, value in values.items()],
        }
        for n in numbers
    ]
    body = {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}
    answer = api.clients["ingester"].post("/v1/traces", json=body)
    assert answer.status_code == 200
    return answer.json()


def pass_days(api: Api, days: float) -> None:
    """Make it as if everything had come in so much earlier, and compute what is due."""
    with api.services.db.write() as session:
        aged = {name: table.c[name] - days * DAY for name in ("touched_at", "due_at")}
        session.execute(table.update().values(aged))
    for _ in range(3):  # traces find their conversation first
        api.settle()


def count(api: Api) -> int:
    with api.services.db.read() as session:
        return int(session.execute(select(func.count()).select_from(spans)).scalar_one())


def removed(api: Api, days: float) -> tuple[int, int]:
    found = remove_old_spans(api.services.db, SYSTEM, age_s=days * DAY)
    return found.tasks, found.spans


def parts(api: Api) -> list[tasks.TaskRoute]:
    with api.services.db.read() as session:
        return tasks.route_tasks(session, "desk")


def shown(api: Api, trace: str) -> Any:
    return api.reader.get(f"/v1/tasks/{trace * 16}").json()


def test_old_spans_go_and_figures_stay(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    send(routed, "aa", 1, 2, 3)
    pass_days(routed, 40)
    send(routed, "bb", 1, 2)
    pass_days(routed, 1)
    before, priced = shown(routed, "aa"), parts(routed)
    assert removed(routed, 42) == (0, 0)
    assert removed(routed, 30) == (1, 3)
    assert removed(routed, 30) == (0, 0)
    assert count(routed) == 2
    after = shown(routed, "aa")
    assert after["spans_removed_at"] is not None
    assert {**after, "spans_removed_at": None} == before
    assert parts(routed) == priced
    (entry,) = [e for e in routed.admin.get("/v1/audit").json()["items"] if "spans" in e["action"]]
    assert (entry["detail"]["tasks"], entry["detail"]["spans"]) == (1, 3)
    gone = routed.reader.get(f"/v1/tasks/{'aa' * 16}/critical-path")
    assert gone.status_code == 404
    assert "removed" in gone.json()["detail"]


def test_what_comes_later_changes_nothing(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    send(routed, "aa", 1, 2, 3)
    pass_days(routed, 40)
    removed(routed, 30)
    before, priced = shown(routed, "aa"), parts(routed)
    late = send(routed, "aa", 2, 7)["partialSuccess"]
    assert late["rejectedSpans"] == "2"
    assert "too late" in late["errorMessage"]
    routed.route("desk", rules=[{"model": "nobody"}], task_rules=AT_ONCE)  # other rules
    pass_days(routed, 1)
    assert (shown(routed, "aa"), parts(routed), count(routed)) == (before, priced, 0)
    assert send(routed, "cc", 1) == {}  # others are not concerned


def test_open_tasks_and_growing_conversations_keep_all_spans(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=TALK)
    send(routed, "aa", 1, 2)
    assert removed(routed, 0) == (0, 0)  # nothing is computed yet
    pass_days(routed, 40)
    send(routed, "bb", 5)
    pass_days(routed, 1)
    assert removed(routed, 30) == (0, 0)
    assert count(routed) == 3
    send(routed, "aa", 3)  # changed, and not computed anew
    with routed.services.db.write() as session:
        session.execute(table.update().values(touched_at=table.c.touched_at - 90 * DAY))
    assert removed(routed, 30) == (0, 0)
    pass_days(routed, 90)  # its conversation has now changed again
    assert removed(routed, 30) == (0, 0)
    pass_days(routed, 40)
    assert removed(routed, 30) == (1, 4)
    assert shown(routed, "bb")["calls"] == 4


def test_a_trace_after_its_conversation_is_a_task_of_its_own(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=TALK)
    send(routed, "aa", 1, 2)
    pass_days(routed, 1)
    pass_days(routed, 40)
    assert removed(routed, 30) == (1, 2)
    whole = shown(routed, "aa")
    send(routed, "bb", 5)
    pass_days(routed, 1)
    assert shown(routed, "aa") == whole
    own = shown(routed, "bb")
    assert (own["id"], own["calls"], own["session"]) == ("bb" * 16, 1, "talk")
    assert len(parts(routed)) == 2


def test_many_tasks_go_in_batches(routed: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for n in range(5):
        send(routed, f"a{n}", 1)
    pass_days(routed, 40)
    assert removed(routed, 30) == (5, 5)
    assert count(routed) == 0
