"""How many requests a token may make of this server: a bucket of one second's worth for each."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RateLimits"]


@dataclass
class _Bucket:
    """``left`` requests may be made at once; it fills by ``rate`` a second, up to one second's worth."""

    rate: float
    left: float
    at: float


@dataclass
class RateLimits:
    """Rates of this server's callers: ``default_per_s`` for tokens without one of their own.

    None is no limit. Every server counts for itself: behind a load balancer a token may make its rate
    of each. A caller beyond its rate is refused before the database is asked for its token.
    """

    default_per_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[bytes, _Bucket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, secret: str) -> None:
        """Count a request of a token that was seen before; one that is new is let through.

        Raises:
            RateLimited: it has to wait.
        """
        key = _key(secret)
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                return
            now = self.clock()
            full = max(bucket.rate, 1.0)
            bucket.left = min(full, bucket.left + (now - bucket.at) * bucket.rate)
            bucket.at = now
            if bucket.left >= 1:
                bucket.left -= 1
                return
            wait_s = math.ceil((1 - bucket.left) / bucket.rate)
            rate = bucket.rate
        error = RateLimited(
            f"makes more than {rate:g} requests a second",
            field="token",
            remedy=f"wait {wait_s} s, or ask an admin for a token with a higher --rate",
        )
        error.retry_after_s = wait_s
        raise error

    def known(self, secret: str, rate_per_s: float | None) -> None:
        """Note the rate of a token that is good: from its next request on it is counted."""
        rate = self.default_per_s if rate_per_s is None else rate_per_s
        key = _key(secret)
        with self._lock:
            bucket = self._buckets.get(key)
            if rate is None:
                self._buckets.pop(key, None)
            elif bucket is None:
                self._buckets[key] = _Bucket(rate, max(rate, 1.0) - 1, self.clock())
            else:
                bucket.rate = rate

    def forget(self, secret: str) -> None:
        """Drop a token that is not good any more."""
        with self._lock:
            self._buckets.pop(_key(secret), None)


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
