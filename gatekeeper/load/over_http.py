"""Closed-loop load over a server that already runs, and the health of the client itself.

Always ``concurrency`` requests in flight. Each answer's times are taken where its pieces reach this
process, so a starved client would measure itself: while requests run, a second task asks for a
short sleep again and again and records by how much the event loop was late.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper.errors import InputError, Unavailable
from gatekeeper.protocols import Delta, Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.protocols import Connection, ScoredText, ServerRequest

__all__ = ["MAX_FAILURES", "REQUEST_LIMIT_S", "Answer", "Served", "serve_requests"]

REQUEST_LIMIT_S = 120.0
"""An answer that takes longer is given up: it ends as ``timeout`` and counts as a failure."""

MAX_FAILURES = 3
"""So many failed answers on end, and the server is taken for gone."""

TICK_S = 0.01
"""The sleep that the loop's lag is measured on: about the shortest gap worth timing."""


@dataclass
class Answer:
    """What came back for one request. Times are on the caller's clock, NaN where nothing came.

    Deltas of any kind count: text, tool calls, reasoning.
    """

    request: ServerRequest
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: list[ScoredText] = field(default_factory=list)
    ended_s: float = math.nan
    ending: Ending = field(default_factory=lambda: Ending("dropped"))

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def first_s(self) -> float:
        """When the first delta came."""
        return self.times_s[0] if self.times_s else math.nan

    @property
    def last_s(self) -> float:
        """When the last delta came."""
        return self.times_s[-1] if self.times_s else math.nan

    @property
    def gaps_s(self) -> list[float]:
        """Times between deltas."""
        return [b - a for a, b in itertools.pairwise(self.times_s)]


@dataclass(frozen=True)
class Served:
    """Answers in order of the requests, and the loop's lags in seconds; cut short if cancelled.

    ``failed_on_end`` counts the failed answers since the last one that a server completed.
    """

    answers: tuple[Answer, ...]
    lags_s: tuple[float, ...]
    complete: bool
    failed_on_end: int


async def serve_requests(
    connection: Connection,
    requests: Sequence[ServerRequest],
    concurrency: int,
    clock: Callable[[], float],
    *,
    cancelled: Callable[[], bool] = lambda: False,
    limit_s: float = REQUEST_LIMIT_S,
    failed_before: int = 0,
) -> Served:
    """Send ``requests`` in order, ``concurrency`` at a time; a failed answer is kept as one.

    ``failed_before`` is the ``failed_on_end`` of the requests before these.

    Raises:
        InputError: no requests, or ``concurrency`` below 1.
        Unavailable: ``MAX_FAILURES`` answers failed one after the other.
    """
    if not requests:
        raise InputError("is empty", field="requests")
    if concurrency < 1:
        raise InputError("must be 1 or more", field="concurrency", value=concurrency)
    load = _Load(connection, deque(requests), clock, cancelled, limit_s, failures=failed_before)
    lags: list[float] = []
    ticking = asyncio.create_task(_tick(clock, lags))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(requests))):
                group.create_task(load.work())
    finally:
        ticking.cancel()
    if load.gone is not None:
        raise Unavailable(
            f"failed {MAX_FAILURES} answers on end; the last ended as {load.gone}",
            field="server",
            remedy="look at the server's own log, then run the gate again",
        )
    order = {request.request_id: place for place, request in enumerate(requests)}
    answers = sorted(load.answers, key=lambda answer: order[answer.request.request_id])
    return Served(tuple(answers), tuple(lags), len(answers) == len(requests), load.failures)


@dataclass
class _Load:
    connection: Connection
    waiting: deque[ServerRequest]
    clock: Callable[[], float]
    cancelled: Callable[[], bool]
    limit_s: float
    answers: list[Answer] = field(default_factory=list)
    failures: int = 0
    gone: str | None = None

    async def work(self) -> None:
        while self.waiting and not self.cancelled():
            answer = await self._answer(self.waiting.popleft())
            self.answers.append(answer)
            self.failures = 0 if answer.ending.complete else self.failures + 1
            if self.failures >= MAX_FAILURES:
                self.gone = answer.ending.reason
                self.waiting.clear()

    async def _answer(self, request: ServerRequest) -> Answer:
        answer = Answer(request, self.clock())
        try:
            async with (
                asyncio.timeout(self.limit_s),
                aclosing(self.connection.stream(request)) as pieces,
            ):
                async for piece in pieces:
                    if isinstance(piece, Delta):
                        answer.times_s.append(self.clock())
                        answer.texts.append(piece.text)
                        answer.tokens.extend(piece.tokens)
                    else:
                        answer.ending = piece
        except TimeoutError:
            answer.ending = Ending("timeout")
        answer.ended_s = self.clock()
        return answer


async def _tick(clock: Callable[[], float], lags: list[float]) -> None:
    while True:
        before = clock()
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, clock() - before - TICK_S))
