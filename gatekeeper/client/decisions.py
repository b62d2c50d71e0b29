"""``DecisionClient``: keeps each route's lease, renews it, and applies the request-time rules."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from gatekeeper.core.bypass import Lease, RequestContext, RequestDecision, decide_request
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

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


@dataclass
class _Held:
    """What is known of a route: the newest lease and when it was received, on our clock."""

    lease: Lease | None = None
    received_s: float = 0.0
    tried_s: float | None = None
    trouble: str | None = None

    def take(self, lease: Lease, now_s: float) -> bool:
        """Hold a lease received now; False where it is older than the one held."""
        if self.lease is not None and lease.version < self.lease.version:
            self.trouble = f"version {lease.version} is older than {self.lease.version}"
            return False
        self.lease, self.received_s, self.trouble = lease, now_s, None
        return True


@dataclass
class _Snapshot:
    """The last snapshot: its ETag, its version, and each route's version in it."""

    etag: str | None = None
    version: tuple[int, int] = (0, 0)
    routes: dict[str, tuple[int, int]] = field(default_factory=dict)


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
    all routes instead, which costs the server next to nothing while it has not changed, and
    ``decide`` never waits for the network. An unreachable server, an answer that cannot be read or
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
        with self._lock:
            held = self._routes.setdefault(route, _Held())
            due = self._due(held)
            background = self._thread is not None
        if due and not background:
            self.refresh(route)
        with self._lock:
            lease, age_s = held.lease, self._clock() - held.received_s
        return decide_request(lease, context or RequestContext(), age_s=age_s)

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
        found: tuple[_Snapshot, list[Lease]] | None = None
        if answer is not None and answer.status != _NOT_MODIFIED:
            found, trouble = _read(answer)
        with self._lock:
            self._trouble = trouble
            if trouble is not None:
                return False
            if found is None:
                self._confirm(before)
                return True
            snapshot, leases = found
            if snapshot.version < self._snapshot.version:
                newer = self._snapshot.version
                self._trouble = f"version {snapshot.version} is older than {newer}"
                return False
            self._snapshot = snapshot
            for lease in leases:
                self._routes.setdefault(lease.route, _Held()).take(lease, self._clock())
            return True

    def _confirm(self, snapshot: _Snapshot) -> None:
        for route, version in snapshot.routes.items():
            held = self._routes[route]
            # a newer lease from elsewhere is not the one that was confirmed
            if held.lease is not None and held.lease.version == version:
                held.received_s = self._clock()

    def trouble(self, route: str) -> str | None:
        """Why the last refresh of a route failed; None where it did not."""
        with self._lock:
            held = self._routes.get(route)
            return self._trouble or (None if held is None else held.trouble)

    def start(self, *, interval_s: float = 1.0) -> None:
        """Keep every route fresh from a thread that asks each ``interval_s`` seconds."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._keep_fresh,
                args=(interval_s,),
                name="gatekeeper-decisions",
                daemon=True,
            )
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._http.close()

    def _keep_fresh(self, interval_s: float) -> None:
        while not self._stop.is_set():
            self.refresh_all()
            self._stop.wait(interval_s)

    def _due(self, held: _Held) -> bool:
        now = self._clock()
        if held.tried_s is not None and now - held.tried_s < _RETRY_S:
            return False
        return held.lease is None or now - held.received_s >= _RENEW_AT * held.lease.ttl_s

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


def _read(answer: _Answer) -> tuple[tuple[_Snapshot, list[Lease]] | None, str | None]:
    """Read a snapshot as a whole, or nothing of it."""
    try:
        body = json.loads(answer.body)
        epoch, counter = body["version"]
        leases = [Lease.from_dict(item) for item in body["items"]]
        snapshot = _Snapshot(
            etag=answer.etag,
            version=(int(epoch), int(counter)),
            routes={lease.route: lease.version for lease in leases},
        )
    except _UNREADABLE as error:
        return None, f"the answer cannot be read: {error!r}"
    return (snapshot, leases), None
