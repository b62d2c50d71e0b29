"""Schema versions: Alembic with its location set in code, so that a wheel needs no ini file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import text

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database, Session

__all__ = ["config", "current", "head", "require_current", "standing", "take_turn", "upgrade"]

# Any constant: replicas that start together take turns.
_LOCK = 0x67617465


def config(location: Path) -> Config:
    """Return Alembic's configuration for the migrations in ``location``."""
    settings = Config()
    settings.set_main_option("script_location", str(location).replace("%", "%%"))
    return settings


def head(location: Path) -> str | None:
    """Newest revision on disk."""
    return ScriptDirectory.from_config(config(location)).get_current_head()


def current(db: Database) -> str | None:
    """Revision of the database, None when it is empty."""
    with db.read() as session:
        return MigrationContext.configure(session).get_current_revision()


def standing(db: Database, location: Path) -> Literal["empty", "behind", "current", "ahead"]:
    """How the database's schema stands to this installation's; ``ahead`` is unknown to it."""
    have = current(db)
    if have is None:
        return "empty"
    if have == head(location):
        return "current"
    known = {r.revision for r in ScriptDirectory.from_config(config(location)).walk_revisions()}
    return "behind" if have in known else "ahead"


def upgrade(db: Database, location: Path, *, target: str = "head") -> str | None:
    """Bring the database to ``target`` in one transaction and return its revision.

    Raises:
        Unavailable: a newer release wrote it.
    """
    settings = config(location)
    with db.write() as session:
        take_turn(session)
        settings.attributes["connection"] = session
        try:
            command.upgrade(settings, target)
        except CommandError as error:
            raise Unavailable(
                f"has a schema that this installation does not know ({error})",
                field="database",
                value=db.engine.url.render_as_string(hide_password=True),
                remedy="install the gatekeeper release that wrote it, or a newer one",
            ) from error
    return current(db)


def take_turn(session: Session) -> None:
    """Let one transaction after the other bring a database up; SQLite has one writer anyway."""
    if session.dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def require_current(db: Database, location: Path) -> None:
    """Refuse a database of another schema version.

    Raises:
        Unavailable: it is older or newer than this installation.
    """
    have, want = current(db), head(location)
    if have != want:
        raise Unavailable(
            f"has schema {have or 'none'}, this installation needs {want}",
            field="database",
            value=db.engine.url.render_as_string(hide_password=True),
            remedy="run gatekeeper db upgrade",
        )
