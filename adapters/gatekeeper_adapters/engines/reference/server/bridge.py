"""One thread steps the engine; the event loop hands it requests and hears what each step did.

The engine is touched by that thread alone. At most as many requests as it has slots are with it;
the others wait here in order of arrival, so that a request's queue ends when it gets a slot.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gatekeeper.errors import GatekeeperError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gatekeeper.core.acceptance import Round
    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import Emission, Engine, Finished, StepResult, TokenLogprob

__all__ = ["Bridge", "Busy", "Progress"]

STALL_S = 120.0
"""A step that takes longer is taken for one that never ends."""

JOIN_S = 10.0


class Busy(Unavailable):
    """Every slot is taken and the queue is full: HTTP 429."""

    status: ClassVar[int] = 429
    title: ClassVar[str] = "Busy"


@dataclass(frozen=True)
class Progress:
    """What happened to one request at ``at`` (seconds of the bridge's clock).

    ``admitted`` when it got its slot; then one for each step that emitted tokens, with the round's
    counts; ``finished`` on the last one, or ``error`` where there will be none.
    """

    request_id: str
    at: float
    admitted: bool = False
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    drafted: int = 0
    accepted: int = 0
    finished: Finished | None = None
    error: GatekeeperError | None = None


class Bridge:
    """Started and used from one event loop; ``watch`` hears every batch of progress there."""

    def __init__(
        self,
        engine: Engine,
        *,
        waiting: int,
        clock: Callable[[], float],
        watch: Callable[[Sequence[Progress]], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._slots = engine.info.max_batch
        self._capacity = self._slots + waiting
        self._clock = clock
        self._watch = watch
        self._listeners: dict[str, Callable[[Progress], None]] = {}
        self._admitted: set[str] = set()
        self._failure: str | None = None
        self._idle_since = clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # the thread's own, and how it is spoken to
        self._orders: queue.SimpleQueue[DecodeRequest | str | None] = queue.SimpleQueue()
        self._queue: OrderedDict[str, DecodeRequest] = OrderedDict()
        self._active: dict[str, None] = {}
        self._step_began: float | None = None

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._listeners) - len(self._admitted)

    @property
    def failure(self) -> str | None:
        """Why no request is served any more; None while all is well."""
        return self._failure

    def idle_s(self) -> float:
        """Seconds since the last request left; 0 while there are any."""
        return 0.0 if self._listeners else self._clock() - self._idle_since

    def start(self) -> None:
        """Start the thread; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._clock()
        self._thread.start()

    def submit(self, requests: Sequence[DecodeRequest], listen: Callable[[Progress], None]) -> None:
        """Queue all of the requests or none; ``listen`` hears of each on the event loop.

        Raises:
            Busy: the queue has no room for them.
            Unavailable: the engine's thread has ended.
        """
        if self._failure is not None:
            raise _gone(self._failure)
        free = self._capacity - len(self._listeners)
        if len(requests) > free:
            raise Busy(
                f"has room for {free} more requests",
                field="queue",
                value=len(self._listeners),
                remedy="try again in a moment",
            )
        for request in requests:
            self._listeners[request.request_id] = listen
            self._orders.put(request)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """Free slots and places in the queue; nothing more is heard of these requests."""
        for request_id in request_ids:
            if self._forget(request_id):
                self._orders.put(request_id)

    def check(self) -> None:
        """Give up on a step that has taken ``STALL_S``: whoever waits is told so."""
        began = self._step_began
        if began is not None and self._clock() - began > STALL_S:
            self._break(f"a step has taken more than {STALL_S:g} s")

    async def stop(self) -> None:
        """End the thread after the step it is in; requests still there are told so."""
        self._break("the server is stopping")
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, JOIN_S)

    # on the event loop

    def _hear(self, batch: Sequence[Progress]) -> None:
        self._watch(batch)
        for progress in batch:
            listen = self._listeners.get(progress.request_id)
            if listen is None:
                continue  # cancelled meanwhile
            if progress.admitted:
                self._admitted.add(progress.request_id)
            if progress.finished is not None or progress.error is not None:
                self._forget(progress.request_id)
            listen(progress)

    def _forget(self, request_id: str) -> bool:
        known = self._listeners.pop(request_id, None) is not None
        self._admitted.discard(request_id)
        self._idle_since = self._clock()
        return known

    def _break(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        at, error = self._clock(), _gone(self._failure)
        self._hear([Progress(request_id, at, error=error) for request_id in self._listeners])

    # on the engine's thread

    def _run(self) -> None:
        try:
            while self._obey():
                self._admit()
                if self._active:
                    self._step_began = self._clock()
                    result = self._engine.step()
                    self._step_began = None
                    self._tell(self._read(result))
        finally:
            # whatever ended it is on its way to the log; here it must only not go unnoticed
            error = sys.exception()
            if error is not None and self._loop is not None:
                reason = f"the engine failed ({type(error).__name__})"
                self._loop.call_soon_threadsafe(self._break, reason)

    def _obey(self) -> bool:
        """Take the orders so far, waiting for one where there is nothing to do; False to end."""
        idle = not self._active and not self._queue
        while idle or not self._orders.empty():
            idle = False
            order = self._orders.get()
            if order is None:
                return False
            if not isinstance(order, str):
                self._queue[order.request_id] = order
            elif self._queue.pop(order, None) is None and order in self._active:
                del self._active[order]
                self._engine.cancel(order)
        return True

    def _admit(self) -> None:
        told = []
        while self._queue and len(self._active) < self._slots:
            request_id, request = self._queue.popitem(last=False)
            try:
                self._engine.submit(request)
            except GatekeeperError as error:
                told.append(Progress(request_id, self._clock(), error=error))
            else:
                self._active[request_id] = None
                told.append(Progress(request_id, self._clock(), admitted=True))
        if told:
            self._tell(told)

    def _read(self, result: StepResult) -> list[Progress]:
        """Progress of a step in order of admission: the order in which answers grow is stable."""
        at = self._clock()
        emitted: dict[str, Emission] = {one.request_id: one for one in result.emitted}
        rounds: dict[str, Round] = {one.request_id: one for one in result.rounds}
        ended = {one.request_id: one for one in result.finished}
        told = []
        for request_id in self._active:
            emission, done = emitted.get(request_id), ended.get(request_id)
            if emission is None and done is None:
                continue
            told.append(_progress(request_id, at, emission, rounds.get(request_id), done))
        for request_id in ended:
            self._active.pop(request_id, None)
        return told

    def _tell(self, batch: Sequence[Progress]) -> None:
        if self._loop is not None and batch:
            self._loop.call_soon_threadsafe(self._hear, batch)


def _progress(
    request_id: str,
    at: float,
    emission: Emission | None,
    entry: Round | None,
    done: Finished | None,
) -> Progress:
    return Progress(
        request_id,
        at,
        tokens=() if emission is None else emission.tokens,
        logprobs=None if emission is None else emission.logprobs,
        drafted=0 if entry is None else entry.drafted,
        accepted=0 if entry is None else entry.accepted,
        finished=done,
    )


def _gone(reason: str) -> Unavailable:
    return Unavailable(
        f"serves no more requests: {reason}",
        field="engine",
        remedy="look at the server's log, and start it again",
    )
