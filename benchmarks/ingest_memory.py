"""A gigabyte of spans through OpenTelemetry's own exporters, into a server that may use 256 MiB.

    python benchmarks/ingest_memory.py
    python benchmarks/ingest_memory.py --megabytes 50

Two processes make spans and export them (SDK and OTLP/HTTP exporter, 512 spans a request, its
own retries). The limit holds for all that the server has in memory, libraries and all: where control
groups may be made, the kernel itself kills a server that needs more, and twenty times a second the
kernel's high-water mark is read and a server above the limit is killed. At the end every span that the
exporters called exported has to be stored, and a gigabyte of them. Before the first span a server may
use ``IDLE_MIB``.

    python benchmarks/ingest_memory.py --used

A used server has priced, reported and verified before, so that it holds pandas and SciPy, whose
libraries lie in files: what is mapped from files is then left out where somebody only watches, since
the kernel takes it back before it kills.

    python benchmarks/ingest_memory.py --megabytes 60 --per-task 9984

As many spans in one task as are computed at all: then the server also has to compute every task, one at
a time, under the same limit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from memory_limit import control_group
from own_server import Running, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["run"]

LIMIT_MIB = 256.0
IDLE_MIB = 110.0
LIMIT_S = 900.0
TEXT = 4000
PER_TASK = 32
BATCH = 512
EXPORTERS = 2
FIELDS = {"resident": "VmRSS", "of_its_own": "RssAnon", "of_files": "RssFile"}


def export(endpoint: str, token: str, spans: int, per_task: int) -> int:
    """Make so many spans and export them; return how many were exported. A process's whole work."""
    from opentelemetry import trace  # noqa: PLC0415 - only the exporting processes need it
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

    exporter = OTLPSpanExporter(endpoint, headers={"authorization": f"Bearer {token}"}, timeout=60)
    waiting: list[ReadableSpan] = []
    exported = 0

    class Keep(SpanProcessor):
        # The SDK's own batching drops what comes too fast: here everything has to arrive.
        def on_end(self, span: ReadableSpan) -> None:
            waiting.append(span)

    def flush(batch: Sequence[ReadableSpan]) -> int:
        return len(batch) if exporter.export(batch) is SpanExportResult.SUCCESS else 0

    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(Keep())
    tracer = provider.get_tracer("benchmark")
    text = os.urandom(TEXT // 2).hex()
    for task in range(spans // per_task):
        root = tracer.start_span("invoke_agent")
        inside = trace.set_span_in_context(root)
        for n in range(per_task - 1):
            attributes = {
                "gen_ai.operation.name": "chat" if n % 2 else "execute_tool",
                "gen_ai.usage.output_tokens": 100 + n,
                "app.state": f"{task}-{n}-{text}",
            }
            tracer.start_span("step", context=inside, attributes=attributes).end()
            while len(waiting) >= BATCH:
                exported += flush(waiting[:BATCH])
                del waiting[:BATCH]
        root.end()
    exported += flush(waiting)
    exporter.shutdown()
    return exported


class Watch(threading.Thread):
    """Kills the server when it uses more than the limit."""

    def __init__(self, server: Running, limit_mib: float) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.limit_mib = limit_mib
        self.done = threading.Event()
        self.peak_mib = 0.0
        self.killed = False

    def run(self) -> None:
        """Look twenty times a second; the kernel keeps the peak in between."""
        while not self.done.wait(0.05):
            try:
                self.peak_mib = self.server.memory_mib("VmHWM")
                if self.peak_mib > self.limit_mib:
                    os.kill(self.server.pid, signal.SIGKILL)
            except ProcessLookupError:  # killed, by us or by the kernel
                self.killed = True
                return


def run(
    folder: Path,
    *,
    megabytes: int = 1000,
    limit_mib: float = LIMIT_MIB,
    used: bool = False,
    per_task: int = PER_TASK,
) -> Any:  # noqa: ANN401 - JSON
    """Send so many megabytes; return what arrived, and what the server used for it."""
    home = folder / "home"
    each = -(-megabytes * 10**6 // (TEXT * EXPORTERS * (per_task - 1))) * per_task
    began = time.monotonic()
    with ExitStack() as stack:
        group = stack.enter_context(control_group(round(limit_mib * 2**20)))
        server = stack.enter_context(serving(home, group=group))
        idle = _memory(server)
        if used:
            _use(server)
        before = _memory(server)
        watch = Watch(server, limit_mib + (before["of_files"] if used else 0.0))
        watch.start()
        exported = _export_all(server, each, began + LIMIT_S, per_task)
        computed = None if per_task == PER_TASK else _computed(server, began + LIMIT_S)
        watch.done.set()
        watch.join()
        killed = watch.killed or (group is not None and group.killed > 0)
        after = None if killed else _memory(server)
    with sqlite3.connect(home / "gatekeeper.sqlite") as database:
        query = "SELECT count(*), coalesce(sum(length(document)), 0) FROM spans"
        stored, size = database.execute(query).fetchone()
    return {
        "spans": each * EXPORTERS,
        "exported": exported,
        "stored": stored,
        "stored_mb": round(size / 1e6),
        "tasks_computed": computed,
        "idle_mib": idle,
        "before_mib": before,
        "after_mib": after,
        "peak_mib": round(watch.peak_mib, 1),
        "limit_mib": limit_mib,
        "limit_kept_by": "watching" if group is None else f"control group v{group.version}",
        "seconds": round(time.monotonic() - began, 1),
        "holds": not killed
        and idle["resident"] <= IDLE_MIB
        and exported == stored == each * EXPORTERS
        and computed in (None, each * EXPORTERS // per_task)
        and size >= megabytes * 10**6,
    }


def _use(server: Running) -> None:
    """Ask for what loads every library that a server can need."""
    with httpx.Client(base_url=server.url, headers=server.headers, timeout=LIMIT_S) as http:
        for path in ("routes/none/value", "reports/none", "claims?verify=true"):
            http.get(f"/v1/{path}")


def _computed(server: Running, deadline: float) -> int:
    """Wait until every task is computed; return how many are."""
    with httpx.Client(base_url=server.url, headers=server.headers, timeout=LIMIT_S) as http:
        while True:
            try:
                tasks = http.get("/v1/tasks", params={"limit": 200}).raise_for_status().json()
            except httpx.HTTPError:  # it was killed
                return 0
            done = sum(one["state"] == "complete" for one in tasks["items"])
            if done == len(tasks["items"]) or time.monotonic() > deadline:
                return done
            time.sleep(0.5)


def _memory(server: Running) -> dict[str, float]:
    return {name: round(server.memory_mib(field), 1) for name, field in FIELDS.items()}


def _export_all(server: Running, each: int, deadline: float, per_task: int) -> int:
    """Let every exporter send so many spans; return how many they call exported."""
    command = [sys.executable, __file__, "--export", f"{server.url}/v1/traces", server.token]
    exporters = [
        subprocess.Popen(  # noqa: S603 - this very file
            [*command, str(each), str(per_task)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(EXPORTERS)
    ]
    exported = 0
    for one in exporters:
        try:
            out, _ = one.communicate(timeout=max(1.0, deadline - time.monotonic()))
            exported += int(out or 0)
        except subprocess.TimeoutExpired:
            one.kill()
    return exported


def main() -> int:
    """Run and print the figures; exit 1 when they do not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=LIMIT_MIB, metavar="MIB")
    parser.add_argument("--used", action="store_true", help="a server that has priced before")
    parser.add_argument("--per-task", type=int, default=PER_TASK, help="spans of a task")
    parser.add_argument(
        "--export", nargs=4, metavar=("URL", "TOKEN", "SPANS", "PER_TASK"), help="internal"
    )
    chosen = parser.parse_args()
    if chosen.export is not None:
        endpoint, token, spans, per_task = chosen.export
        print(export(endpoint, token, int(spans), int(per_task)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = run(
            Path(folder),
            megabytes=chosen.megabytes,
            limit_mib=chosen.limit,
            used=chosen.used,
            per_task=chosen.per_task,
        )
    print(json.dumps(figures, indent=1))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
