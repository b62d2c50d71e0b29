"""The HTTP server: uvicorn, which waits for open answers at its end, and streams that know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

__all__ = ["Server"]

DRAIN_S = 30
"""Seconds that requests in flight have to end once the server is told to stop."""


class Server(uvicorn.Server):
    """Serves an app, and ends its streams before it waits for what is under way."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in order."""
        self._app.state.services.feed.end()
        await super().shutdown(sockets)
