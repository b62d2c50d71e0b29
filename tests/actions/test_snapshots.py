"""One reading serves all who poll: how often the database is asked, and how old an answer may be."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scheduled_route import fill
from sqlalchemy import event

from gatekeeper.actions import decide
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.actions.overrides import clear_override, set_override
from gatekeeper.actions.snapshots import FRESH_S, Snapshots
from gatekeeper.core.bypass import RequestContext
from gatekeeper.errors import Unavailable
from gatekeeper.store.database import Database, now, open_database
from gatekeeper.store.reading import read_decisions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.store.database import Session


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Statements:
    """Statements that reached the database, transactions and settings left out."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def __call__(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] not in {"BEGIN", "PRAGMA", "SET"}:
            self.sent.append(statement)

    def __len__(self) -> int:
        return len(self.sent)


@contextmanager
def counted(db: Database) -> Iterator[Statements]:
    found = Statements()
    event.listen(db.engine, "before_cursor_execute", found)
    try:
        yield found
    finally:
        event.remove(db.engine, "before_cursor_execute", found)


@pytest.fixture
def decided(db: Database) -> Database:
    fill(db)
    decide.refresh(db, everything=True)
    return db


@pytest.fixture
def replica(decided: Database) -> Iterator[Database]:
    """Another server's connections to the same database."""
    url = decided.engine.url.set(drivername=decided.engine.url.get_backend_name())
    other = open_database(url.render_as_string(hide_password=False))
    yield other
    other.close()


def override(db: Database, action: str = "bypass", ttl_s: float = 3600.0) -> None:
    set_override(
        db,
        SYSTEM,
        route="prose",
        action=action,
        reason="trial",
        ttl_s=ttl_s,
        gamma=2 if action == "enable" else None,
    )


def test_ten_thousand_polls_a_second_cost_one_query_and_no_build(decided: Database) -> None:
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    etag = snapshots.current().etag()
    with counted(decided) as statements:
        for second in range(3):
            for _ in range(10_000):
                clock.now += FRESH_S / 10_000
                assert (snapshots.fresh() or snapshots.current()).etag() == etag
            assert len(statements) <= second + 1
    assert snapshots.built == 1


def test_pollers_that_come_at_once_share_one_reading_and_one_build(decided: Database) -> None:
    snapshots = Snapshots(decided)
    start = threading.Barrier(16)
    seen: list[object] = []

    def poll() -> None:
        start.wait()
        seen.append(snapshots.current())

    with counted(decided) as statements:
        threads = [threading.Thread(target=poll) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(snapshot) for snapshot in seen}) == 1
    assert (len(statements), snapshots.built) == (1, 1)


def test_a_decision_of_this_process_is_seen_at_once(decided: Database) -> None:
    snapshots = Snapshots(decided, clock=Clock())
    before = snapshots.current()
    override(decided)
    after = snapshots.current()
    assert after.of("prose").lease.reason == "override"
    assert after.version > before.version
    assert after.etag() != before.etag()
    assert snapshots.built == 2


def test_a_decision_of_another_server_is_seen_within_the_bound(
    decided: Database, replica: Database
) -> None:
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    before = snapshots.current()
    override(replica)
    assert snapshots.current() is before
    clock.now += FRESH_S
    with counted(decided) as statements:
        after = snapshots.current()
    assert after.of("prose").lease.reason == "override"
    assert len(statements) == 1  # what has changed comes with the version
    assert Snapshots(replica).current().etag() == after.etag()


@pytest.mark.parametrize("when", ["before_cursor_execute", "after_cursor_execute"])
def test_a_write_during_the_reading_leaves_no_old_etag(
    decided: Database, replica: Database, when: str
) -> None:
    """A snapshot is whole: never the new version with the old lease, which 304 would confirm."""
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    snapshots.current()
    clock.now += FRESH_S
    raced: list[str] = []

    def write(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and not raced:
            raced.append(statement)
            override(replica)

    event.listen(decided.engine, when, write)
    during = snapshots.current()
    event.remove(decided.engine, when, write)
    assert raced
    lease = during.of("prose").lease
    assert during.version == decide.decisions.Version(*lease.version)
    clock.now += FRESH_S
    after = snapshots.current()
    assert after.of("prose").lease.reason == "override"
    assert (after.etag() == during.etag()) == (lease.reason == "override")


def test_a_commit_of_this_process_during_the_reading_is_not_overlooked(decided: Database) -> None:
    snapshots = Snapshots(decided, clock=Clock())
    raced: list[str] = []

    def write(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and not raced:
            raced.append(statement)
            thread = threading.Thread(target=override, args=(decided,))
            thread.start()
            thread.join()

    event.listen(decided.engine, "after_cursor_execute", write)
    snapshots.current()
    event.remove(decided.engine, "after_cursor_execute", write)
    assert snapshots.current().of("prose").lease.reason == "override"


def test_many_writers_and_pollers_one_etag_one_content(decided: Database) -> None:
    snapshots = Snapshots(decided)
    done = threading.Event()
    contents: dict[str, set[bytes]] = {}
    versions: list[Any] = []

    def poll() -> None:
        while not done.is_set():
            found = snapshots.current()
            versions.append(found.version)
            contents.setdefault(found.etag(), set()).add(found.body())

    thread = threading.Thread(target=poll)
    thread.start()
    for _ in range(10):
        override(decided, "enable")
        clear_override(decided, SYSTEM, "prose")
    done.set()
    thread.join()
    assert all(len(bodies) == 1 for bodies in contents.values())
    assert versions == sorted(versions)
    assert snapshots.current().of("prose").lease.reason == "insufficient_evidence"


def test_a_lease_never_outlives_the_time_at_which_its_decision_changes(
    decided: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    override(decided, "enable", ttl_s=600.0)
    began = clock.now
    with decided.read() as session:
        database_began = now(session)

    def later(session: Session, known: Any) -> Any:
        """The database's clock goes with the process's."""
        return replace(read_decisions(session, known), at=database_began + clock.now - began)

    monkeypatch.setattr("gatekeeper.actions.snapshots.read_decisions", later)
    leases = set()
    while clock.now < began + 599.5:
        lease = snapshots.current().of("prose").lease
        assert max(lease.ttl_s, lease.max_stale_s) <= began + 600.0 - clock.now + 0.05
        leases.add((lease.ttl_s, lease.max_stale_s))
        clock.now += 0.25
    assert len(leases) < 70  # and few different ones: 2,400 polls would fetch as many bodies else


def test_what_time_changes_is_decided_when_it_is_asked_for(decided: Database) -> None:
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    override(decided, "enable", ttl_s=0.3)
    assert snapshots.current().of("prose").lease.action == "enable"
    threading.Event().wait(0.35)
    clock.now += 0.35
    assert snapshots.current().of("prose").lease.action == "bypass"


def test_an_outage_is_an_error_once_the_reading_is_too_old(
    decided: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    snapshots = Snapshots(decided, clock=clock)
    snapshots.current()

    def gone(*_: object) -> None:
        raise Unavailable("does not answer", field="database")

    monkeypatch.setattr("gatekeeper.actions.snapshots.read_decisions", gone)
    snapshots.current()
    clock.now += FRESH_S
    with pytest.raises(Unavailable):
        snapshots.current()
    assert snapshots.fresh() is None


def test_a_new_epoch_makes_everything_be_read_again(decided: Database) -> None:
    snapshots = Snapshots(decided, clock=Clock())
    before = snapshots.current()
    with decided.write() as session:
        decide.decisions.new_epoch(session)
    after = snapshots.current()
    assert after.version.epoch > before.version.epoch
    assert set(after.handed) == {"prose"}
    assert after.etag() != before.etag()


def test_each_context_and_each_scope_has_an_etag_of_its_own(decided: Database) -> None:
    found = Snapshots(decided).current()
    one, other = RequestContext(concurrency=1), RequestContext(concurrency=2)
    etags = {found.etag(), found.etag(one), found.etag(other), found.etag(one, "prose")}
    assert len(etags) == 4
    assert found.etag(RequestContext(concurrency=1)) == found.etag(one)
    assert found.within(frozenset({"other"})).handed == {}
