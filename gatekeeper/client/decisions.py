"""``DecisionClient``: keeps each route's lease, renews it, and applies the request-time rules."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from gatekeeper.core.bypass import Lease, RequestContext, RequestDecision, decide_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["DecisionClient"]

_RETRY_S = 1.0
_RENEW_AT = 0.5


@dataclass
class _Held:
    """What is known of a route: the newest lease and when it was received, on our clock."""

    lease: Lease | None = None
    received_s: float = 0.0
    tried_s: float | None = None
    trouble: str | None = None


class DecisionClient:
    """Answers ``decide`` from a local copy of each route's lease.

    The time to live counts from receipt on this process's own monotonic clock. A lease is renewed
    when half of it is over, in ``decide`` itself, or in a thread after ``start()``; then ``decide``
    never waits for the network. An unreachable server, an answer that cannot be read or one older
    than what is known leaves the old lease in place until it lapses, and a lapsed lease is a bypass.

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
        self._clock = clock
        self._lock = threading.Lock()
        self._routes: dict[str, _Held] = {}
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
            if lease is not None and held.lease is not None and lease.version < held.lease.version:
                trouble = f"version {lease.version} is older than {held.lease.version}"
            held.trouble = trouble
            if lease is None or trouble is not None:
                return False
            held.lease = lease
            held.received_s = self._clock()
            return True

    def trouble(self, route: str) -> str | None:
        """Why the last refresh of a route failed; None where it did not."""
        with self._lock:
            held = self._routes.get(route)
            return None if held is None else held.trouble

    def start(self, *routes: str, interval_s: float = 0.2) -> None:
        """Keep ``routes``, and every route asked for later, fresh from a thread."""
        with self._lock:
            for route in routes:
                self._routes.setdefault(route, _Held())
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
            with self._lock:
                due = [route for route, held in self._routes.items() if self._due(held)]
            for route in due:
                self.refresh(route)
            self._stop.wait(interval_s)

    def _due(self, held: _Held) -> bool:
        now = self._clock()
        if held.tried_s is not None and now - held.tried_s < _RETRY_S:
            return False
        return held.lease is None or now - held.received_s >= _RENEW_AT * held.lease.ttl_s

    def _fetch(self, route: str) -> tuple[Lease | None, str | None]:
        try:
            response = self._http.get(f"/v1/routes/{route}/decision")
            if not response.is_success:
                return None, f"HTTP {response.status_code}"
            return Lease.from_dict(response.json()), None
        except httpx.HTTPError as error:
            return None, str(error) or type(error).__name__
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return None, f"the answer cannot be read: {error!r}"
