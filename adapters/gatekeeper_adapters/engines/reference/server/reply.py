"""Sending one answer over HTTP, whole or as events; a client that leaves ends it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from gatekeeper.errors import GatekeeperError
from gatekeeper_adapters.engines.reference.server.forms import error_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from gatekeeper_adapters.engines.reference.server.answer import Answer
    from gatekeeper_adapters.engines.reference.server.forms import Form

__all__ = ["Reply"]

_HEAD = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


@dataclass(frozen=True)
class Reply:
    """An ASGI response. ``leave`` hears once how it went: None, or the name of what ended it early.

    Nothing is sent before the first token: until then an error can still have its own status.
    """

    answer: Answer
    form: Form
    stream: bool
    usage: bool
    leave: Callable[[str | None], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer until done, or until the client is gone.

        Raises:
            GatekeeperError: there is no room, or the engine refused, before anything was sent.
        """
        self.answer.submit()
        work = asyncio.create_task(self._send(scope, receive, send))
        gone = asyncio.create_task(_gone(receive))
        problem: str | None = "cancelled"
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                problem = work.result()
        except GatekeeperError as error:
            problem = type(error).__name__
            raise
        finally:
            self.answer.close()
            self.leave(problem)
            for task in (work, gone):
                task.cancel()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> str | None:
        if self.stream:
            return await self._send_events(send)
        document = await self.form.whole(self.answer)
        await JSONResponse(document)(scope, receive, send)
        return None

    async def _send_events(self, send: Send) -> str | None:
        begun = False
        try:
            async for document in self.form.stream(self.answer, usage=self.usage):
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
                await send(_event(document))
        except GatekeeperError as error:
            if not begun:
                raise
            await send(_event(error_document(error)))
            await send({"type": "http.response.body", "body": b""})
            return type(error).__name__
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return None


async def _gone(receive: Receive) -> None:
    """Wait until the client has left; the body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(document: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True}
