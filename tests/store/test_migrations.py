from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic import command
from sqlalchemy import inspect, text

from gatekeeper.config import data_dir
from gatekeeper.errors import Unavailable
from gatekeeper.store import access, migrate, schema
from gatekeeper.store.database import Database, open_database

if TYPE_CHECKING:
    from pathlib import Path

LOCATION = data_dir("migrations")


def tables(db: Database) -> set[str]:
    return set(inspect(db.engine).get_table_names()) - {"alembic_version"}


def test_up_down_up_and_no_difference_to_the_tables_in_code(database_url: str) -> None:
    db = open_database(database_url)
    assert migrate.current(db) is None
    assert migrate.upgrade(db, LOCATION) == migrate.head(LOCATION)
    assert tables(db) == set(schema.metadata.tables)
    settings = migrate.config(LOCATION)
    with db.write() as session:
        settings.attributes["connection"] = session
        command.downgrade(settings, "base")
    assert tables(db) == set()
    migrate.upgrade(db, LOCATION)
    assert tables(db) == set(schema.metadata.tables)
    with db.write() as session:
        settings.attributes["connection"] = session
        command.check(settings)  # raises where models and migrations differ
    db.close()


def test_a_failing_migration_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    location = tmp_path / "migrations"
    (location / "versions").mkdir(parents=True)
    (location / "env.py").write_text((LOCATION / "env.py").read_text())
    (location / "versions" / "x.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        "revision = 'x'\ndown_revision = None\n"
        "def upgrade():\n"
        "    op.create_table('half', sa.Column('id', sa.Integer()))\n"
        "    raise RuntimeError('planted')\n"
    )
    db = open_database(database_url)
    with pytest.raises(RuntimeError, match="planted"):
        migrate.upgrade(db, location)
    assert tables(db) == set()
    db.close()


def test_an_old_schema_is_refused_with_the_remedy(database_url: str) -> None:
    db = open_database(database_url)
    with pytest.raises(Unavailable, match="gatekeeper db upgrade"):
        migrate.require_current(db, LOCATION)
    migrate.upgrade(db, LOCATION)
    migrate.require_current(db, LOCATION)
    db.close()


def test_a_newer_schema_is_refused_and_left_alone(database_url: str) -> None:
    db = open_database(database_url)
    migrate.upgrade(db, LOCATION)
    with db.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'newer'"))
    with pytest.raises(Unavailable, match="newer"):
        migrate.upgrade(db, LOCATION)
    assert tables(db) == set(schema.metadata.tables)
    db.close()


def test_alembic_itself_finds_the_location_in_pyproject(database_url: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "GATEKEEPER_DATABASE_URL": database_url,
        "GATEKEEPER_HOME": str(tmp_path / "home"),
    }
    for arguments in (["upgrade", "head"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=LOCATION.parent,
            env=env,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    db = open_database(database_url)
    assert migrate.current(db) == migrate.head(LOCATION)
    db.close()


def test_tokens_and_entries_of_the_release_before_go_on(database_url: str) -> None:
    db = open_database(database_url)
    migrate.upgrade(db, LOCATION, target="0006")
    token = {"id": "t1", "name": "ci", "role": "reader", "sha256": "1" * 64, "created_at": 1.0}
    entry = {"at": 1.0, "actor": "ci (t1)", "action": "a", "object": "o", "detail": "{}"}
    with db.write() as session:
        for table, row in (("tokens", token), ("audit", entry)):
            columns = ", ".join(row)
            names = ", ".join(f":{name}" for name in row)
            if table == "audit" and not db.sqlite:
                names = names.replace(":detail", "CAST(:detail AS jsonb)")
            session.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({names})"), row)  # noqa: S608 - our own names

    def known() -> None:
        with db.read() as session:
            found = access.token_by_hash(session, "1" * 64)
            (trail,) = access.audit_trail(session, after=None, limit=9)
        assert found is not None
        assert (found.id, found.routes, found.rate_per_s) == ("t1", None, None)
        assert (trail.actor, trail.actor_record) == ("ci (t1)", None)

    migrate.upgrade(db, LOCATION)
    known()
    settings = migrate.config(LOCATION)
    with db.write() as session:
        settings.attributes["connection"] = session
        command.downgrade(settings, "0006")
    migrate.upgrade(db, LOCATION)
    known()
    db.close()


@pytest.mark.postgres
def test_three_replicas_that_start_at_once_migrate_once(postgres_url: str, tmp_path: Path) -> None:
    """All three come to the lock before any of them may go on."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GATEKEEPER_")}
    env["GATEKEEPER_DATABASE_URL"] = postgres_url
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(postgres_url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", (migrate._LOCK,))
        replicas = [
            subprocess.Popen(
                [sys.executable, "-m", "gatekeeper", "db", "upgrade", "--json"],
                env={**env, "GATEKEEPER_HOME": str(tmp_path / str(n))},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in range(3)
        ]
        try:
            deadline = time.monotonic() + 240
            while holder.execute(waiting).fetchone() != (3,):
                assert time.monotonic() < deadline
                assert all(one.poll() is None for one in replicas)
                time.sleep(0.05)
            tables_then = holder.execute(
                "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
            ).fetchone()
            holder.execute("SELECT pg_advisory_unlock(%s)", (migrate._LOCK,))
            told = [one.communicate(timeout=240) for one in replicas]
        finally:
            for one in replicas:
                one.kill()
                one.wait()
    assert tables_then == (0,)
    assert [one.returncode for one in replicas] == [0, 0, 0], told
    assert all(f'"revision": "{migrate.head(LOCATION)}"' in out for out, _ in told)
    with psycopg.connect(postgres_url) as session:
        # what the first start seeds is there once too
        seeded = "SELECT object FROM audit WHERE action LIKE '%.seed' ORDER BY object, action"
        names = [row[0] for row in session.execute(seeded)]
        counter = session.execute("SELECT id, counter FROM counter").fetchall()
    assert names == ["ci", "demo", "demo", "production", "production"]
    assert counter == [(1, 0)]
