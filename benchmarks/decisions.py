"""What a decision costs: from the client's memory, over OFREP, over REST, and for those who poll.

    python benchmarks/decisions.py [--routes 1000] [--clients 10000] [--json FILE]

CPU time throughout, so that a busy machine changes the wall clock alone; ratios are of figures of the same
run. The server runs in this process on loopback, with SQLite, and its CPU is told from the client's by
thread. Exits 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openfeature import api
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from sqlalchemy import event

from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.start import prepare
from gatekeeper.api.app import create_app
from gatekeeper.api.server import Server
from gatekeeper.api.services import Services
from gatekeeper.client import DecisionClient, RequestContext
from gatekeeper.config import data_dir
from gatekeeper.core.lease import Envelope, Lease
from gatekeeper.store import catalog, decisions
from gatekeeper.store.database import now, open_database
from gatekeeper.store.records import ArtifactRecord, RouteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gatekeeper.store.database import Database

MAX_DECISION_US = 5.0
MIN_RATIO = 1_000.0

CONTEXT = RequestContext(concurrency=2, context_tokens=800, remaining_tokens=200, acceptance=0.7)
GAMMA = 3
"""The window at the context's concurrency."""

DIGEST = "a" * 64


@dataclass(frozen=True)
class Figures:
    """Microseconds of CPU time a decision, and what polling cost the server."""

    client_us: float
    client_worst_us: float
    ofrep_provider_us: float
    ratio: float
    rest_server_us: float
    rest_wall_us: float
    polls: int
    poll_server_us: float
    seconds: float
    queries: int
    builds: int

    def missed(self) -> list[str]:
        """Bounds that do not hold."""
        return [
            said
            for good, said in (
                (self.client_us <= MAX_DECISION_US, f"a decision takes {self.client_us:.2f} µs"),
                (self.ratio >= MIN_RATIO, f"only {self.ratio:.0f} times OFREP's evaluations"),
                (
                    self.queries <= self.seconds + 1,
                    f"{self.queries} queries in {self.seconds:.1f} s",
                ),
                (self.builds <= 1, f"{self.builds} snapshots of one version"),
            )
            if not good
        ]


def fill(db: Database, routes: int) -> None:
    """Give the database so many enabled routes, as gates would have left them."""
    with db.write() as session:
        policy = catalog.policies(session)[0]
        catalog.add_artifact(session, ArtifactRecord(DIGEST, {}, "exact", 0.0, "benchmark"))
        at = now(session)
        for number in range(routes):
            name = f"route-{number:05d}"
            catalog.put_route(
                session, RouteRecord(name, "chat", DIGEST, policy.name, [], None, [], 0.0)
            )
            version = decisions.advance(session)
            lease = _lease(name, (version.epoch, version.counter), at)
            decisions.add_decision(
                session,
                route=name,
                at=version,
                artifact=DIGEST,
                policy=policy.digest,
                document=lease.to_dict(),
                state={"reconsider_at": at + 86_400.0},
                decided_at=at,
                evidence_expires_at=at + 86_400.0,
            )


def _lease(route: str, version: tuple[int, int], at: float) -> Lease:
    gate = {"gate": "serving", "outcome": "PASS", "run": "0" * 24}
    return Lease(
        route=route,
        action="enable",
        variant="gamma-2",
        gamma=2,
        gamma_by_concurrency={1: 4, 2: GAMMA, 4: 2, 8: 2},
        artifact=DIGEST,
        reason="gates_passed",
        explanation="Every gate passed within the envelope.",
        gates=(gate, {**gate, "gate": "equivalence"}, {**gate, "gate": "outcome"}),
        value=None,
        envelope=Envelope(8, 4096, 16, 0.4, 0.9, 32),
        version=version,
        decided_at=datetime.fromtimestamp(at, UTC),
        evidence_expires_at=datetime.fromtimestamp(at + 86_400.0, UTC),
        ttl_s=60.0,
        max_stale_s=300.0,
    )


@dataclass(frozen=True)
class Running:
    """A server of this process, and the CPU seconds of its thread."""

    url: str
    token: str
    services: Services
    cpu_s: Callable[[], float]


@contextmanager
def serving(folder: Path, routes: int) -> Iterator[Running]:
    """Serve so many routes on loopback."""
    db = open_database(f"sqlite:///{folder / 'store.sqlite'}")
    prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
    fill(db, routes)
    _, token = create_token(db, SYSTEM, name="benchmark", role="reader", ttl_s=None)
    services = Services(db, folder, data_dir("migrations"), _Still(db))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(create_app(services))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield Running(url, token, services, lambda: time.clock_gettime(clock))
        finally:
            server.should_exit = True
            thread.join()
            db.close()


class _Still(Reconciler):
    """No duties: the decisions are as they were laid."""

    def start(self) -> None:
        self.ready.set()


def client_us(running: Running, routes: int, rounds: int) -> tuple[float, float]:
    """Microseconds a decision of ``DecisionClient``: the best round and the worst."""
    names = [f"route-{number:05d}" for number in range(routes)]
    with DecisionClient(running.url, running.token, timeout_s=30.0) as client:
        assert_all(client.refresh_all(), client.trouble(names[0]))
        assert_all(client.decide(names[-1], CONTEXT).gamma == GAMMA, client.trouble(names[-1]))
        times = []
        for _ in range(rounds):
            start = time.process_time()
            for name in names:
                client.decide(name, CONTEXT)
            times.append((time.process_time() - start) / len(names) * 1e6)
    return min(times), max(times)


def assert_all(good: bool, what: object) -> None:  # noqa: FBT001 - a check, not a switch
    """Stop where the benchmark would measure something else."""
    if not good:
        raise SystemExit(f"not as expected: {what}")


def provider_us(running: Running, evaluations: int) -> float:
    """Microseconds of CPU an evaluation through OpenFeature's OFREP provider, caller and server."""
    headers = {"Authorization": f"Bearer {running.token}"}
    provider = OFREPProvider(running.url, headers_factory=lambda: headers)
    facts = {name: fact for name, fact in asdict(CONTEXT).items() if fact is not None}
    context = EvaluationContext("user-1", facts)
    api.set_provider(provider)
    client = api.get_client()

    def evaluate() -> bool:
        return client.get_boolean_value(
            flag_key="route-00000", default_value=False, evaluation_context=context
        )

    assert_all(evaluate(), "the provider resolves false")
    start = time.process_time()
    for _ in range(evaluations):
        evaluate()
    return (time.process_time() - start) / evaluations * 1e6


def asked(
    running: Running, path: str, headers: dict[str, str], times: int, status: int
) -> tuple[float, float]:
    """Server CPU and wall microseconds a request, one connection kept open."""
    host = running.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    every = {"Authorization": f"Bearer {running.token}", **headers}
    began, cpu = time.perf_counter(), running.cpu_s()
    for _ in range(times):
        connection.request("GET", path, headers=every)
        answer = connection.getresponse()
        answer.read()
        assert_all(answer.status == status, answer.status)
    spent = running.cpu_s() - cpu, time.perf_counter() - began
    connection.close()
    return spent[0] / times * 1e6, spent[1] / times * 1e6


def polled(running: Running, clients: int) -> dict[str, Any]:
    """Let so many clients poll with their ETag once each; count queries and builds."""
    snapshots = running.services.snapshots
    etag = snapshots.current().etag(None, "*")
    built = snapshots.built
    sent: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            sent.append(statement)

    event.listen(running.services.db.engine, "before_cursor_execute", count)
    began = time.perf_counter()
    headers = {"If-None-Match": etag}
    cpu_us, _ = asked(running, "/v1/decisions/snapshot", headers, clients, 304)
    return {
        "polls": clients,
        "poll_server_us": cpu_us,
        "seconds": time.perf_counter() - began,
        "queries": len(sent),
        "builds": snapshots.built - built,
    }


def measure(routes: int, clients: int, rounds: int, evaluations: int) -> Figures:
    """Measure everything on one server."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), routes) as running:
        best, worst = client_us(running, routes, rounds)
        provider = provider_us(running, evaluations)
        path = "/v1/routes/route-00000/decision"
        rest = asked(running, path, {}, evaluations, 200)
        asked(running, "/v1/decisions/snapshot", {}, 1, 200)
        figures = Figures(
            client_us=best,
            client_worst_us=worst,
            ofrep_provider_us=provider,
            ratio=provider / best,
            rest_server_us=rest[0],
            rest_wall_us=rest[1],
            **polled(running, clients),
        )
    return replace(figures, builds=max(figures.builds, 0))


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--routes", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    figures = measure(chosen.routes, chosen.clients, chosen.rounds, chosen.evaluations)
    print(
        f"DecisionClient, {chosen.routes} routes: {figures.client_us:.2f} µs a decision "
        f"(worst round {figures.client_worst_us:.2f}); bound {MAX_DECISION_US:g}\n"
        f"OFREP Python provider: {figures.ofrep_provider_us:.0f} µs, caller and server: "
        f"{figures.ratio:.0f} times as much; bound {MIN_RATIO:g}\n"
        f"REST decision: {figures.rest_server_us:.0f} µs of the server's CPU "
        f"({figures.rest_wall_us:.0f} µs on the wall)\n"
        f"{figures.polls} polls with ETag: {figures.poll_server_us:.0f} µs of the server's CPU each, "
        f"{figures.queries} queries in {figures.seconds:.1f} s, {figures.builds} builds"
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(asdict(figures), indent=1))
    missed = figures.missed()
    for one in missed:
        print(f"MISSED: {one}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
