"""``gatekeeper serve`` as a process of its own on a free loopback port, and what it uses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.actions.start import prepare
from gatekeeper.config import Settings, data_dir
from gatekeeper.store.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memory_limit import ControlGroup

__all__ = ["Running", "a_token", "cpu_s", "free_port", "serving", "wait_ready"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 180.0  # a busy machine takes long to import all


@dataclass(frozen=True)
class Running:
    """A server that answers at ``url``, and a token of its administrator."""

    url: str
    pid: int
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """What requests carry."""
        return {"Authorization": f"Bearer {self.token}"}

    def memory_mib(self, field: str) -> float:
        """Memory of the process, such as ``RssAnon``, or ``VmHWM``: the most that it ever was.

        Raises:
            ProcessLookupError: it has ended.
        """
        status = Path(f"/proc/{self.pid}/status").read_text()
        figure = status.partition(f"{field}:")[2].split()
        if not figure:
            raise ProcessLookupError(f"process {self.pid} has ended")
        return int(figure[0]) / 1024


def free_port() -> int:
    """Port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(database_url: str | None) -> dict[str, str]:
    """Environment of a server: nothing of ours but, where given, a database in its home's place."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GATEKEEPER_")}
    return env if database_url is None else {**env, "GATEKEEPER_DATABASE_URL": database_url}


def a_token(home: Path, database_url: str | None = None) -> str:
    """Create the database where there is none, and an administrator's token in it."""
    settings = Settings.load(environment(database_url), home=home)
    settings.prepare()
    db = open_database(settings.database_url)
    try:
        prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
        return create_token(db, SYSTEM, name="benchmark", role="admin", ttl_s=None)[1]
    finally:
        db.close()


def wait_ready(url: str, *, path: str = "/readyz") -> None:
    """Wait until a server answers.

    Raises:
        TimeoutError: it did not in three minutes.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}{path}", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise TimeoutError(f"{url} does not get ready")


@contextmanager
def serving(
    home: Path,
    *options: str,
    database_url: str | None = None,
    group: ControlGroup | None = None,
) -> Iterator[Running]:
    """Serve a home until the block ends; ``options`` are those of ``gatekeeper serve``.

    ``group`` limits its memory.
    """
    token = a_token(home, database_url)
    port = free_port()
    command = [sys.executable, "-m", "gatekeeper", "serve", "--home", str(home)]
    command += ["--port", str(port), *options]
    with subprocess.Popen(  # noqa: S603 - our own command
        command if group is None else group.command(command),
        env=environment(database_url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            running = Running(f"http://127.0.0.1:{port}", process.pid, token)
            wait_ready(running.url)
            yield running
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its living children so far."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS + sum(cpu_s(child) for child in children)
