r"""CPU time from an OTLP request to committed spans and tasks, in microseconds a span.

    python benchmarks/traces_ingest.py
    python benchmarks/traces_ingest.py --endpoint http://127.0.0.1:5000/v1/traces --pid 4711 \
        --header x-mlflow-experiment-id=0

Our server on SQLite and, with ``--endpoint``, any other that takes OTLP get the same requests in
turns; what counts is the CPU time of the server's processes, from the first request until the
last has been answered 200, the best of the rounds. ``--pid`` names the process of the other
server (its children count too). Then, in this process: what each step of ours takes.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
from cpu_time import least_ms
from otlp_payload import Shape, request
from own_server import cpu_s, serving

from gatekeeper import plugins
from gatekeeper.actions.ingest import Intake, ingest_otlp
from gatekeeper.actions.redaction import Redactor
from gatekeeper.actions.start import prepare
from gatekeeper.actions.tasks import settle_due
from gatekeeper.config import data_dir
from gatekeeper.core.span_documents import digest, to_text
from gatekeeper.core.trace_documents import Document
from gatekeeper.store.database import open_database
from gatekeeper.store.schema_traces import task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.trace_documents import SpanReader

PROMISE_US = 60.0
PROMISED_RATIO = 50.0


@dataclass(frozen=True)
class Target:
    """A server that takes OTLP: ``pid`` is the process whose CPU time counts."""

    name: str
    endpoint: str
    pid: int
    headers: Mapping[str, str] = field(default_factory=dict)


def measure(target: Target, bodies: Sequence[bytes], spans: int) -> float:
    """Send requests one after another; return the server's CPU microseconds a span.

    Raises:
        RuntimeError: one was not answered 200.
    """
    headers = {**target.headers, "Content-Type": "application/x-protobuf"}
    with httpx.Client(headers=headers, timeout=300, trust_env=False) as http:
        before = cpu_s(target.pid)
        for body in bodies:
            answer = http.post(target.endpoint, content=body)
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"{target.name} answered {answer.status_code}: {answer.text}")
    return (cpu_s(target.pid) - before) / spans * 1e6


def compare(home: Path, other: Target | None, shape: Shape, requests: int, rounds: int) -> Any:  # noqa: ANN401 - JSON
    """Best CPU microseconds a span of each server, the rounds interleaved."""
    best: dict[str, float] = {}
    with serving(home) as running:
        ours = Target("gatekeeper", f"{running.url}/v1/traces", running.pid, running.headers)
        targets = [ours] if other is None else [ours, other]
        for target in targets:  # whatever a first request alone has to load
            measure(target, [request(10**6, shape)], shape.spans)
        for r in range(rounds):
            bodies = [request(r * requests + n, shape) for n in range(requests)]
            for target in targets:
                found = measure(target, bodies, requests * shape.spans)
                best[target.name] = min(found, best.get(target.name, found))
    with sqlite3.connect(home / "gatekeeper.sqlite") as database:
        (stored,) = database.execute("SELECT count(*) FROM spans").fetchone()
        (tasks,) = database.execute("SELECT count(*) FROM tasks").fetchone()
    expected = (rounds * requests + 1) * shape.spans
    return {"us_per_span": best, "committed": stored == expected, "spans": stored, "tasks": tasks}


def steps(home: Path, shape: Shape, requests: int) -> dict[str, float]:
    """CPU microseconds a span of each step in this process."""
    reader = cast("SpanReader", plugins.load("gatekeeper.traces", "otlp"))
    bodies = [request(n, shape) for n in range(requests)]
    spans = requests * shape.spans
    found = [s for body in bodies for s in reader.read_spans(Document(body, None))[0]]
    redactor, lost = Redactor(), Counter[str]()
    texts = [to_text(redactor(span, lost)) for span in found]
    db = open_database(f"sqlite:///{home / 'steps.sqlite'}")
    prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
    intake = Intake(db)
    ingest_otlp(intake, request(10**6, shape), as_json=False)
    began = time.process_time()
    for body in bodies:
        ingest_otlp(intake, body, as_json=False)
    whole = time.process_time() - began
    taken = {
        "read protobuf": _us(lambda: [reader.read_spans(Document(b, None)) for b in bodies], spans),
        "redact": _us(lambda: [redactor(span, lost) for span in found], spans),
        "write as text": _us(lambda: [to_text(span) for span in found], spans),
        "digest": _us(lambda: [digest(text) for text in texts], spans),
    }
    taken["store and commit"] = whole / spans * 1e6 - sum(taken.values())
    with db.write() as session:
        session.execute(task.update().values(due_at=0, touched_at=0))
    began = time.process_time()
    while settle_due(db):
        pass
    taken["afterwards, compute the tasks"] = (time.process_time() - began) / spans * 1e6
    db.close()
    return taken


def _us(run: Any, spans: int) -> float:  # noqa: ANN401 - any callable
    return least_ms(run, repeats=3) / spans * 1e3


def parts(*, other: Target | None = None, shape: Shape, requests: int, rounds: int) -> Any:  # noqa: ANN401 - JSON
    """Run all of it."""
    with tempfile.TemporaryDirectory() as folder:
        figures = compare(Path(folder) / "home", other, shape, requests, rounds)
        figures["steps_us"] = steps(Path(folder), shape, requests)
    ours = figures["us_per_span"]["gatekeeper"]
    figures["holds"] = figures["committed"] and ours <= PROMISE_US
    if other is not None:
        figures["ratio"] = figures["us_per_span"][other.name] / ours
        figures["holds"] = figures["holds"] and figures["ratio"] >= PROMISED_RATIO
    return figures


def main() -> int:
    """Print the table; exit 1 where a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", help="URL of another server's OTLP endpoint")
    parser.add_argument("--pid", type=int, help="that server's process")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--requests", type=int, default=20, help="a round (default 20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--content", type=int, default=0, help="bytes of prompt text a model call")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if (chosen.endpoint is None) != (chosen.pid is None):
        parser.error("--endpoint and --pid belong together")
    other = None
    if chosen.endpoint is not None:
        headers = dict(pair.split("=", 1) for pair in chosen.header)
        other = Target("the other", chosen.endpoint, chosen.pid, headers)
    shape = Shape(content=chosen.content)
    figures = parts(other=other, shape=shape, requests=chosen.requests, rounds=chosen.rounds)
    for name, us in figures["us_per_span"].items():
        print(f"{name:32} {us:10.1f} us CPU a span, OTLP to committed")
    for name, us in figures["steps_us"].items():
        print(f"  {name:30} {us:10.1f}")
    if "ratio" in figures:
        print(f"{'the other takes':32} {figures['ratio']:10.1f} times as much")
    print(
        "holds" if figures["holds"] else f"does not hold: {PROMISE_US} us, {PROMISED_RATIO} times"
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
