"""What each latency is, once and for all; times in seconds on one clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.core.documents import check
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.policy_schema import Slo

__all__ = [
    "RequestTiming",
    "e2e",
    "goodput",
    "itl",
    "meets_slo",
    "relative_saving",
    "task_time_after",
    "tpot",
    "ttft",
]


@dataclass(frozen=True)
class RequestTiming:
    """One request as its client saw it.

    ``first_token_s`` is the arrival of the first token of any kind, None when none came;
    ``tokens`` comes from the usage record, never from counting chunks; ``finished`` is False for
    a request that failed or was cut off.
    """

    arrival_s: float
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    finished: bool = True

    def __post_init__(self) -> None:
        times = [
            t for t in (self.arrival_s, self.first_token_s, self.last_token_s) if t is not None
        ]
        if times != sorted(times) or not all(math.isfinite(t) for t in times):
            raise InputError(
                "are not in order",
                field="request times",
                value=times,
                remedy="give arrival <= first token <= last token on one clock",
            )


def ttft(request: RequestTiming) -> float | None:
    """Time to first token: arrival to the first token of any kind; None when none came."""
    if request.first_token_s is None:
        return None
    return request.first_token_s - request.arrival_s


def e2e(request: RequestTiming) -> float | None:
    """Arrival to last token; None when none came."""
    if request.last_token_s is None:
        return None
    return request.last_token_s - request.arrival_s


def tpot(request: RequestTiming) -> float | None:
    """Time per output token after the first: (E2E − TTFT) / (n − 1).

    None, not 0, for n <= 1: one token has no gap.
    """
    first, whole = ttft(request), e2e(request)
    if first is None or whole is None or request.tokens <= 1:
        return None
    return (whole - first) / (request.tokens - 1)


def itl(chunk_times_s: Sequence[float]) -> tuple[float, ...]:
    """Inter-token latency: gaps between emitted chunks; a chunk may hold several tokens.

    Raises:
        InputError: the times fall.
    """
    gaps = tuple(b - a for a, b in pairwise(chunk_times_s))
    check([("chunk_times_s", g, g >= 0, "give times in order of emission") for g in gaps])
    return gaps


def meets_slo(request: RequestTiming, slo: Slo) -> bool:
    """Whether a finished request meets every objective that is set.

    An objective on TPOT is met by a request of one token, which has no gap; without any token
    nothing is met.
    """
    first = ttft(request)
    if not request.finished or first is None:
        return False
    gap = tpot(request)
    in_time = slo.ttft_s is None or first <= slo.ttft_s
    return in_time and (slo.tpot_s is None or gap is None or gap <= slo.tpot_s)


def goodput(requests: Iterable[RequestTiming], slo: Slo, duration_s: float) -> float | None:
    """Requests per second that meet every SLO; None when no request was made.

    Raises:
        InputError: ``duration_s`` not positive.
    """
    check([("duration_s", duration_s, duration_s > 0, "give the length of the observation")])
    met = [meets_slo(request, slo) for request in requests]
    return sum(met) / duration_s if met else None


@equation("latency.task_time_after")
def task_time_after(segments: Mapping[str, float], segment: str, speedup: float) -> float:
    """Sum of a task's sequential segments once ``segment`` runs ``speedup`` times as fast.

    Raises:
        InputError: no such segment, or a speed-up that is not positive.
    """
    if segment not in segments:
        raise InputError(
            "is not a segment",
            field="segment",
            value=segment,
            remedy=f"use one of {', '.join(segments)}",
        )
    check([("speedup", speedup, speedup > 0, "use a factor above 0; 2 halves the time")])
    return math.fsum(v / speedup if k == segment else v for k, v in segments.items())


@equation("latency.relative_saving")
def relative_saving(before: float, after: float) -> float:
    """Share of ``before`` that is saved: (before − after) / before.

    Raises:
        InputError: ``before`` not positive.
    """
    check([("before", before, before > 0, "give the time without the change")])
    return (before - after) / before
