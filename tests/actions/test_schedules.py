from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from scheduled_route import FIRST, SECOND, fill
from sqlalchemy import text

from gatekeeper.actions import catalog, retention, schedules, schedules_due
from gatekeeper.actions.identity import SYSTEM, audit_trail
from gatekeeper.actions.queue import list_runs
from gatekeeper.actions.submit import submit
from gatekeeper.core.schedules import Rule
from gatekeeper.core.verdicts import GateResult, Outcome, Part, to_json
from gatekeeper.errors import Conflict, InputError
from gatekeeper.store import results
from gatekeeper.store.records import GateRecord, PolicyRecord, RunRecord

if TYPE_CHECKING:
    from gatekeeper.store.database import Database
    from gatekeeper.store.schedules import FireRecord, ScheduleRecord

DAY = 86_400.0


@dataclass(frozen=True)
class World:
    """One route with schedules, and whatever time it is asked to be."""

    db: Database
    policy: PolicyRecord

    def put(self, **changes: Any) -> ScheduleRecord:
        rule = Rule(**{"route": "prose", "cron": "30 3 * * *", "zone": "Europe/Berlin", **changes})
        return schedules.put_schedule(self.db, SYSTEM, "nightly", rule)

    def watch(self, **changes: Any) -> ScheduleRecord:
        return self.put(cron=None, zone=None, **changes)

    def slots(self, count: int = 5) -> list[float]:
        record = schedules.get_schedule(self.db, "nightly")
        return [slot.at for slot in schedules.upcoming(self.db, record, count)]

    def tick(self, at: float | None = None) -> list[FireRecord | None]:
        tasks = schedules_due.look(self.db, at=at)
        return [schedules_due.fire(self.db, task) for task in tasks]

    def fires(self) -> list[FireRecord]:
        found = schedules.list_fires(self.db, "nightly", after=None, limit=99)
        return sorted(found, key=lambda fire: fire.fire_at)

    def pending(self) -> list[RunRecord]:
        found = list_runs(self.db, after=None, limit=99, route="prose", state="pending")
        return sorted(found, key=lambda run: run.gate)

    def execute(self, statement: str, **values: str) -> None:
        with self.db.write() as session:
            session.execute(text(statement), values)

    def cancel_all(self) -> None:
        self.execute("UPDATE runs SET state = 'cancelled' WHERE state = 'pending'")

    def prove(self, gate: str, *, ttl_s: float, outcome: Outcome = Outcome.PASS) -> None:
        """Give a gate a result as a worker's finished run would."""
        run, _ = submit(self.db, SYSTEM, route="prose", gate=gate, parameters={})
        self.execute("UPDATE runs SET state = 'finished' WHERE id = :run", run=run.id)
        judged = to_json(GateResult(gate, outcome, (Part("all", outcome, "as told"),)))
        record = GateRecord(
            run.id, "prose", gate, run.artifact, run.policy, outcome.value, judged, 0.0, 0.0
        )
        with self.db.write() as session:
            results.add_gate_result(session, record, ttl_s=ttl_s)


@pytest.fixture
def world(db: Database) -> World:
    return World(db, fill(db))


def test_a_slot_queues_what_the_policy_demands_and_the_next_waits_for_it(world: World) -> None:
    world.put(priority=7)
    one, two, three, *_ = world.slots()
    assert world.tick(one - 1) == []
    (fired,) = world.tick(one + 1)
    runs = world.pending()
    assert [run.gate for run in runs] == ["equivalence", "serving"]  # of policy ci
    assert {(run.created_by, run.priority) for run in runs} == {("schedule nightly", 7)}
    assert fired is not None
    assert (fired.outcome, fired.trigger, fired.fire_at) == ("fired", "cron", one)
    assert sorted(fired.runs) == sorted(run.id for run in runs)
    assert world.tick(one + 1) == []
    # nobody has done the work by the next slot: more of the same would only pile up
    (waits,) = world.tick(two)
    assert waits is not None
    assert (waits.outcome, waits.runs) == ("skipped", [])
    assert runs[0].id in (waits.note or "")
    world.execute("UPDATE runs SET state = 'cancelled' WHERE gate = 'serving'")
    (half,) = world.tick(three)
    assert half is not None
    assert (half.outcome, len(half.runs)) == ("fired", 1)
    trail = audit_trail(world.db, after=None, limit=99)
    assert sum(entry.actor == "schedule nightly" for entry in trail) == 3


def test_downtime_leaves_one_run_and_the_misses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(gates=("serving",))
    slots = world.slots(8)
    world.tick(slots[3] + 7200)
    outcomes = ["missed", "missed", "missed", "caught_up"]
    assert [(f.fire_at, f.outcome) for f in world.fires()] == list(
        zip(slots[:4], outcomes, strict=True)
    )
    assert len(world.pending()) == 1
    world.cancel_all()
    # a longer one is sorted out a batch at each tick
    monkeypatch.setattr(schedules_due, "BATCH", 2)
    assert [f for f in world.tick(slots[7] + 7200) if f] == []
    assert world.pending() == []
    assert len([f for f in world.tick(slots[7] + 7200) if f]) == 1
    assert [f.fire_at for f in world.fires()] == slots
    assert [f.outcome for f in world.fires()][4:] == outcomes


def test_a_gate_that_cannot_be_queued_leaves_no_run_and_says_why(world: World) -> None:
    world.prove("equivalence", ttl_s=DAY, outcome=Outcome.FAIL)
    world.put(gates=("equivalence", "serving"))
    (fire,) = world.tick(world.slots()[0])
    assert fire is not None
    assert (fire.outcome, fire.runs) == ("skipped", [])
    assert "has failed in run" in (fire.note or "")
    assert world.pending() == []
    # a FAIL does not lapse: there is no evidence to keep alive
    world.prove("serving", ttl_s=DAY)
    world.watch(before_expiry_s=2 * DAY)
    assert world.tick() == []


def test_without_one_of_its_gates_none_is_queued(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = schedules_due.enqueue

    def enqueue(*arguments: Any, **named: Any) -> Any:
        if named["gate"] == "serving":
            raise InputError("cannot be run today", field="gate")
        return real(*arguments, **named)

    monkeypatch.setattr(schedules_due, "enqueue", enqueue)
    world.put()
    (fire,) = world.tick(world.slots()[0])
    assert fire is not None
    assert (fire.outcome, fire.runs) == ("skipped", [])
    assert "cannot be run today" in (fire.note or "")
    assert world.pending() == []


def test_a_pause_has_no_slots_and_a_change_closes_the_open_ones(world: World) -> None:
    world.put(cron="* * * * *", zone="UTC")
    world.execute("UPDATE schedules SET since_at = since_at - 200")
    paused = schedules.pause_schedule(world.db, SYSTEM, "nightly")
    assert schedules.pause_schedule(world.db, SYSTEM, "nightly") == paused
    closed = world.fires()
    assert {(f.outcome, f.note) for f in closed} == {
        ("missed", "the schedule was paused before it was served")
    }
    assert len(closed) in {3, 4}
    assert world.tick(time.time() + 3600) == []
    assert world.put(cron="* * * * *", zone="UTC", priority=1).paused_at == paused.paused_at
    assert world.slots() == []
    resumed = schedules.resume_schedule(world.db, SYSTEM, "nightly")
    assert schedules.resume_schedule(world.db, SYSTEM, "nightly") == resumed
    assert world.slots()[0] > (paused.paused_at or 0)
    assert resumed.next_at == world.slots()[0]
    assert world.fires() == closed
    world.tick(world.slots()[1])
    assert len(world.pending()) == 2
    # with another cron, what the old one left open is missed
    world.execute("UPDATE schedules SET since_at = since_at - 3600")
    world.execute("DELETE FROM schedule_fires")
    world.put(cron="0 3 * * *", zone="UTC")
    assert {f.note for f in world.fires()} == {"the schedule was changed before it was served"}
    assert len(world.fires()) >= 59
    trail = [entry.action for entry in audit_trail(world.db, after=None, limit=99)]
    assert trail.count("schedule.pause") == trail.count("schedule.resume") == 1


def test_evidence_is_renewed_before_it_lapses_gate_by_gate_and_once(world: World) -> None:
    world.prove("equivalence", ttl_s=5 * DAY)
    world.watch(before_expiry_s=2 * DAY)
    assert world.tick() == []
    world.prove("serving", ttl_s=DAY)
    (fired,) = world.tick()
    assert fired is not None
    assert (fired.trigger, fired.outcome, len(fired.runs)) == ("before_expiry", "fired", 1)
    assert [run.gate for run in world.pending()] == ["serving"]
    assert world.tick() == []  # in flight
    world.cancel_all()
    assert world.tick() == []  # somebody cancelled it: not again for the same evidence
    (late,) = world.tick(time.time() + 3.5 * DAY)
    assert late is not None
    assert late.outcome == "caught_up"  # half a day late
    assert [run.gate for run in world.pending()] == ["equivalence"]
    world.cancel_all()
    world.prove("equivalence", ttl_s=9 * DAY)
    world.prove("serving", ttl_s=9 * DAY)
    assert world.tick(time.time() + 6 * DAY) == []


def test_a_new_version_is_gated_once_and_a_proven_one_not_again(world: World) -> None:
    world.prove("equivalence", ttl_s=DAY)
    world.prove("serving", ttl_s=DAY)
    world.watch(on_new_version=True)
    assert world.tick() == []
    catalog.move_alias(world.db, SYSTEM, "current", SECOND)
    # setting it again must not make it forget what it has not seen yet
    world.watch(on_new_version=True, priority=1)
    schedules.pause_schedule(world.db, SYSTEM, "nightly")
    assert world.tick() == []
    schedules.resume_schedule(world.db, SYSTEM, "nightly")
    stale = schedules_due.look(world.db)
    (fired,) = world.tick()
    assert fired is not None
    assert (fired.trigger, fired.outcome) == ("new_version", "fired")
    assert {run.artifact for run in world.pending()} == {SECOND}
    assert [schedules_due.fire(world.db, task) for task in stale] == [None]
    assert world.tick() == []
    catalog.move_alias(world.db, SYSTEM, "current", FIRST)
    (back,) = world.tick()
    assert back is not None
    assert (back.outcome, back.runs) == ("skipped", [])
    assert "has passed" in (back.note or "")
    world.execute("UPDATE routes SET artifact = :digest", digest=SECOND)  # without the alias
    (again,) = world.tick()
    assert again is not None
    assert (again.note or "").count("in flight") == 2


def test_a_schedule_deleted_since_the_look_fires_nothing(world: World) -> None:
    world.put()
    stale = schedules_due.look(world.db, at=world.slots()[0])
    schedules.delete_schedule(world.db, SYSTEM, "nightly")
    for task in stale:
        with pytest.raises(Conflict):
            schedules_due.fire(world.db, task)
    assert world.pending() == []
    assert schedules_due.fire_due(world.db) == []


def age(world: World) -> None:
    """Make it as if all had been recorded a hundred days earlier."""
    world.execute("UPDATE schedule_fires SET recorded_at = recorded_at - 8640000")


def test_old_fires_go_and_no_slot_is_served_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "FIRES", 2)
    world.put(gates=("serving",))
    slots = world.slots(6)
    world.tick(slots[4] + 7200)
    assert retention.remove_old_fires(world.db, SYSTEM, age_s=90 * DAY) == 0
    age(world)
    assert retention.remove_old_fires(world.db, SYSTEM, age_s=90 * DAY) == 4
    assert retention.remove_old_fires(world.db, SYSTEM, age_s=90 * DAY) == 0
    assert [fire.fire_at for fire in world.fires()] == [slots[4]]
    assert len(world.pending()) == 1  # its runs stay
    assert world.tick(slots[4] + 7300) == []
    world.cancel_all()
    assert [f.fire_at for f in world.tick(slots[5] + 1) if f] == [slots[5]]
    trail = audit_trail(world.db, after=None, limit=99, action="fires.remove")
    assert [entry.detail["fires"] for entry in trail] == [4]


def test_evidence_whose_fire_is_old_is_not_renewed_again(world: World) -> None:
    world.prove("serving", ttl_s=DAY)
    world.prove("equivalence", ttl_s=1.5 * DAY)
    world.watch(before_expiry_s=2 * DAY)
    assert len(world.tick()) == 2
    world.cancel_all()
    age(world)
    # the newest stays as such, the other since its evidence still counts
    assert retention.remove_old_fires(world.db, SYSTEM, age_s=90 * DAY) == 0
    assert world.tick() == []
    world.prove("serving", ttl_s=30 * DAY)
    assert retention.remove_old_fires(world.db, SYSTEM, age_s=90 * DAY) == 1
    assert world.tick() == []
    assert world.pending() == []
