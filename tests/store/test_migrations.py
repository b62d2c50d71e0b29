from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

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
