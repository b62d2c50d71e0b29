"""A copy of a SQLite database while it is in use; PostgreSQL brings its own tools."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from gatekeeper.errors import Conflict, InputError, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database

__all__ = ["back_up"]


def back_up(db: Database, file: Path) -> int:
    """Write one consistent state of a SQLite database to a new file; return its bytes.

    Only its owner may read the file: it holds who may do what.

    Raises:
        InputError: the database is PostgreSQL.
        Conflict: the file is there already.
        Unavailable: it cannot be written.
    """
    if not db.sqlite:
        raise InputError(
            "is PostgreSQL, which has tools of its own",
            field="database",
            remedy="use pg_dump --format custom",
        )
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError as error:
        raise Conflict(
            "is there already", field="file", value=str(file), remedy="choose a new name"
        ) from error
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="file",
            value=str(file),
            remedy="name a file in a writable folder",
        ) from error
    done = False
    raw = db.engine.raw_connection()
    try:
        # Reads one snapshot as a writer goes on; an empty file counts as new.
        raw.cursor().execute("VACUUM INTO ?", (str(file),))
        done = True
    except sqlite3.Error as error:
        raise Unavailable(
            f"cannot be copied ({error})",
            field="database",
            value=str(db.engine.url.database),
            remedy="check the free space at both places",
        ) from error
    finally:
        raw.close()
        if not done:
            file.unlink(missing_ok=True)
    return file.stat().st_size
