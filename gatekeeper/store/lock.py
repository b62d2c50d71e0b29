"""One API process for one SQLite file."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gatekeeper.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.store.database import Database

__all__ = ["serving_process", "sole_server"]


@contextmanager
def sole_server(db: Database) -> Iterator[None]:
    """Hold the file lock beside a SQLite database; PostgreSQL serves any number of replicas.

    The kernel frees the lock when the process ends, however it ends.

    Raises:
        Conflict: another process serves this file.
        Unavailable: the lock file cannot be opened.
    """
    if not db.sqlite:
        yield
        return
    path = Path(f"{db.engine.url.database}.lock")
    try:
        handle = path.open("a+", encoding="ascii")
    except OSError as error:
        raise Unavailable(
            f"cannot be opened ({error.strerror})",
            field="lock",
            value=str(path),
            remedy="make it writable, or remove it while no server runs",
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            raise Conflict(
                f"is already served by process {handle.read().strip() or 'unknown'}",
                field="database",
                value=str(db.engine.url.database),
                remedy="stop that one, choose another --home, or use PostgreSQL for replicas",
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def serving_process(db: Database) -> str | None:
    """Process that serves a SQLite file now, ``unknown`` where it did not say; None for nobody.

    Also None on PostgreSQL, and where there is no lock file that we may read.
    """
    if not db.sqlite:
        return None
    path = Path(f"{db.engine.url.database}.lock")
    try:
        handle = path.open("r", encoding="ascii", errors="replace")
    except OSError:
        return None
    with handle:
        try:
            # Shared and freed at once: two doctors do not see each other as servers.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle.read().strip() or "unknown"
    return None
