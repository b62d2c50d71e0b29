"""What the agent does besides calling the model: a tool beside it, and a record of the result."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Archive", "Background", "Pending", "Threads"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_HASHES = 2_000

_TABLES = """
CREATE TABLE IF NOT EXISTS lookup (task INTEGER, arm TEXT, tool TEXT, arguments TEXT, digest TEXT);
CREATE TABLE IF NOT EXISTS result (task INTEGER, arm TEXT, verified INTEGER, answers TEXT);
"""


class Pending(Protocol[T_co]):
    """A job that runs beside the agent."""

    def result(self) -> tuple[T_co, int]:
        """Wait for it: what it returned, and when it ended in nanoseconds of the agent's clock."""
        ...


class Background(Protocol):
    """Runs a job beside the agent; the job gets a function that waits some seconds."""

    def start(self, job: Callable[[Callable[[float], None]], T]) -> Pending[T]:
        """Start a job."""
        ...


class Threads:
    """Jobs in a thread; closing wakes those that wait, so that nothing holds up the end."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tool")
        self._closing = threading.Event()

    def start(self, job: Callable[[Callable[[float], None]], T]) -> Pending[T]:
        """Start a job in the tool's thread."""

        def timed() -> tuple[T, int]:
            return job(self._wait), self._now_ns()

        return _Thread(self._pool.submit(timed))

    def close(self) -> None:
        """End every wait and the thread."""
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _wait(self, seconds: float) -> None:
        self._closing.wait(seconds)


class _Thread(Pending[T]):
    def __init__(self, future: Future[tuple[T, int]]) -> None:
        self._future = future

    def result(self) -> tuple[T, int]:
        return self._future.result()


class Archive:
    """The agent's own SQLite file: what its tool looked up, and the results it kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_TABLES)

    def look_up(
        self,
        task: int,
        arm: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        seconds: float,
        wait: Callable[[float], None],
    ) -> str:
        """Digest the arguments, wait as for a remote system, and keep what was found.

        The wait stands for the network and the other side's work; all else really happens.
        """
        text = json.dumps(arguments, sort_keys=True)
        digest = text.encode()
        for _ in range(_HASHES):
            digest = hashlib.sha256(digest).digest()
        wait(seconds)
        self._insert("lookup", task, arm, tool, text, digest.hex())
        return digest.hex()

    def keep(self, task: int, arm: str, answers: Mapping[str, str], *, verified: bool) -> None:
        """Commit a task's result to disk."""
        self._insert("result", task, arm, int(verified), json.dumps(answers))

    def found(self, task: int, arm: str) -> str | None:
        """Name of the tool that last looked something up for a task; None where none did."""
        query = "SELECT tool FROM lookup WHERE task = ? AND arm = ? ORDER BY rowid DESC"
        with closing(self._connect()) as connection:
            row = connection.execute(query, (task, arm)).fetchone()
        return None if row is None else str(row[0])

    def results(self) -> list[tuple[int, str, int, str]]:
        """Every kept result: task, arm, verified, answers as JSON."""
        with closing(self._connect()) as connection:
            return connection.execute("SELECT * FROM result ORDER BY rowid").fetchall()

    def _insert(self, table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        # Threads do not share a connection.
        with closing(self._connect()) as connection, connection:
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)  # noqa: S608 - our own names

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)
