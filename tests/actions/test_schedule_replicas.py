"""Many replicas that look, fire, stop and act on old looks: each slot once, or recorded as missed."""

from __future__ import annotations

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from clock_changes import ZONES, Window, windows
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scheduled_route import fill
from sqlalchemy import select, text

from gatekeeper.actions import schedules_due
from gatekeeper.store import schedules as store
from gatekeeper.store import schema
from gatekeeper.store.database import Database, open_database
from gatekeeper.store.schedules import FireRecord, ScheduleRecord
from gatekeeper.store.schema_schedules import schedule as schedule_table
from gatekeeper.store.schema_schedules import schedule_fire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPLICAS = 5
MINUTES = frozenset({0, 15, 30, 45})


class Stopped(Exception):
    """A replica that died within its transaction."""


@pytest.fixture(scope="module")
def db(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("replicas") / "store.sqlite"
    shutil.copy(sqlite_template, path)
    database = open_database(f"sqlite:///{path}")
    fill(database)
    yield database
    database.close()


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Threads whose next run is never queued: they die between taking a slot and committing."""
    doomed: set[int] = set()
    real = schedules_due.enqueue

    def enqueue(*arguments: Any, **named: Any) -> Any:
        run = real(*arguments, **named)
        if threading.get_ident() in doomed:
            doomed.discard(threading.get_ident())
            raise Stopped
        return run

    monkeypatch.setattr(schedules_due, "enqueue", enqueue)
    return doomed


@dataclass
class Replica:
    """A server with what it saw when it last looked."""

    seen: list[schedules_due.Task] = field(default_factory=list)


@dataclass
class World:
    """One schedule around one clock change, and the replicas that serve it."""

    db: Database
    window: Window
    draw: random.Random
    doomed: set[int]
    replicas: list[Replica] = field(default_factory=lambda: [Replica() for _ in range(REPLICAS)])
    served: int = 0

    def __post_init__(self) -> None:
        self.hours = frozenset(self.draw.sample(range(24), 8)) | {0, 1, 2, 3}
        self.jitter_s = self.draw.choice([0.0, 400.0])
        self.schedule = add_schedule(
            self.db,
            f"{self.draw.getrandbits(64):016x}",
            cron=f"*/15 {','.join(map(str, sorted(self.hours)))} * * *",
            zone=self.window.zone.key,
            since=self.window.begins,
            jitter_s=self.jitter_s,
        )

    def live(self) -> None:
        """Let the clock run past the change, with long silences and replicas out of step."""
        at = self.window.begins
        while at < self.window.ends:
            at += 60 * self.draw.choice([3, 30, 90, 170, 240])
            now = min(at, self.window.ends)
            awake = self.draw.sample(self.replicas, self.draw.choice([0, 1, 2, 2]))
            for replica in awake:
                replica.seen = schedules_due.look(self.db, at=now)
            for replica in self.draw.sample(self.replicas, 2):
                # perhaps of a look that is long gone
                self.act(replica)
        rest = Replica(schedules_due.look(self.db, at=self.window.ends))
        self.doomed.clear()
        self.fire(rest)

    def act(self, replica: Replica) -> None:
        whim = self.draw.random()
        if whim < 0.2:
            self.doomed.add(threading.get_ident())
        elif whim < 0.3:
            return  # goes to sleep with what it saw
        try:
            self.fire(replica)
        except Stopped:
            pass
        finally:
            self.doomed.clear()

    def fire(self, replica: Replica) -> None:
        while replica.seen:
            if schedules_due.fire(self.db, replica.seen.pop(0)) is not None:
                self.served += 1
                end_runs(self.db)

    def check(self) -> None:
        check(
            self.db,
            self.schedule,
            expected=self.window.served(MINUTES, self.hours),
            ends=self.window.ends,
            served=self.served,
        )


def add_schedule(
    db: Database, name: str, *, cron: str, zone: str, since: float, jitter_s: float
) -> ScheduleRecord:
    record = ScheduleRecord(
        id=name,
        name=name,
        route="prose",
        gates=["serving"],
        cron=cron,
        zone=zone,
        jitter_s=jitter_s,
        before_expiry_s=None,
        on_new_version=False,
        priority=0,
        revision=1,
        created_at=since,
        created_by="test",
        updated_at=since,
        paused_at=None,
        since_at=since,
        next_at=since,
        seen_artifact=None,
    )
    with db.write() as session:
        # those of earlier worlds rest
        session.execute(schedule_table.update().values(paused_at=since))
        return store.add(session, record)


def end_runs(db: Database) -> None:
    with db.write() as session:
        session.execute(text("UPDATE runs SET state = 'cancelled' WHERE state = 'pending'"))


def check(
    db: Database, schedule: ScheduleRecord, *, expected: list[float], ends: float, served: int
) -> None:
    """Every slot that was due has one record; it has a run, or was missed and has none."""
    with db.read() as session:
        query = (
            select(schedule_fire)
            .where(schedule_fire.c.schedule == schedule.id)
            .order_by(schedule_fire.c.fire_at)
        )
        fires = [FireRecord(**row) for row in session.execute(query).mappings()]
        of_schedule = schema.run.c.created_by == f"schedule {schedule.name}"
        runs = list(session.execute(select(schema.run.c.id).where(of_schedule)).scalars())
    times = [fire.fire_at for fire in fires]
    assert times == expected[: len(times)]
    assert all(at > ends - schedule.jitter_s for at in expected[len(times) :])
    for fire in fires:
        assert len(fire.runs) == (1 if fire.outcome in {"fired", "caught_up"} else 0)
    assert {fire.outcome for fire in fires} <= {"fired", "caught_up", "missed"}
    assert fires[-1].outcome != "missed"
    assert sorted(run for fire in fires for run in fire.runs) == sorted(runs)
    assert len(runs) == served


@settings(
    max_examples=1,  # of twenty worlds
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_each_slot_once_or_missed_over_the_clock_changes_of_twenty_zones(
    db: Database, stopping: set[int], seed: int
) -> None:
    outcomes = set()
    for number, zone in enumerate(ZONES):
        changes = [window for window in windows() if window.zone.key == zone]
        window = changes[(seed + number) % len(changes)]
        world = World(db, window, random.Random(f"{seed} {zone}"), stopping)
        world.live()
        world.check()
        with db.read() as session:
            fires = store.fires(session, world.schedule.id, after=None, limit=99)
        outcomes |= {fire.outcome for fire in fires}
    assert outcomes == {"fired", "caught_up", "missed"}


@pytest.mark.parametrize("guarded", [True, False])
def test_it_is_the_unique_slot_that_keeps_two_replicas_from_firing_twice(
    sqlite_template: Path, tmp_path: Path, stopping: set[int], *, guarded: bool
) -> None:
    path = tmp_path / "store.sqlite"
    shutil.copy(sqlite_template, path)
    db = open_database(f"sqlite:///{path}")
    fill(db)
    if not guarded:
        with db.write() as session:
            session.execute(text("DROP INDEX ix_schedule_fires_schedule_trigger_fire_at"))
    world = World(db, windows()[0], random.Random(1), stopping)
    one, other = (Replica(schedules_due.look(db, at=world.window.ends)) for _ in range(2))
    world.fire(one)
    world.fire(other)
    if guarded:
        world.check()
    else:
        with pytest.raises(AssertionError):
            world.check()
    db.close()


@pytest.mark.postgres
def test_five_servers_on_postgresql_fire_each_slot_once(
    postgres_migrated_url: str, stopping: set[int]
) -> None:
    servers = [open_database(postgres_migrated_url) for _ in range(REPLICAS)]
    fill(servers[0])
    window = next(w for w in windows() if w.zone.key == "Europe/Berlin" and not w.forward)
    cron, zone = "*/15 0-5 * * *", window.zone.key
    schedule = add_schedule(
        servers[0], "crowd", cron=cron, zone=zone, since=window.begins, jitter_s=0.0
    )
    expected = window.served(MINUTES, frozenset(range(6)))
    moments = [at + 1 for at in (*expected[:3], expected[7], expected[8], expected[-1])]
    together = threading.Barrier(REPLICAS, timeout=60)

    def serve(number: int, at: float) -> int:
        """Look when the others do, and fire when they do; all but one may die of it."""
        tasks = schedules_due.look(servers[number], at=at)
        if number and random.Random(f"{number} {at}").random() < 0.3:
            stopping.add(threading.get_ident())
        together.wait()
        try:
            fired = [schedules_due.fire(servers[number], task) for task in tasks]
        except Stopped:
            return 0
        finally:
            stopping.discard(threading.get_ident())
        return sum(record is not None for record in fired)

    with ThreadPoolExecutor(REPLICAS) as pool:
        for at in moments:
            served = list(pool.map(serve, range(REPLICAS), [at] * REPLICAS))
            assert sum(served) == 1
            end_runs(servers[0])
    check(servers[0], schedule, expected=expected, ends=moments[-1], served=len(moments))
    for server in servers:
        server.close()
