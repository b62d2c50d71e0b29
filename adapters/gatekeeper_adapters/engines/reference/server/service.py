"""What one server is made of: the engine behind its bridge, its model's card, and what watches them."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.engines.reference.server.bridge import Bridge
from gatekeeper_adapters.engines.reference.server.metrics import ServerMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from gatekeeper.protocols import Engine
    from gatekeeper_adapters.engines.reference.server.chat_template import ChatTemplate
    from gatekeeper_adapters.engines.reference.server.spans import SpanSender
    from gatekeeper_adapters.engines.reference.server.wire import Defaults

__all__ = ["Card", "Service"]

_ASIDE = 16_384
"""Texts longer than this are tokenised beside the event loop."""

_WATCH_S = 0.5


@dataclass(frozen=True)
class Card:
    """What the server says of its model: the name that requests use, other names, and facts.

    ``fingerprint`` stands for weights, numerics and engine, not for what drafts.
    """

    name: str
    aliases: tuple[str, ...]
    fingerprint: str
    weights: Mapping[str, Any]
    speculation: Mapping[str, Any]


@dataclass
class Service:
    """Everything that a request needs. ``idle_exit_s`` without requests, and ``stop`` is called."""

    engine: Engine
    card: Card
    template: ChatTemplate
    defaults: Defaults
    waiting: int
    sender: SpanSender | None = None
    idle_exit_s: float | None = None
    stop: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    created: int = field(default_factory=lambda: int(time.time()))
    bridge: Bridge = field(init=False)

    def __post_init__(self) -> None:
        self.bridge = Bridge(
            self.engine, waiting=self.waiting, clock=self.clock, watch=self.metrics.step
        )
        self.metrics.follow(self.bridge)

    async def tokens(self, text: str) -> tuple[int, ...]:
        """Tokens of a text."""
        if len(text) > _ASIDE:
            return await asyncio.to_thread(self.engine.tokenize, text)
        return self.engine.tokenize(text)

    async def watch(self) -> None:
        """Look after the engine's thread until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            self.bridge.check()
            if self.idle_exit_s is not None and self.bridge.idle_s() >= self.idle_exit_s:
                self.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The engine's thread and the tasks beside it."""
        self.bridge.start()
        tasks = [asyncio.create_task(self.watch())]
        if self.sender is not None:
            tasks.append(asyncio.create_task(self.sender.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await self.bridge.stop()
            if self.sender is not None:
                await self.sender.flush()
