"""A real server on a loopback port for tests: the whole stack but the process."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from gatekeeper.actions.identity import ROLES, SYSTEM, create_token
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.start import prepare
from gatekeeper.api.app import create_app
from gatekeeper.api.server import Server
from gatekeeper.api.services import Services
from gatekeeper.config import data_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gatekeeper.store.database import Database


_CONTEXT = httpx.create_ssl_context()
"""One for all clients: reading the machine's certificates takes longer than a request."""


@dataclass(frozen=True)
class LiveServer:
    """Where it listens, a token for each role, and what it works on."""

    url: str
    tokens: dict[str, str]
    db: Database
    evidence: Path
    services: Services
    stop: Callable[[], None]

    def client(self, role: str) -> httpx.Client:
        """Client with that role's token; the caller closes it."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=_CONTEXT)


@contextmanager
def serving(db: Database, evidence: Path) -> Iterator[LiveServer]:
    """Serve a database until the block ends."""
    prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
    tokens = {role: create_token(db, SYSTEM, name=role, role=role, ttl_s=None)[1] for role in ROLES}
    reconciler = Reconciler(db, period_s=0.2, evidence=evidence)
    services = Services(db, evidence, data_dir("migrations"), reconciler)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = Server(create_app(services))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()

        def stop() -> None:
            server.should_exit = True
            thread.join()

        try:
            deadline = time.monotonic() + 30
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.02)
            assert server.started
            url = f"http://127.0.0.1:{port}"
            yield LiveServer(url, tokens, db, evidence, services, stop)
        finally:
            stop()


@pytest.fixture
def live_server(db: Database, tmp_path: Path) -> Iterator[LiveServer]:
    """A server on both kinds of database."""
    with serving(db, tmp_path / "evidence") as server:
        yield server
