"""kill -9 of the server while exporters send, twenty times: what was acknowledged is there once."""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.actions.start import prepare
from gatekeeper.config import Settings, data_dir
from gatekeeper.store.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = 20
SENDERS = 3
SPANS = 10
START = 1_767_225_600 * 10**9
FORKED = Path(__file__).parents[1] / "forked_serve.py"


class Servers:
    """One server after the other on one home: the command itself, then forks that run the same."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GATEKEEPER_")}
        self.forks = subprocess.Popen(
            [sys.executable, str(FORKED)],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.command: subprocess.Popen[str] | None = None
        self.pid = 0
        self.senders: list[Sender] = []

    def start(self, *, forked: bool) -> None:
        if forked:
            assert self.forks.stdin is not None
            assert self.forks.stdout is not None
            self.forks.stdin.write(f"{self.home} {self.port}\n")
            self.forks.stdin.flush()
            self.pid = int(self.forks.stdout.readline())
        else:
            arguments = ["serve", "--home", str(self.home), "--port", str(self.port)]
            self.command = subprocess.Popen(
                [sys.executable, "-m", "gatekeeper", *arguments],
                env=self.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.pid = self.command.pid
        deadline = time.monotonic() + 180  # a busy machine takes long to import all
        while True:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the server does not get ready"
                time.sleep(0.02)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        if self.command is not None:
            self.command.wait()
            self.command = None

    def close(self) -> None:
        for sender in self.senders:
            sender.stop.set()
            if sender.is_alive():
                sender.join(60)
            sender.http.close()
        if self.pid:
            self.kill()
        self.forks.communicate(timeout=60)  # closes its input, which ends it


class Sender(threading.Thread):
    """Sends request after request, each until it is acknowledged, as exporters do."""

    def __init__(self, url: str, token: str, number: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        self.stop = threading.Event()
        self.acknowledged: list[tuple[str, str]] = []
        self.sent = 0
        self.failures = 0
        self.refused: list[str] = []

    def spans(self, request: int) -> list[dict[str, object]]:
        return [
            {
                "traceId": f"{self.number + 1:02x}{request // 4:030x}",  # four requests make a trace
                "spanId": f"{request * SPANS + i + 1:016x}",
                "name": "chat",
                "startTimeUnixNano": START + (request * SPANS + i) * 10**6,
                "endTimeUnixNano": START + (request * SPANS + i + 1) * 10**6,
                "attributes": [
                    {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                    {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 5}},
                ],
            }
            for i in range(SPANS)
        ]

    def run(self) -> None:
        while not self.stop.is_set():
            spans = self.spans(self.sent)
            body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
            try:
                answer = self.http.post("/v1/traces", json=body)
            except httpx.TransportError:
                self.failures += 1
                time.sleep(0.02)
                continue
            if answer.status_code == 200 and answer.json() == {}:
                self.acknowledged += [(str(s["traceId"]), str(s["spanId"])) for s in spans]
                self.sent += 1
            elif answer.status_code != 503:
                self.refused.append(answer.text)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    one = Servers(tmp_path / "home")
    try:
        yield one
    finally:
        one.close()


def token_of(home: Path, role: str) -> str:
    settings = Settings.load(home=home)
    settings.prepare()
    db = open_database(settings.database_url)
    try:
        prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
        return create_token(db, SYSTEM, name=role, role=role, ttl_s=None)[1]
    finally:
        db.close()


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_no_acknowledged_span_is_lost_and_none_is_there_twice(servers: Servers) -> None:
    token = token_of(servers.home, "admin")
    chance = random.Random(20)
    senders = [Sender(servers.url, token, number) for number in range(SENDERS)]
    servers.senders = senders
    for kill in range(KILLS):
        servers.start(forked=kill > 0)
        if kill == 0:
            for sender in senders:
                sender.start()
        before = sum(len(s.acknowledged) for s in senders)
        failures = sum(s.failures for s in senders)
        while sum(len(s.acknowledged) for s in senders) < before + 2 * SPANS:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        servers.kill()
        while sum(s.failures for s in senders) == failures:
            time.sleep(0.002)
    servers.start(forked=True)
    for sender in senders:
        sender.stop.set()
    for sender in senders:
        sender.join(60)
        assert not sender.is_alive()
    assert [s.refused for s in senders] == [[]] * SENDERS
    acknowledged = [key for s in senders for key in s.acknowledged]
    with sqlite3.connect(servers.home / "gatekeeper.sqlite") as database:
        stored = Counter(database.execute("SELECT trace_id, span_id FROM spans"))
    assert len(acknowledged) >= KILLS * 2 * SPANS
    assert set(acknowledged) <= set(stored)
    assert set(stored.values()) == {1}
    # Nor is one counted twice: every task has exactly its own spans as model calls.
    headers = {"Authorization": f"Bearer {token}"}
    for name, count in Counter(trace for trace, _ in stored).items():
        answer = httpx.get(f"{servers.url}/v1/tasks/{name}", headers=headers, timeout=60)
        assert answer.json()["calls"] == count
