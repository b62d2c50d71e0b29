"""Timing on a machine that others use too: process CPU time, variants interleaved, the best kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Case", "fastest", "least_ms"]


@dataclass(frozen=True)
class Case:
    """One thing timed: generated tokens of ``run`` per CPU second."""

    name: str
    run: Callable[[], int]


def fastest(cases: Sequence[Case], repeats: int) -> dict[str, float]:
    """Best tokens per CPU second of each case, cases interleaved."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        for case in cases:
            start = time.process_time()
            count = case.run()
            rate = count / (time.process_time() - start)
            best[case.name] = max(best.get(case.name, 0.0), rate)
    return best


def least_ms(run: Callable[[], object], repeats: int = 8) -> float:
    """Fastest run in milliseconds of CPU time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e3
