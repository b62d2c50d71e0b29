"""Decisions as server-sent events: what has changed, and every few seconds that nothing has.

An event's id is the version it brings its reader to; a reader that comes back names it in
``Last-Event-ID`` and gets what is newer. Nothing is queued for a slow reader: each time it has
taken an event it gets the difference to what holds then, so that it costs one snapshot at most.
"""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gatekeeper.actions.snapshots import FRESH_S, Snapshot, encode
from gatekeeper.errors import Busy, GatekeeperError
from gatekeeper.store.records import Version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from gatekeeper.actions.snapshots import Handed, Snapshots

__all__ = ["EventStream", "Feed", "parse_event_id"]

HEARTBEAT_S = 5.0
"""A reader that hears nothing for three of these takes the stream for broken."""

MOST = 1_000
"""Streams of one server at a time; whoever comes later polls."""

SEND_S = 30.0
"""A reader that takes nothing for this long is let go; it comes back for what it has missed."""

LONGEST_S = 3600.0
"""Streams end after about this long, so that readers spread over the servers that there are."""

_EVENT_ID = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class Feed:
    """One server's streams: how many there are, and who wakes them.

    Args:
        snapshots: what is streamed.
        most, heartbeat_s: as above, smaller in tests.
    """

    def __init__(
        self, snapshots: Snapshots, *, most: int = MOST, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.snapshots = snapshots
        self.most = most
        self.heartbeat_s = heartbeat_s
        self.ended = False
        self.waiting: set[asyncio.Event] = set()
        self.open = 0
        self._news: asyncio.Event | None = None

    def enter(self) -> None:
        """Take a place for one more stream; ``leave`` gives it back.

        Raises:
            Busy: there is none, or the server is about to stop.
        """
        if self.ended or self.open >= self.most:
            raise Busy(
                "takes no more readers",
                field="stream",
                value=self.open,
                remedy="poll /v1/decisions/snapshot with If-None-Match, or come back later",
            )
        self.open += 1
        if self._news is not None:
            self._news.set()

    def leave(self) -> None:
        """Give a place back."""
        self.open -= 1

    async def run(self) -> None:
        """Wake the streams when something changes, as long as there are any."""
        loop = asyncio.get_running_loop()
        news = self._news = asyncio.Event()

        def hear() -> None:
            with suppress(RuntimeError):  # the loop is closed: a server that has stopped
                loop.call_soon_threadsafe(news.set)

        self.snapshots.heard.append(hear)
        seen: Snapshot | None = None
        while not self.ended:
            if self.open:
                with suppress(GatekeeperError):  # an outage: the streams fall silent by themselves
                    found = await self.present()
                    if seen is not found:
                        seen = found
                        self.wake()
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), FRESH_S if self.open else None)
            news.clear()

    async def present(self) -> Snapshot:
        """Return what holds now.

        Raises:
            Unavailable: the database does not answer.
        """
        found = self.snapshots.fresh()
        if found is None:
            found = await run_in_threadpool(self.snapshots.current)
        return found

    def wake(self) -> None:
        """Let every stream look."""
        for waiting in self.waiting:
            waiting.set()

    def end(self) -> None:
        """End every stream, and take no more."""
        self.ended = True
        if self._news is not None:
            self._news.set()
        self.wake()


class EventStream(Response):
    """The answer to one reader.

    Args:
        feed: whose place this stream has taken.
        allowed: whether the reader's token is still good.
        routes: those that the token is for; None is all.
        last: the version that the reader knows already.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        *,
        allowed: Callable[[], Awaitable[bool]],
        routes: frozenset[str] | None,
        last: Version | None,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            media_type=self.media_type,
        )
        del self.headers["content-length"]
        self._feed, self._allowed, self._routes, self._last = feed, allowed, routes, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader goes, the server stops, or the token ends."""
        del scope
        wake, gone = asyncio.Event(), asyncio.Event()
        self._feed.waiting.add(wake)
        listening = asyncio.create_task(_hear(receive, gone, wake))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for event in self._events(wake, gone):
                part = {"type": "http.response.body", "body": event, "more_body": True}
                await asyncio.wait_for(send(part), SEND_S)
            if not gone.is_set():
                await asyncio.wait_for(send({"type": "http.response.body"}), SEND_S)
        except (TimeoutError, OSError):
            pass  # a reader that takes nothing; the server closes the connection
        finally:
            listening.cancel()
            self._feed.waiting.discard(wake)
            self._feed.leave()

    async def _events(self, wake: asyncio.Event, gone: asyncio.Event) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        ends = clock() + LONGEST_S * random.uniform(0.8, 1.2)
        seen: Snapshot | None = None
        yield b"retry: 1000\n\n"
        while not (gone.is_set() or self._feed.ended) and clock() < ends:
            try:
                if not await self._allowed():
                    return
                found = (await self._feed.present()).within(self._routes)
            except GatekeeperError:
                # Keeps the connection and confirms nothing: leases lapse as in any outage.
                yield b": the database does not answer\n\n"
            else:
                yield self._event(seen, found)
                seen = found
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), self._feed.heartbeat_s)
            wake.clear()

    def _event(self, seen: Snapshot | None, found: Snapshot) -> bytes:
        if seen is None:
            last = self._last
            resumed = last is not None and _follows(found.version, last)
            news = [h for h in found.handed.values() if not (resumed and _known(h, last))]
            return _leases(found.version, news, complete=not resumed)
        news = [one for route, one in found.handed.items() if one is not seen.handed.get(route)]
        if news or found.version != seen.version:
            return _leases(found.version, news, complete=False)
        return _frame("confirm", found.version, encode(found.version, [], complete=False))


def parse_event_id(text: str | None) -> Version | None:
    """Return the version that ``Last-Event-ID`` names; None where it names none of ours."""
    found = _EVENT_ID.fullmatch(text or "")
    return None if found is None else Version(int(found[1]), int(found[2]))


def _follows(version: Version, last: Version) -> bool:
    return version.epoch == last.epoch and version.counter >= last.counter


def _known(handed: Handed, last: Version | None) -> bool:
    """Whether a reader at ``last`` has this lease, and with a lifetime that is not cut since."""
    return last is not None and not handed.cut and Version(*handed.lease.version) <= last


def _leases(version: Version, handed: list[Handed], *, complete: bool) -> bytes:
    data = encode(version, [one.document for one in handed], complete=complete)
    return _frame("leases", version, data)


def _frame(event: str, version: Version, data: bytes) -> bytes:
    head = f"id: {version.epoch}.{version.counter}\nevent: {event}\ndata: "
    return head.encode() + data + b"\n\n"


async def _hear(receive: Receive, gone: asyncio.Event, wake: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()
    wake.set()
