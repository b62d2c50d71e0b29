from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from gatekeeper.actions.identity import SYSTEM
from gatekeeper.errors import Conflict, InputError, Unavailable
from gatekeeper.store import access, catalog, decisions
from gatekeeper.store.database import Database, open_database
from gatekeeper.store.lock import sole_server
from gatekeeper.store.records import OverrideRecord

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys
from gatekeeper.store.database import open_database
from gatekeeper.store.lock import sole_server
with sole_server(open_database(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_server_on_one_sqlite_file_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'one.sqlite'}"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        db = open_database(url)
        served = f"already served by process {holder.pid}"
        with pytest.raises(Conflict, match=served), sole_server(db):
            pass
        holder.kill()
        holder.wait()
        with sole_server(db):  # the kernel freed the lock with the process
            pass
        db.close()


@pytest.mark.parametrize(
    "url", ["mysql://root@localhost/x", "sqlite://", "no url at all", "postgresql://h:1x/y"]
)
def test_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="sqlite:///path"):
        open_database(url)


def test_an_unreachable_database_names_itself_without_its_password(tmp_path: Path) -> None:
    db = open_database(f"postgresql://me:hidden@/x?host={tmp_path}")
    with pytest.raises(Unavailable, match="does not answer") as caught, db.read():
        pass
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"not a database" * 1000)
    db = open_database(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with pytest.raises(Unavailable, match="file is not a database"), db.read():
        pass


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite.lock").mkdir()
    db = open_database(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with pytest.raises(Unavailable, match="lock="), sole_server(db):
        pass


def test_a_transaction_that_fails_leaves_nothing(db: Database) -> None:
    def change_and_break() -> None:
        with db.write() as session:
            access.audit(session, actor=SYSTEM, action="b", target="c", detail={})
            access.audit(session, actor=SYSTEM, action=None, target="c", detail={})  # type: ignore[arg-type]

    with pytest.raises(Conflict):
        change_and_break()
    with db.read() as session:
        assert access.audit_trail(session, after=None, limit=9) == []


def test_nan_never_enters_a_document(db: Database) -> None:
    with pytest.raises(Exception, match="JSON compliant"), db.write() as session:
        access.audit(session, actor=SYSTEM, action="b", target="c", detail={"x": float("nan")})


def test_versions_are_distinct_and_rise_by_one_under_contention(db: Database) -> None:
    with db.write() as session:
        start = decisions.new_epoch(session)
    seen: list[int] = []

    def take() -> None:
        for _ in range(10):
            with db.write() as session:
                seen.append(decisions.advance(session).counter)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 41))
    with db.write() as session:
        assert decisions.new_epoch(session) > start


def test_no_counter_is_an_error_not_version_zero(db: Database) -> None:
    with pytest.raises(Unavailable, match="counter"), db.write() as session:
        decisions.advance(session)


@pytest.mark.parametrize(
    "db", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_transactions_that_store_for_a_route_and_then_lock_it_do_not_block_each_other(
    catalogued: Database,
) -> None:
    """As an override and a pricing do: a stored row holds the key of the route it names."""
    both_stored = threading.Barrier(2, timeout=20)

    def store_then_lock(name: str) -> None:
        record = OverrideRecord(
            name, name, "prose", "bypass", None, "test", "test", 0.0, 0.0, None, None
        )
        with catalogued.write() as session:
            decisions.add_override(session, record, ttl_s=60.0)
            both_stored.wait()
            assert catalog.route(session, "prose", lock=True) is not None

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(store_then_lock, ("one", "two")))


def test_an_error_carries_nothing_of_what_was_to_be_stored(db: Database) -> None:
    prompt = " ".join(("what", "somebody", f"wrote {db.sqlite}"))
    statement = text("SELECT 1 FROM nowhere WHERE written = :prompt")
    with pytest.raises(Exception, match="nowhere") as caught, db.write() as session:
        session.execute(statement, {"prompt": prompt})
    logged = "".join(traceback.format_exception(caught.value))
    assert "SELECT 1 FROM nowhere" in logged
    assert prompt not in logged
