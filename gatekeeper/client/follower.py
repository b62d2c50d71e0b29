"""One reader of the stream of decisions: until it breaks, falls silent, or is hung up."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx

from gatekeeper.client.events import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gatekeeper.client.events import Event

__all__ = ["SILENCE_S", "Follower"]

SILENCE_S = 15.0
"""Three heartbeats of the server. Whoever heard nothing for longer, because the network or this
process itself stood still, takes nothing more from that stream: it may have waited in a buffer."""

_OK = 200


class Follower:
    """Reads the stream; ``hang_up`` from another thread ends it at once."""

    def __init__(
        self, http: httpx.Client, *, timeout_s: float, clock: Callable[[], float], most: int
    ) -> None:
        self._http = http
        self._timeout = httpx.Timeout(timeout_s, read=SILENCE_S)
        self._clock = clock
        self._most = most
        self._hung_up = False
        self._socket: socket.socket | None = None

    def events(self, known: tuple[int, int]) -> Iterator[Event]:
        """Events after the known version.

        Raises:
            httpx.HTTPError, OSError: the stream broke or fell silent.
            ValueError: the server has none, or sends what none is.
        """
        headers = {} if known == (0, 0) else {"Last-Event-ID": f"{known[0]}.{known[1]}"}
        path = "/v1/decisions/stream"
        with self._http.stream("GET", path, headers=headers, timeout=self._timeout) as response:
            if response.status_code != _OK:
                raise ValueError(f"no stream: HTTP {response.status_code}")
            network = response.extensions.get("network_stream")
            self._socket = None if network is None else network.get_extra_info("socket")
            heard = self._clock()
            for event in events(response.iter_bytes(), most=self._most):
                if self._hung_up:
                    return
                now = self._clock()
                if now - heard > SILENCE_S:
                    raise ValueError(f"the stream was silent for {now - heard:.0f} s")
                heard = now
                yield event

    def hang_up(self) -> None:
        """End the stream that is being read."""
        self._hung_up = True
        held = self._socket
        if held is not None:
            with suppress(OSError):
                # of the plain socket, whatever wraps it: it only wakes the reader
                socket.socket.shutdown(held, socket.SHUT_RDWR)
