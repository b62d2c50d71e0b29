r"""CPU time of the critical path and of a what-if, in spans a second of one core.

    python benchmarks/traces.py                              10,000 and 100,000 spans, depth 100,000
    python benchmarks/traces.py --spans 1000000              a task of a million
    python benchmarks/traces.py --json traces.json

One task each time. ``agent``: steps of a model call that streams into the first of two tools, with
an HTTP request inside each. ``flat``: all spans below one root, overlapping. ``deep``: each span
inside the one before. What is promised is graph + path + what-if, at 50,000 spans a second at least
and as fast in a large task as in a small one; ``spans to answer`` adds the reading of kinds and
phases. What the server takes a span is in ``traces_ingest.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatekeeper.core.critical_path import critical_path, saving, stretch
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.tasks import build_task
from gatekeeper.core.traces import Span, Trace, canonical_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SHAPES", "measure"]

PROMISE = 50_000
"""Spans a second of one core."""

LINEAR = 2.0
"""How much dearer a span of the largest task may be than one of the smallest: caches and the
garbage collector take their share, a quadratic step would take a hundredfold."""

SIZES = (10_000, 100_000)
DEEP = 100_000
REPEATS, LARGE = 3, 500_000
_ID = "f" * 32
_MS = 10**6


def agent(count: int) -> list[Span]:
    """Steps of six spans each: step, call, two tools, a request in each."""
    made = [_span("root", 0, (count // 6 + 1) * 1000, None)]
    for k in range(count // 6 + 1):
        at = k * 1000
        call = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.response.time_to_first_chunk": 0.1,
            "gen_ai.usage.output_tokens": 200,
        }
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": f"tool{k % 5}"}
        made += [
            _span(f"{k}s", at, at + 990, "root"),
            _span(f"{k}c", at, at + 600, f"{k}s", call),
            _span(f"{k}t", at + 500, at + 800, f"{k}s", tool),
            _span(f"{k}h", at + 510, at + 790, f"{k}t"),
            _span(f"{k}u", at + 610, at + 980, f"{k}s", tool),
            _span(f"{k}i", at + 620, at + 970, f"{k}u"),
        ]
    return made[:count]


def flat(count: int) -> list[Span]:
    """Spans below one root: a decode touches the next span, a tool reaches into the decode."""
    kinds = (("other", 1), ("tool", 3), ("decode", 2))
    below = (
        _span(str(k), 2 * k, 2 * k + lasts, "root", {"gatekeeper.kind": kind})
        for k in range(count - 1)
        for kind, lasts in (kinds[k % 3],)
    )
    return [_span("root", 0, 2 * count, None), *below]


def deep(count: int) -> list[Span]:
    """A chain of spans, each inside the one before, with a decode at its end."""
    made = [
        _span(str(k), k, 3 * count - k, str(k - 1) if k else None, {"gatekeeper.kind": "other"})
        for k in range(count - 1)
    ]
    last = {"gatekeeper.kind": "decode"}
    return [*made, _span("last", count, 2 * count, str(count - 2), last)]


SHAPES: dict[str, Callable[[int], list[Span]]] = {"agent": agent, "flat": flat, "deep": deep}


def _span(
    name: str, start: int, end: int, parent: str | None, attributes: dict[str, Any] | None = None
) -> Span:
    return Span(
        trace_id=_ID,
        span_id=name,
        name=name,
        start_ns=start * _MS,
        end_ns=end * _MS,
        parent_id=parent,
        attributes=attributes or {},
    )


def measure(shape: str, count: int) -> dict[str, Any]:
    """CPU microseconds a span of every step, the best of several runs where they are short."""
    spans = tuple(sorted(SHAPES[shape](count), key=canonical_key))
    trace = Trace(_ID, "benchmark", spans)
    best: dict[str, float] = {}
    for _ in range(1 if count >= LARGE else REPEATS):
        gc.collect()
        clock = _Clock(count)
        task = build_task(trace)
        clock.lap("task")
        graph = build_graph(task)
        clock.lap("graph")
        path = critical_path(graph)
        clock.lap("path")
        saved = saving(graph, stretch(graph, task, kinds={"decode": Fraction(1, 2)}))
        clock.lap("what_if")
        best = {name: min(us, best.get(name, us)) for name, us in clock.laps.items()}
    if sum(step.lag_ns + step.duration_ns for step in path) != task.wall_ns or saved <= 0:
        raise SystemExit(f"{shape}: the path does not reproduce the wall, or nothing is saved")
    promised = best["graph"] + best["path"] + best["what_if"]
    return {
        "shape": shape,
        "spans": len(spans),
        "nodes": len(graph),
        "us_per_span": best,
        "spans_per_s": 1e6 / promised,
        "spans_per_s_from_spans": 1e6 / (promised + best["task"]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class _Clock:
    """CPU time between one lap and the next, in microseconds a span."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.laps: dict[str, float] = {}
        self.at = time.process_time()

    def lap(self, name: str) -> None:
        now = time.process_time()
        self.laps[name] = (now - self.at) / self.count * 1e6
        self.at = time.process_time()


def _print(row: dict[str, Any]) -> None:
    us = row["us_per_span"]
    print(
        f"{row['shape']:6} {row['spans']:>9,} {us['task']:7.1f} {us['graph']:7.1f} "
        f"{us['path']:7.1f} {us['what_if']:8.1f} {row['spans_per_s']:>12,.0f} "
        f"{row['spans_per_s_from_spans']:>17,.0f} {row['peak_mib']:>9,.0f}",
        flush=True,
    )


def _kept(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether every task was as fast as promised, and large ones as fast as small ones."""
    good = all(row["spans_per_s"] >= PROMISE for row in rows)
    for shape in SHAPES:
        rates = [row["spans_per_s"] for row in rows if row["shape"] == shape]
        good = good and (not rates or rates[0] <= LINEAR * rates[-1])
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit status 1 where the promise is not kept."""
    parser = argparse.ArgumentParser(description="CPU time of the critical path and of a what-if.")
    parser.add_argument("--spans", type=int, nargs="+", default=SIZES, help="sizes of the tasks")
    parser.add_argument("--depth", type=int, default=DEEP, help="spans in the chain")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    print(
        f"{'shape':6} {'spans':>9} {'task':>7} {'graph':>7} {'path':>7} {'what-if':>8} "
        f"{'spans/s':>12} {'spans to answer/s':>17} {'peak MiB':>9}   (steps: CPU µs a span)"
    )
    rows = []
    for shape in ("agent", "flat"):
        for count in options.spans:
            rows.append(measure(shape, count))
            _print(rows[-1])
    for depth in sorted({max(options.depth // 10, 10), options.depth}):
        rows.append(measure("deep", depth))
        _print(rows[-1])
    kept = _kept(rows)
    if options.json is not None:
        figures = {"rows": rows, "holds": kept}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"{'kept' if kept else 'NOT kept'}: at least {PROMISE:,} spans a second, linear")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
