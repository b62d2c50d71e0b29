"""kill -9 of the server while exporters send: what was acknowledged is there, and there once.

    python benchmarks/ingest_crash.py                   # SQLite, in a fresh folder
    python benchmarks/ingest_crash.py --postgresql      # a cluster of its own, stopped afterwards

The first server is the command itself; the others are forks that run the same command, since a
start takes seconds of imports (tests/forked_serve.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import ingest_memory
from own_server import a_token, environment, free_port, wait_ready
from sqlalchemy import select

from gatekeeper.store.database import open_database
from gatekeeper.store.schema_traces import span as table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["parts", "run", "temporary_postgresql"]

KILLS = 50
SENDERS = 3
SPANS = 10
START = 1_767_225_600 * 10**9
FORKED = Path(__file__).parents[1] / "tests" / "forked_serve.py"


class Servers:
    """One server after the other on one home, killed and started again."""

    def __init__(self, home: Path, database_url: str | None) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = environment(database_url)
        self.forks = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, str(FORKED)],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.command: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pid:
            self.kill()
        self.forks.communicate(timeout=60)  # closes its input, which ends it

    def start(self, *, forked: bool) -> None:
        """Start one and wait until it answers."""
        if forked and self.forks.stdin is not None and self.forks.stdout is not None:
            self.forks.stdin.write(f"{self.home} {self.port}\n")
            self.forks.stdin.flush()
            self.pid = int(self.forks.stdout.readline())
        else:
            arguments = ["serve", "--home", str(self.home), "--port", str(self.port)]
            self.command = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "gatekeeper", *arguments],
                env=self.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.pid = self.command.pid
        wait_ready(self.url)

    def kill(self) -> None:
        """End it as a power cut would end its process."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        if self.command is not None:
            self.command.wait()
            self.command = None


class Sender(threading.Thread):
    """Sends request after request, each until it is acknowledged, as exporters do."""

    def __init__(self, url: str, token: str, number: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False
        )
        self.stop = threading.Event()
        self.acknowledged: list[tuple[str, str]] = []
        self.sent = 0
        self.failures = 0
        self.refused: list[str] = []

    def spans(self, request: int) -> list[dict[str, object]]:
        """Spans of one request; four requests make a trace."""
        return [
            {
                "traceId": f"{self.number + 1:02x}{request // 4:030x}",
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
        """Send until told to stop."""
        while not self.stop.is_set():
            spans = self.spans(self.sent)
            body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
            try:
                answer = self.http.post("/v1/traces", json=body)
            except httpx.TransportError:
                self.failures += 1
                time.sleep(0.02)
                continue
            if answer.status_code == httpx.codes.OK and answer.json() == {}:
                self.acknowledged += [(str(s["traceId"]), str(s["spanId"])) for s in spans]
                self.sent += 1
            elif answer.status_code not in (429, 503):
                self.refused.append(answer.text)


def run(home: Path, *, kills: int, database_url: str | None = None, seed: int = 20) -> Any:  # noqa: ANN401 - JSON
    """Kill and restart a server so many times; return what was acknowledged, lost and doubled.

    ``miscounted``: tasks whose model calls are not exactly the spans of their trace.
    """
    token = a_token(home, database_url)
    chance = random.Random(seed)
    with Servers(home, database_url) as servers:
        senders = [Sender(servers.url, token, number) for number in range(SENDERS)]
        try:
            for kill in range(kills):
                servers.start(forked=kill > 0)
                if kill == 0:
                    for sender in senders:
                        sender.start()
                _kill_in_the_middle(servers, senders, chance)
            servers.start(forked=True)
        finally:
            for sender in senders:
                sender.stop.set()
            for sender in senders:
                if sender.is_alive():
                    sender.join(60)
                sender.http.close()
        stored = _stored(home, database_url)
        miscounted = _miscounted(servers.url, token, stored)
    acknowledged = {key for sender in senders for key in sender.acknowledged}
    figures = {
        "kills": kills,
        "acknowledged": len(acknowledged),
        "interrupted": sum(sender.failures for sender in senders),
        "lost": len(acknowledged - set(stored)),
        "doubled": sum(count > 1 for count in stored.values()),
        "miscounted_tasks": miscounted,
        "refused": [text for sender in senders for text in sender.refused],
    }
    # Each server had acknowledged something before it died, and died while some were being sent.
    sound = len(acknowledged) >= kills * 2 * SPANS and figures["interrupted"] >= kills
    bad = ("lost", "doubled", "miscounted_tasks", "refused")
    return {**figures, "holds": sound and not any(figures[name] for name in bad)}


@contextmanager
def temporary_postgresql() -> Iterator[str]:
    """URL of an empty database in a cluster that lasts as long as the block.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    sys.path.append(str(FORKED.parent))
    import postgres  # noqa: PLC0415 - of the tests, which start theirs in the same way

    with postgres.cluster() as server, postgres.database(server) as url:
        yield url


def _kill_in_the_middle(servers: Servers, senders: list[Sender], chance: random.Random) -> None:
    before = sum(len(s.acknowledged) for s in senders)
    failures = sum(s.failures for s in senders)
    while sum(len(s.acknowledged) for s in senders) < before + 2 * SPANS:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.1))
    servers.kill()
    while sum(s.failures for s in senders) == failures:
        time.sleep(0.002)


def _stored(home: Path, database_url: str | None) -> Counter[tuple[str, str]]:
    db = open_database(database_url or f"sqlite:///{home / 'gatekeeper.sqlite'}")
    try:
        with db.read() as session:
            found = session.execute(select(table.c.trace_id, table.c.span_id))
            return Counter((str(trace), str(span)) for trace, span in found)
    finally:
        db.close()


def _miscounted(url: str, token: str, stored: Counter[tuple[str, str]]) -> list[str]:
    wrong = []
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        for name, count in Counter(trace for trace, _ in stored).items():
            if http.get(f"/v1/tasks/{name}").json().get("calls") != count:
                wrong.append(name)
    return wrong


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts of ``make verify STAGE=ingest-crash``: kills on both databases, bounded memory."""
    return {
        "sqlite": partial(_in_a_folder, postgresql=False, kills=KILLS),
        "postgresql": partial(_in_a_folder, postgresql=True, kills=KILLS),
        "memory": _bounded_memory,
        "memory-used": partial(_bounded_memory, used=True),
        "memory-large-tasks": partial(_bounded_memory, megabytes=79, per_task=9_984),
    }


def _in_a_folder(*, postgresql: bool, kills: int) -> Any:  # noqa: ANN401 - JSON
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(temporary_postgresql()) if postgresql else None
        return run(Path(folder) / "home", kills=kills, database_url=url)


def _bounded_memory(**options: Any) -> Any:  # noqa: ANN401 - JSON
    with tempfile.TemporaryDirectory() as folder:
        return ingest_memory.run(Path(folder), **options)


def main() -> int:
    """Run and print the figures; exit 1 when something was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite")
    chosen = parser.parse_args()
    figures = _in_a_folder(postgresql=chosen.postgresql, kills=chosen.kills)
    print(json.dumps(figures, indent=1))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
