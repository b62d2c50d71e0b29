"""Answers cut off where they grow beyond use: the servers are not ours, and one may never end."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, cast

import httpx

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

__all__ = ["MAX_BYTES", "MAX_S", "AsyncBounded", "Bounded", "certificates"]

MAX_BYTES = 32 * 1024**2
"""Largest answer: some thousand tokens, each with its alternatives and their names."""

MAX_S = 120.0
"""Longest answer to a question before the load; a silence is given up earlier."""


@functools.cache
def certificates() -> ssl.SSLContext:
    """Those that httpx trusts, read once: 25 ms, in which no answer of a load would be timed."""
    return httpx.create_ssl_context(trust_env=False)


class Bounded(httpx.HTTPTransport):
    """A transport whose answers end with ``httpx.ReadError`` beyond the bounds."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the bounds hold for its answer alone."""
        response = super().handle_request(_plain(request))
        _refuse_packed(response)
        response.stream = _Stream(cast("httpx.SyncByteStream", response.stream))
        return response


class AsyncBounded(httpx.AsyncHTTPTransport):
    """The same for an event loop; whoever waits there counts the time."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the bound holds for its answer alone."""
        response = await super().handle_async_request(_plain(request))
        _refuse_packed(response)
        response.stream = _AsyncStream(cast("httpx.AsyncByteStream", response.stream))
        return response


class _Stream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size, began = 0, time.monotonic()
        for part in self._stream:
            size += len(part)
            _check(size, time.monotonic() - began)
            yield part

    def close(self) -> None:
        self._stream.close()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            _check(size, 0.0)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def _plain(request: httpx.Request) -> httpx.Request:
    """Ask for no compression: a few bytes of it unpack to any size, and packing takes time."""
    request.headers["Accept-Encoding"] = "identity"
    return request


def _refuse_packed(response: httpx.Response) -> None:
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        raise httpx.ReadError(f"the answer is packed ({coding[:20]}), which was not asked for")


def _check(size: int, seconds: float) -> None:
    if size > MAX_BYTES:
        raise httpx.ReadError(f"the answer has more than {MAX_BYTES} bytes")
    if seconds > MAX_S:
        raise httpx.ReadError(f"the answer takes longer than {MAX_S:g} s")
