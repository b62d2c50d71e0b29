"""``DecisionClient``: keeps each route's lease, renews it, and applies the request-time rules."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from gatekeeper.client.follower import Follower
from gatekeeper.core.bypass import Lease, RequestContext, RequestDecision, decide_request
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from gatekeeper.client.events import Event

__all__ = ["DecisionClient"]

_RETRY_S = 1.0
_RENEW_AT = 0.5
_NOT_MODIFIED = 304
_UNREADABLE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    GatekeeperError,
)
_MAX_BYTES = 16 * 1024**2
_SNAPSHOT_S = 10.0
_STREAM_AGAIN_S = 60.0
_NOTHING = RequestContext()


@dataclass
class _Held:
    """What is known of a route: the newest lease and when it was received, on our clock.

    The two are replaced together, so that ``decide`` reads them without a lock.
    """

    state: tuple[Lease | None, float] = (None, 0.0)
    tried_s: float | None = None
    trouble: str | None = None

    def take(self, lease: Lease, now_s: float) -> bool:
        """Hold a lease received now; False where it is older than the one held."""
        held = self.state[0]
        if held is not None and lease.version < held.version:
            self.trouble = f"version {lease.version} is older than {held.version}"
            return False
        self.state, self.trouble = (lease, now_s), None
        return True


@dataclass
class _Snapshot:
    """The last snapshot: its ETag, its version, and each route's version in it."""

    etag: str | None = None
    version: tuple[int, int] = (0, 0)
    routes: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Told:
    """Leases that a snapshot or an event of the stream brought: all that there are, or new ones."""

    etag: str | None
    version: tuple[int, int]
    leases: list[Lease]
    complete: bool


@dataclass(frozen=True)
class _Answer:
    """What came back, read to its end."""

    status: int
    etag: str | None
    body: bytes


class DecisionClient:
    """Answers ``decide`` from a local copy of each route's lease.

    The time to live counts from receipt on this process's own monotonic clock. In ``decide`` itself
    a lease is renewed when half of it is over. After ``start()`` a thread asks for the snapshot of
    all routes instead, which costs the server next to nothing while it has not changed, or
    follows the stream of changes, and ``decide`` never waits for the network. An unreachable server, an answer that cannot be read or
    one older than what is known leaves the old lease in place until it lapses, and a lapsed lease
    is a bypass.

    Args:
        url, token: the server and a token that may read decisions.
        timeout_s: longest wait for the server inside ``decide``.
        clock: monotonic seconds.
        transport: httpx transport, for tests.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_s,
            transport=transport,
        )
        self._timeout_s = timeout_s
        self._follower = Follower(self._http, timeout_s=timeout_s, clock=clock, most=_MAX_BYTES)
        self._clock = clock
        self._lock = threading.Lock()
        self._routes: dict[str, _Held] = {}
        self._snapshot = _Snapshot()
        self._trouble: str | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def decide(self, route: str, context: RequestContext | None = None) -> RequestDecision:
        """Say whether this request may decode speculatively, and with which gamma. Never raises."""
        held = self._routes.get(route)
        if held is None:
            with self._lock:
                held = self._routes.setdefault(route, _Held())
        if self._thread is None and self._due(held):
            self.refresh(route)
        lease, received_s = held.state
        return decide_request(
            lease, _NOTHING if context is None else context, age_s=self._clock() - received_s
        )

    def refresh(self, route: str) -> bool:
        """Ask the server for the route's lease now; False where the old one had to stay."""
        with self._lock:
            held = self._routes.setdefault(route, _Held())
            held.tried_s = self._clock()
        lease, trouble = self._fetch(route)
        with self._lock:
            if lease is None:
                held.trouble = trouble
                return False
            return held.take(lease, self._clock())

    def refresh_all(self) -> bool:
        """Ask the server for every route's lease at once; False where the old ones had to stay.

        "Not modified" confirms the leases of the snapshot before: their time begins again.
        """
        with self._lock:
            before = self._snapshot
        headers = {} if before.etag is None else {"If-None-Match": before.etag}
        answer, trouble = self._ask("/v1/decisions/snapshot", headers, _SNAPSHOT_S)
        found: _Told | None = None
        if answer is not None and answer.status != _NOT_MODIFIED:
            found, trouble = _read(answer.body, answer.etag)
        with self._lock:
            self._trouble = trouble
            if trouble is not None:
                return False
            if found is None:
                self._confirm(before)
                return True
            return self._take(found)

    def _take(self, told: _Told) -> bool:
        """Hold what a snapshot or a stream brought; the caller has the lock."""
        if told.version < self._snapshot.version:
            newer = self._snapshot.version
            self._trouble = f"version {told.version} is older than {newer}"
            return False
        routes = {} if told.complete else dict(self._snapshot.routes)
        routes |= {lease.route: lease.version for lease in told.leases}
        self._snapshot = _Snapshot(told.etag, told.version, routes)
        for lease in told.leases:
            self._routes.setdefault(lease.route, _Held()).take(lease, self._clock())
        return True

    def _confirm(self, snapshot: _Snapshot) -> None:
        for route, version in snapshot.routes.items():
            held = self._routes[route]
            lease = held.state[0]
            # a newer lease from elsewhere is not the one that was confirmed
            if lease is not None and lease.version == version:
                held.state = (lease, self._clock())

    def trouble(self, route: str) -> str | None:
        """Why the last refresh of a route failed; None where it did not."""
        with self._lock:
            held = self._routes.get(route)
            return self._trouble or (None if held is None else held.trouble)

    def start(self, *, interval_s: float = 1.0, stream: bool = False) -> None:
        """Keep every route fresh from a thread that asks each ``interval_s`` seconds.

        With ``stream`` the server says what changes, at once; where it does not, or the stream
        breaks, the thread asks as before and tries the stream again now and then.
        """
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._keep_fresh,
                args=(interval_s, stream),
                name="gatekeeper-decisions",
                daemon=True,
            )
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the connection."""
        self._stop.set()
        if self._thread is not None:
            self._follower.hang_up()
            self._thread.join()
        self._http.close()

    def _keep_fresh(self, interval_s: float, stream: bool) -> None:  # noqa: FBT001 - a thread's argument
        failures, again_s = 0, -math.inf
        while not self._stop.is_set():
            if stream and self._clock() >= again_s:
                brought = self._follow()
                failures = 0 if brought else failures + 1
                again_s = self._clock() + min(2.0**failures, _STREAM_AGAIN_S)
            if not self._stop.is_set():
                self.refresh_all()
            self._stop.wait(interval_s)

    def _follow(self) -> bool:
        """Take what the stream brings until it breaks or we stop; whether it brought anything."""
        with self._lock:
            known = self._snapshot.version
        brought, trouble = False, "the stream has ended"
        try:
            for event in self._follower.events(known):
                if event.name and not self._heed(event):
                    trouble = "the stream does not follow from what is known"
                    break
                brought = brought or bool(event.name)
        except (httpx.HTTPError, OSError, ValueError) as error:
            trouble = str(error) or type(error).__name__
        with self._lock:
            self._trouble = trouble
        return brought

    def _heed(self, event: Event) -> bool:
        told, trouble = _read(event.data, None)
        with self._lock:
            self._trouble = trouble
            if told is None:
                return False
            if event.name == "leases":
                return self._take(told)
            if told.version != self._snapshot.version:
                return False
            self._confirm(self._snapshot)
            return True

    def _due(self, held: _Held) -> bool:
        now = self._clock()
        if held.tried_s is not None and now - held.tried_s < _RETRY_S:
            return False
        lease, received_s = held.state
        return lease is None or now - received_s >= _RENEW_AT * lease.ttl_s

    def _fetch(self, route: str) -> tuple[Lease | None, str | None]:
        try:
            path = f"/v1/routes/{quote(route, safe='')}/decision"
        except (UnicodeEncodeError, TypeError) as error:
            return None, f"no route has this name: {error}"
        answer, trouble = self._ask(path, {}, self._timeout_s)
        if answer is None:
            return None, trouble
        try:
            lease = Lease.from_dict(json.loads(answer.body))
        except _UNREADABLE as error:
            return None, f"the answer cannot be read: {error!r}"
        if lease.route != route:
            return None, f"the answer is about another route, {lease.route!r}"
        return lease, None

    def _ask(
        self, path: str, headers: Mapping[str, str], longest_s: float
    ) -> tuple[_Answer | None, str | None]:
        began, body = time.monotonic(), bytearray()
        try:
            with self._http.stream("GET", path, headers=headers) as response:
                if response.is_success:
                    for part in response.iter_bytes():
                        body += part
                        if len(body) > _MAX_BYTES:
                            return None, f"the answer has more than {_MAX_BYTES} bytes"
                        if time.monotonic() - began > longest_s:
                            return None, f"the answer takes longer than {longest_s:g} s"
        except httpx.HTTPError as error:
            return None, str(error) or type(error).__name__
        if response.is_success or (headers and response.status_code == _NOT_MODIFIED):
            return _Answer(response.status_code, response.headers.get("ETag"), bytes(body)), None
        return None, f"HTTP {response.status_code}"


def _read(body: bytes, etag: str | None) -> tuple[_Told | None, str | None]:
    """Read what was told as a whole, or nothing of it."""
    try:
        document = json.loads(body)
        epoch, counter = document["version"]
        return (
            _Told(
                etag=etag,
                version=(int(epoch), int(counter)),
                leases=[Lease.from_dict(item) for item in document["items"]],
                complete=document.get("complete", True) is True,
            ),
            None,
        )
    except _UNREADABLE as error:
        return None, f"the answer cannot be read: {error!r}"
