"""How many trace requests are taken on at a time: beyond it senders are told to come again."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from gatekeeper.errors import Busy, TooLarge, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gatekeeper.actions.ingest_settings import IngestLimits

__all__ = ["Admission", "Place"]

T = TypeVar("T")


class Admission:
    """Bounds what all trace requests of one server hold, whichever thread or loop they run on.

    A request first gets a ``place``, then room for the bytes of its body, then its turn on one of
    the few threads that decode and store. Those threads are its own: callers that ask for a
    decision never wait behind spans.
    """

    def __init__(self, limits: IngestLimits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._places = 0
        self._held = 0
        self._decoding = 0
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="ingest")

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Take part for as long as the block lasts.

        Raises:
            Busy: as many requests as are allowed are in flight.
        """
        with self._lock:
            if self._places >= self.limits.requests:
                raise Busy(
                    f"has {self.limits.requests} trace requests in flight",
                    field="server",
                    remedy="send it again after Retry-After",
                )
            self._places += 1
        mine = Place(self)
        try:
            yield mine
        finally:
            with self._lock:
                self._places -= 1
                self._held -= mine.bytes

    def hold(self, size: int) -> None:
        """Set so many more bytes apart.

        Raises:
            Busy: all bodies together would hold more than is allowed.
        """
        with self._lock:
            if self._held + size > self.limits.held_bytes:
                raise Busy(
                    f"holds {self._held} bytes of trace requests",
                    field="server",
                    remedy="send it again after Retry-After",
                )
            self._held += size

    @contextmanager
    def decoding(self, size: int) -> Iterator[None]:
        """Wait until so many unpacked bytes may be decoded beside those of the other threads."""
        with self._room:
            # A request alone always fits, whatever its size: its own limit was checked before.
            most = self.limits.unpacked_bytes
            self._room.wait_for(lambda: not self._decoding or self._decoding + size <= most)
            self._decoding += size
        try:
            yield
        finally:
            with self._room:
                self._decoding -= size
                self._room.notify_all()

    async def turn(self, work: Callable[[], T]) -> T:
        """Run ``work`` on a thread when one is free.

        Raises:
            Unavailable: none became free within the limits' patience.
        """
        future = self._threads.submit(work)
        waiting = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self.limits.patience_s)
        except asyncio.CancelledError:
            future.cancel()  # whoever asked has gone
            raise
        if not done and future.cancel():
            raise Unavailable(
                f"has been busy with other traces for {self.limits.patience_s:g} s",
                field="server",
                remedy="send the request again",
            )
        return await waiting  # it has begun, and only its own outcome says what was stored


class Place:
    """One request's part: ``bytes`` of its body are held."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    def grow(self, to: int) -> None:
        """Hold ``to`` bytes altogether.

        Raises:
            TooLarge: one body may not have as many.
            Busy: the bodies of all requests may not.
        """
        most = self._admission.limits.body_bytes
        if to > most:
            raise TooLarge(
                f"is larger than {most} bytes", field="body", remedy="send fewer spans at a time"
            )
        if to > self.bytes:
            self._admission.hold(to - self.bytes)
            self.bytes = to
