"""A gigabyte of spans through OpenTelemetry's own exporters, into a server that may use 256 MiB.

    python benchmarks/ingest_memory.py
    python benchmarks/ingest_memory.py --megabytes 50

Two processes make spans and export them (SDK and OTLP/HTTP exporter, 512 spans a request, its
own retries). What counts is the kernel's high-water mark of the server's memory, less the pages of
libraries that lie in files, which the kernel takes back when a limit is near. Twenty times a second
somebody looks, and kills a server that is above the limit. At the end every span that the exporters
called exported has to be stored, and a gigabyte of them.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from own_server import Running, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["run"]

LIMIT_MIB = 256.0
LIMIT_S = 900.0
TEXT = 4000
PER_TASK = 32
BATCH = 512
EXPORTERS = 2


def export(endpoint: str, token: str, spans: int) -> int:
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
    for task in range(spans // PER_TASK):
        root = tracer.start_span("invoke_agent")
        inside = trace.set_span_in_context(root)
        for n in range(PER_TASK - 1):
            attributes = {
                "gen_ai.operation.name": "chat" if n % 2 else "execute_tool",
                "gen_ai.usage.output_tokens": 100 + n,
                "app.state": f"{task}-{n}-{text}",
            }
            tracer.start_span("step", context=inside, attributes=attributes).end()
        root.end()
        while len(waiting) >= BATCH:
            exported += flush(waiting[:BATCH])
            del waiting[:BATCH]
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
        self.libraries_mib = server.memory_mib("RssFile")
        self.peak_mib = 0.0
        self.killed = False

    def run(self) -> None:
        """Look twenty times a second; the kernel keeps the peak in between."""
        while not self.done.wait(0.05):
            self.peak_mib = self.server.memory_mib("VmHWM") - self.libraries_mib
            if self.peak_mib > self.limit_mib:
                self.killed = True
                os.kill(self.server.pid, signal.SIGKILL)
                return


def run(folder: Path, *, megabytes: int = 1000, limit_mib: float = LIMIT_MIB) -> Any:  # noqa: ANN401 - JSON
    """Send so many megabytes; return what arrived, and what the server used for it."""
    home = folder / "home"
    each = -(-megabytes * 10**6 // (TEXT * EXPORTERS * (PER_TASK - 1))) * PER_TASK
    began = time.monotonic()
    with serving(home) as server:
        before = server.memory_mib("RssAnon")
        watch = Watch(server, limit_mib)
        watch.start()
        command = [sys.executable, __file__, "--export", f"{server.url}/v1/traces", server.token]
        exporters = [
            subprocess.Popen(  # noqa: S603 - this very file
                [*command, str(each)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            for _ in range(EXPORTERS)
        ]
        exported = 0
        for one in exporters:
            try:
                out, _ = one.communicate(timeout=max(1.0, began + LIMIT_S - time.monotonic()))
                exported += int(out or 0)
            except subprocess.TimeoutExpired:
                one.kill()
        watch.done.set()
        watch.join()
    with sqlite3.connect(home / "gatekeeper.sqlite") as database:
        query = "SELECT count(*), coalesce(sum(length(document)), 0) FROM spans"
        stored, size = database.execute(query).fetchone()
    return {
        "spans": each * EXPORTERS,
        "exported": exported,
        "stored": stored,
        "stored_mb": round(size / 1e6),
        "idle_mib": round(before, 1),
        "peak_mib": round(watch.peak_mib, 1),
        "libraries_mib": round(watch.libraries_mib, 1),
        "limit_mib": limit_mib,
        "seconds": round(time.monotonic() - began, 1),
        "holds": not watch.killed
        and exported == stored == each * EXPORTERS
        and size >= megabytes * 10**6,
    }


def main() -> int:
    """Run and print the figures; exit 1 when they do not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=LIMIT_MIB, metavar="MIB")
    parser.add_argument("--export", nargs=3, metavar=("URL", "TOKEN", "SPANS"), help="internal")
    chosen = parser.parse_args()
    if chosen.export is not None:
        endpoint, token, spans = chosen.export
        print(export(endpoint, token, int(spans)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = run(Path(folder), megabytes=chosen.megabytes, limit_mib=chosen.limit)
    print(json.dumps(figures, indent=1))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
