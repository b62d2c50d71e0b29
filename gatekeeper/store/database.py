"""Connections: one SQLAlchemy code base on SQLite (default) and PostgreSQL."""

from __future__ import annotations

import functools
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Double, Engine, create_engine, event, make_url, select
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gatekeeper.errors import Conflict, InputError, Unavailable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import URL
    from sqlalchemy.pool import ConnectionPoolEntry
    from sqlalchemy.sql.compiler import SQLCompiler

__all__ = ["TELLS", "Database", "Session", "clock", "now", "open_database", "parse_url", "reach"]

TELLS = "gatekeeper_tells"
"""Key in a session's ``info``: set by what pollers must see at once when it is committed here."""

Session = Connection
"""What every store function takes first: a connection inside a transaction."""

_BUSY_S = 30.0

# NaN is not JSON: PostgreSQL refuses it, and SQLite would keep what no client can read.
_strict_json = functools.partial(json.dumps, allow_nan=False)


class clock(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """The database's own clock: seconds since 1970, UTC, moving within a transaction."""

    type = Double()
    inherit_cache = True
    name = "clock"


@compiles(clock, "postgresql")
def _clock_postgresql(_element: clock, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy passes what it likes
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(clock, "sqlite")
def _clock_sqlite(_element: clock, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - as above
    return "((julianday('now') - 2440587.5) * 86400.0)"


def now(session: Session) -> float:
    """Return the database's time: replicas with clocks of their own agree on it."""
    return float(session.execute(select(clock())).scalar_one())


@dataclass(frozen=True)
class Database:
    """One database; transactions begin here and nowhere else.

    ``listeners`` are called after each commit of this process that set ``TELLS``; they must not wait.
    """

    engine: Engine
    listeners: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _writer: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def sqlite(self) -> bool:
        """Whether this is the embedded database: one writer, one API process."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Transaction that changes nothing: one consistent view."""
        with self._connect(write=False) as session, session.begin():
            yield session

    @contextmanager
    def write(self, *, patience_s: float = _BUSY_S) -> Iterator[Session]:
        """Transaction that commits whole or not at all.

        Raises:
            Unavailable: others held the lock that it needs for longer than ``patience_s``: SQLite's
                one write lock, or on PostgreSQL that of a row or table, where one is asked for.
            Conflict: two requests stored the same key at once.
            InputError: text that a database cannot hold.
        """
        if self.sqlite:
            # Threads of this process queue fairly here instead of polling SQLite's lock.
            with (
                self._turn(patience_s),
                self._connect(write=True, patience_s=patience_s) as session,
                self._telling(session),
                session.begin(),
            ):
                yield session
        else:
            with self._connect(write=True) as session, self._telling(session), session.begin():
                if patience_s != _BUSY_S:
                    session.exec_driver_sql(f"SET LOCAL lock_timeout = {int(patience_s * 1000)}")
                yield session

    @contextmanager
    def _telling(self, session: Session) -> Iterator[None]:
        session.info.pop(TELLS, None)
        yield
        if session.info.pop(TELLS, False):
            for listener in self.listeners:
                listener()

    @contextmanager
    def _turn(self, patience_s: float) -> Iterator[None]:
        if not self._writer.acquire(timeout=patience_s):
            raise Unavailable(
                f"has been busy with other writers for {patience_s:g} s",
                field="database",
                remedy="send the request again",
            )
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _connect(self, *, write: bool, patience_s: float = _BUSY_S) -> Iterator[Session]:
        try:
            with self.engine.connect() as connection:
                options = {"gatekeeper_write": write, "gatekeeper_patience_s": patience_s}
                yield connection.execution_options(**options)
        except IntegrityError as error:
            raise Conflict(
                f"was changed by another request at the same time ({_first_line(error)})",
                field="database",
                remedy="send the request again",
            ) from error
        except (DataError, UnicodeEncodeError) as error:
            raise InputError(
                f"cannot be stored ({_first_line(error)})",
                field="text",
                remedy="leave out NUL characters and lone surrogates",
            ) from error
        except (ProgrammingError, NotSupportedError):
            raise  # our own defect, though a kind of DatabaseError
        except PoolTimeoutError as error:
            raise Unavailable(
                "has no connection to spare",
                field="database",
                remedy="send the request again",
            ) from error
        except (DatabaseError, InterfaceError) as error:
            raise Unavailable(
                f"does not answer ({error.orig})",
                field="database",
                value=self.engine.url.render_as_string(hide_password=True),
                remedy="check that it runs, is writable and not locked by another process",
            ) from error

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def reach(db: Database) -> None:
    """Ask the database for the time, and nothing else.

    Raises:
        Unavailable: it does not answer.
    """
    with db.read() as session:
        now(session)


def _first_line(error: Exception) -> str:
    original = error.orig if isinstance(error, DBAPIError) else error
    return str(original).partition("\n")[0]


def open_database(url: str) -> Database:
    """Open a database by URL: ``sqlite:///path`` or ``postgresql://…`` (psycopg 3).

    Raises:
        InputError: the URL is not one of these.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            parsed,
            connect_args={"timeout": _BUSY_S},
            pool_size=8,
            max_overflow=56,
            json_serializer=_strict_json,
            hide_parameters=True,
        )
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    else:
        engine = create_engine(
            parsed,
            pool_size=8,
            max_overflow=56,
            pool_pre_ping=True,
            json_serializer=_strict_json,
            hide_parameters=True,  # errors end in logs, and parameters are what people wrote
        )
    return Database(engine)


def parse_url(url: str) -> URL:
    """Return the parsed URL of a database that gatekeeper can use.

    Raises:
        InputError: it is not one.
    """
    remedy = "use sqlite:///path/to/file or postgresql://user@host/name"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InputError("is not a database URL", field="database_url", remedy=remedy) from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or parsed.database in (None, "", ":memory:"):
        raise InputError(
            "is not supported", field="database_url", value=parsed.drivername, remedy=remedy
        )
    return parsed


def _on_sqlite_connect(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    # None hands BEGIN to us: the driver's own legacy mode begins late and never IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
    finally:
        cursor.close()


def _on_sqlite_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    patience_s = options.get("gatekeeper_patience_s", _BUSY_S)
    connection.exec_driver_sql(f"PRAGMA busy_timeout={int(patience_s * 1000)}")
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if options.get("gatekeeper_write", True) else "BEGIN"
    )
