"""Closed-loop load over an engine in the same process: always ``concurrency`` requests in flight.

The engine is stepped here, so what is measured is the engine and not a network client: there is
no event loop that could lag, hence no client health to calibrate. Times come from ``clock``.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import pandas as pd

from gatekeeper.core.acceptance import Round
from gatekeeper.errors import InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import Engine, StepResult

__all__ = ["REQUEST_COLUMNS", "ROUND_COLUMNS", "Block", "run_block"]

REQUEST_COLUMNS = (
    "request_id",
    "prompt_tokens",
    "arrival_s",
    "first_s",
    "finish_s",
    "tokens",
    "first_tokens",
    "reason",
    "gaps_s",
)
"""One row per request: times on the block's clock, ``gaps_s`` the list of ITL, one per chunk
after the first; ``first_s`` and ``finish_s`` NaN where a request was cancelled before them."""

ROUND_COLUMNS = (*(f.name for f in fields(Round)), "step", "step_s", "steady")
"""``Round`` plus the step it belongs to, the step's wall time, and whether every request in flight
had its first token before the step (no prefill mixed in)."""

_MAX_IDLE_STEPS = 10_000


@dataclass(frozen=True)
class Block:
    """Everything one block of requests showed; ``complete`` is False after a cancellation."""

    requests: pd.DataFrame
    rounds: pd.DataFrame
    complete: bool


@dataclass
class _Flight:
    request: DecodeRequest
    arrival_s: float
    emitted_s: list[float] = field(default_factory=list)
    tokens: int = 0
    first_tokens: int = 0


def run_block(
    engine: Engine,
    requests: Sequence[DecodeRequest],
    concurrency: int,
    clock: Callable[[], float],
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> Block:
    """Decode ``requests`` in order, ``concurrency`` at a time, and record every request and round.

    A request arrives when a place falls free: queueing inside the engine counts, waiting outside
    does not.

    Raises:
        InputError: no requests, or more concurrency than the engine has slots.
        Unavailable: the engine stopped making progress.
    """
    if not requests:
        raise InputError("is empty", field="requests")
    if not 1 <= concurrency <= engine.info.max_batch:
        raise InputError(
            f"must lie in 1..{engine.info.max_batch}",
            field="concurrency",
            value=concurrency,
            remedy="open the engine with a larger max_batch",
        )
    waiting = deque(requests)
    flights: dict[str, _Flight] = {}
    done: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    step = idle = 0
    while waiting or flights:
        if cancelled():
            _abandon(engine, flights)
            return _block(done, rounds, complete=False)
        while waiting and len(flights) < concurrency:
            request = waiting.popleft()
            engine.submit(request)
            flights[request.request_id] = _Flight(request, clock())
        steady = all(flight.emitted_s for flight in flights.values())
        began = clock()
        result = engine.step()
        now = clock()
        idle = 0 if result.emitted or result.rounds or result.finished else idle + 1
        if idle > _MAX_IDLE_STEPS:
            raise Unavailable(
                f"made no progress in {idle} steps", field="engine", value=engine.info.name
            )
        rounds += [
            {**asdict(one), "step": step, "step_s": now - began, "steady": steady}
            for one in result.rounds
        ]
        done += _advance(flights, result, now)
        step += 1
    return _block(done, rounds, complete=True)


def _advance(flights: dict[str, _Flight], result: StepResult, now: float) -> list[dict[str, Any]]:
    """Book what a step emitted; return the rows of the requests that ended."""
    for emission in result.emitted:
        flight = flights[emission.request_id]
        if not emission.tokens:
            continue
        if not flight.emitted_s:
            flight.first_tokens = len(emission.tokens)
        flight.emitted_s.append(now)
        flight.tokens += len(emission.tokens)
    rows = []
    for end in result.finished:
        flight = flights.pop(end.request_id)
        times = flight.emitted_s
        rows.append(
            {
                "request_id": end.request_id,
                "prompt_tokens": len(flight.request.prompt),
                "arrival_s": flight.arrival_s,
                "first_s": times[0] if times else float("nan"),
                "finish_s": times[-1] if times else float("nan"),
                "tokens": flight.tokens,
                "first_tokens": flight.first_tokens,
                "reason": end.reason,
                "gaps_s": [b - a for a, b in itertools.pairwise(times)],
            }
        )
    return rows


def _abandon(engine: Engine, flights: dict[str, _Flight]) -> None:
    """Give the slots back, so that the engine can serve the next run."""
    for request_id in flights:
        engine.cancel(request_id)
    engine.step()


def _block(done: list[dict[str, Any]], rounds: list[dict[str, Any]], *, complete: bool) -> Block:
    recorded = pd.DataFrame(rounds, columns=list(ROUND_COLUMNS))
    return Block(
        pd.DataFrame(done, columns=list(REQUEST_COLUMNS)),
        recorded.astype({"rejection_position": "Int64", "steady": bool}),
        complete,
    )
