"""What the database says: schema, who serves it, policies, evidence files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from gatekeeper.cli.doctor.check import FAIL, OK, WARN, Check, command, failed, unasked
from gatekeeper.cli.doctor.machine import folder
from gatekeeper.cli.http import client, pages
from gatekeeper.cli.local import missing_file
from gatekeeper.config import data_dir
from gatekeeper.errors import GatekeeperError
from gatekeeper.store import catalog, schema
from gatekeeper.store.database import open_database, parse_url
from gatekeeper.store.lock import serving_process
from gatekeeper.store.migrate import current, head, standing

if TYPE_CHECKING:
    from gatekeeper.config import Settings
    from gatekeeper.store.database import Database

__all__ = ["database", "evidence", "policies", "served_by"]

_NAME = "database"
_CONNECT_S = "5"
_TIMEOUT_S = 10.0


def database(
    settings: Settings, *, home_broken: bool = False, answers: bool = False
) -> tuple[Database | None, Check]:
    """Open the database where it has today's schema, and say how it stands otherwise.

    The caller closes it. Nothing is created. Where a server ``answers``, a machine needs none.
    """
    db = None
    try:
        url = parse_url(settings.database_url)
        if home_broken and url.get_backend_name() == "sqlite":
            return None, Check(
                _NAME, WARN, "not checked: it lies in the home", command("serve", settings.home)
            )
        if missing_file(settings):
            return None, _missing(Path(str(url.database)), settings, answers=answers)
        if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
            url = url.update_query_dict({"connect_timeout": _CONNECT_S})
        db = open_database(url.render_as_string(hide_password=False))
        check = _schema(db, command("db upgrade", settings.home))
    except GatekeeperError as error:
        check = failed(_NAME, error)
    if db is not None and check.status != OK:
        db.close()
        db = None
    return db, check


def _missing(path: Path, settings: Settings, *, answers: bool) -> Check:
    if path.exists():
        moved = f"{shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"
        return Check(_NAME, FAIL, f"{path} is not a file", f"mv {moved}")
    if answers:
        return Check(_NAME, OK, f"none at {path}: the server keeps its own")
    return Check(_NAME, WARN, f"{path} is not there yet", command("db upgrade", settings.home))


def _schema(db: Database, upgrade: str) -> Check:
    migrations = data_dir("migrations")
    place = db.engine.url.set(query={}).render_as_string(hide_password=True)
    state = standing(db, migrations)
    have, want = current(db), head(migrations)
    if state == "current":
        return Check(_NAME, OK, f"{place}, schema {have}")
    if state == "ahead":
        seen = f"{place} has schema {have}, which this installation does not know (it has {want})"
        return Check(_NAME, FAIL, seen, "pip install --upgrade gatekeeper")
    return Check(_NAME, FAIL, f"{place} has schema {have or 'none'}, needed is {want}", upgrade)


def served_by(db: Database, settings: Settings, *, answers: bool) -> Check:
    """Say who holds the embedded database; a holder that cannot be reached is worth a look."""
    process = serving_process(db)
    if not db.sqlite:
        return Check("server lock", OK, "none needed: PostgreSQL serves any number of replicas")
    if process is None:
        return Check("server lock", OK, "free: no process serves this database")
    if answers:
        return Check("server lock", OK, f"held by process {process}")
    seen = f"held by process {process}, but no server answers at {settings.server_url}"
    remedy = f"set GATEKEEPER_URL to the address it printed, or end it: kill {process}"
    return Check("server lock", WARN, seen, remedy)


def policies(db: Database | None, settings: Settings, *, may_read: bool, answers: bool) -> Check:
    """List the policies that routes can name: asked of the server where the token may."""
    name = "policies"
    if may_read:
        try:
            with client(settings, timeout_s=_TIMEOUT_S) as http:
                names = sorted(one["name"] for one in pages(http, "/v1/policies"))
        except GatekeeperError as error:
            return failed(name, error)
    elif db is None:
        return unasked(name, settings.home, answers=answers)
    else:
        with db.read() as session:
            names = sorted({record.name for record in catalog.policies(session)})
    if not names:
        remedy = command("db upgrade", settings.home)  # seeds the shipped ones where none are
        return Check(name, FAIL, "none are applied", remedy)
    return Check(name, OK, ", ".join(names))


def evidence(db: Database | None, settings: Settings) -> Check:
    """Look at the evidence folder, and whether every recorded table still has its file."""
    found = folder("evidence", settings.evidence, created_by=command("serve", settings.home))
    if db is None or found.status == FAIL:
        return found
    table = schema.evidence
    query = select(table.c.path, schema.run.c.route).join(
        schema.run, schema.run.c.id == table.c.run
    )
    with db.read() as session:
        rows = session.execute(query).all()
    lost = [(path, route) for path, route in rows if not (settings.evidence / path).is_file()]
    if lost:
        path, route = lost[0]
        seen = f"{len(lost)} of {len(rows)} recorded tables have no file, such as {path}"
        return Check(
            "evidence",
            FAIL,
            seen,
            f"{command(f'gate run {shlex.quote(route)}')}   # or restore the folder from its backup",
        )
    kept = f"{found.seen}; {len(rows)} tables" if rows else found.seen
    return Check("evidence", found.status, kept, found.remedy)
