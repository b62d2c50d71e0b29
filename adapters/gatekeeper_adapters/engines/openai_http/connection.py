"""One server: connections to it from an event loop, and the stream of one answer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.errors import InputError
from gatekeeper.protocols import Emitted, Ending
from gatekeeper_adapters.engines.openai_http.bounds import AsyncBounded, certificates
from gatekeeper_adapters.engines.openai_http.token_ids import answer, token_body
from gatekeeper_adapters.engines.openai_http.wire import (
    PATHS,
    UNREADABLE,
    Reader,
    body,
    counters,
    document_of,
    event_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import Delta, DraftCounters, ServerInfo, ServerRequest

__all__ = [
    "CONNECT_S",
    "SILENCE_S",
    "HttpConnection",
    "HttpServer",
    "token_count",
    "tokenize_body",
]

CONNECT_S, SILENCE_S = 5.0, 60.0
"""Seconds to connect, and of silence within an answer before it is given up."""

_ASIDE_S = 10.0
_WHOLE_S = 180.0
"""An answer that is not streamed is silent until its end, and may wait for others."""


@dataclass(frozen=True)
class HttpServer:
    """Implements ``gatekeeper.protocols.Server``."""

    info: ServerInfo
    headers: Mapping[str, str]

    @asynccontextmanager
    async def connect(self, at_most: int) -> AsyncIterator[HttpConnection]:
        """Open a pool that is closed with the block. Redirects are not followed.

        Each request has a connection of its own: llama.cpp closes one after a stream without a
        word, and the next request on it would look like a lost answer.
        """
        async with httpx.AsyncClient(
            base_url=self.info.url,
            headers=dict(self.headers),
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            transport=AsyncBounded(
                verify=certificates(),
                limits=httpx.Limits(max_connections=at_most + 2, max_keepalive_connections=0),
                trust_env=False,
            ),
            trust_env=False,  # a proxy in between would be measured too
        ) as client:
            yield HttpConnection(client, self.info)


@dataclass(frozen=True)
class HttpConnection:
    """Implements ``gatekeeper.protocols.Connection``."""

    client: httpx.AsyncClient
    info: ServerInfo

    async def stream(self, request: ServerRequest) -> AsyncGenerator[Delta | Ending, None]:
        """Yield pieces as they arrive, then how it ended; a broken stream ends as ``dropped``."""
        reader = Reader()
        sent = body(request, model=self.info.model, api=self.info.api)
        try:
            async with self.client.stream("POST", PATHS[self.info.api], json=sent) as response:
                if not response.is_success:
                    await response.aread()
                    yield Ending(f"http {response.status_code}")
                    return
                async for line in response.aiter_lines():
                    event = event_of(line)
                    if event is None:
                        continue
                    piece = reader.read(event)
                    if piece is not None:
                        yield piece
        except httpx.TimeoutException:
            yield Ending("timeout")
            return
        except (httpx.TransportError, *UNREADABLE):
            # the server went away, or what it sent is no event of this API
            yield Ending("dropped")
            return
        yield reader.ending()

    async def emit(self, request: DecodeRequest) -> Emitted:
        """Token ids of an answer; see ``gatekeeper.protocols.Connection``."""
        path = self.info.token_ids
        if path is None:
            raise InputError(
                "tells no token ids",
                field="server",
                value=self.info.url,
                remedy="use a server that has return_token_ids or llama.cpp's /completion",
            )
        sent = token_body(request, model=self.info.model, path=path)
        try:
            response = await self.client.post(
                path, json=sent, timeout=httpx.Timeout(_WHOLE_S, connect=CONNECT_S)
            )
            if not response.is_success:
                return Emitted((), Ending(f"http {response.status_code}"))
            return answer(document_of(response.text), request, path=path)
        except httpx.TimeoutException:
            return Emitted((), Ending("timeout"))
        except (httpx.TransportError, *UNREADABLE, LookupError):
            return Emitted((), Ending("dropped"))

    async def counters(self) -> DraftCounters | None:
        """Totals of drafts from ``/metrics``."""
        if not self.info.counters:
            return None
        try:
            response = await self.client.get("/metrics", timeout=_ASIDE_S)
        except httpx.HTTPError:
            return None
        return counters(response.text) if response.is_success else None

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text from ``/tokenize``, as llama.cpp and vLLM have it."""
        if not self.info.retokenises:
            return None
        try:
            response = await self.client.post(
                "/tokenize", json=tokenize_body(text, self.info.model), timeout=_ASIDE_S
            )
            found = document_of(response.text) if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return None
        return token_count(found)


def tokenize_body(text: str, model: str) -> dict[str, Any]:
    """Both spellings at once: llama.cpp reads ``content``, vLLM ``prompt``."""
    return {"model": model, "content": text, "prompt": text, "add_special_tokens": False}


def token_count(answer: object) -> int | None:
    """Number of tokens in an answer of ``/tokenize``."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    return len(tokens) if isinstance(tokens, list) else None
