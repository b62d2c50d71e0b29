"""A real PostgreSQL for tests: started once a session on a Unix socket, stopped by itself."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALL = "apt-get install -y --no-install-recommends postgresql"


def _binaries() -> Path | None:
    """Folder with initdb and pg_ctl: on the path, or where Debian keeps them."""
    found = [Path(tool).resolve().parent for tool in [shutil.which("initdb")] if tool]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((f for f in found if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)


def _as_owner(user: str, *command: str | Path) -> None:
    """Run as the database's user; initdb refuses root."""
    prefix = [] if user == getpass.getuser() else ["runuser", "-u", user, "--"]
    subprocess.run(
        [*prefix, *map(str, command)],
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,  # a pipe would be held open by the server itself
        stderr=subprocess.DEVNULL,
        timeout=120,
    )


@contextmanager
def cluster() -> Iterator[str]:
    """Connection string of a fresh cluster without its database: fsync off, no TCP at all.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    folder = _binaries()
    if folder is None:
        raise FileNotFoundError(f"PostgreSQL is missing: {_INSTALL}")
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    # Short, since a socket's path may have 107 characters at most.
    root = Path(tempfile.mkdtemp(prefix="gk-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(root, user=user)
    data = root / "data"
    options = (
        f"-c listen_addresses='' -c unix_socket_directories={root} -c fsync=off "
        "-c synchronous_commit=off -c full_page_writes=off -c shared_buffers=32MB"
    )
    try:
        _as_owner(
            user, folder / "initdb", "-N", "-A", "trust", "-E", "UTF8", "-U", "postgres", "-D", data
        )
        log = root / "server.log"
        start = ("-D", data, "-l", log, "-w", "-o", options, "start")
        _as_owner(user, folder / "pg_ctl", *start)
        try:
            yield f"host={root} user=postgres"
        finally:
            _as_owner(user, folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Connection string of the session's own cluster."""
    if _binaries() is None:
        if os.environ.get("CI") == "1":
            pytest.fail(f"PostgreSQL is missing: {_INSTALL}")
        pytest.skip(f"PostgreSQL is missing: {_INSTALL}")
    with cluster() as server:
        yield server


@contextmanager
def database(server: str) -> Iterator[str]:
    """URL of a new database, dropped afterwards."""
    name = f"t{uuid.uuid4().hex}"
    host = server.split(maxsplit=1)[0].removeprefix("host=")
    with psycopg.connect(f"{server} dbname=postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    try:
        yield f"postgresql://postgres@/{name}?host={host}"
    finally:
        with psycopg.connect(f"{server} dbname=postgres", autocommit=True) as admin:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty database of this test's own."""
    with database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_migrated(postgres_server: str) -> Iterator[str]:
    """URL of one database with today's schema."""
    from gatekeeper.config import data_dir
    from gatekeeper.store.database import open_database
    from gatekeeper.store.migrate import upgrade

    with database(postgres_server) as url:
        migrated = open_database(url)
        upgrade(migrated, data_dir("migrations"))
        migrated.close()
        yield url


@pytest.fixture
def postgres_migrated_url(postgres_migrated: str) -> Iterator[str]:
    """The same, emptied after the test: a new database for each would take seconds."""
    from gatekeeper.store.schema import metadata

    yield postgres_migrated
    tables = ", ".join(f'"{name}"' for name in metadata.tables)
    with psycopg.connect(postgres_migrated, autocommit=True) as admin:
        admin.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
