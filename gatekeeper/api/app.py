"""The application: routers, errors, metrics, and the reconciler for as long as it runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatekeeper.api import (
    admin,
    catalog,
    configuration,
    decisions,
    health,
    ofrep,
    problems,
    reports,
    rollouts,
    rounds,
    runs,
    schedules,
    tasks,
    traces,
    value,
    webhooks,
)
from gatekeeper.api.services import Services

__all__ = ["create_app"]

MAX_JSON_BYTES = 16 * 1024**2
"""Largest body that is read into memory."""

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
"""Methods told apart in the metrics; others are the sender's invention."""

ROUTERS = (
    catalog.router,
    runs.router,
    decisions.router,
    rounds.router,
    tasks.router,
    reports.router,
    value.router,
    schedules.router,
    webhooks.router,
    admin.router,
    rollouts.router,
    configuration.router,
)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await run_in_threadpool(services.reconciler.start)
    feeding = asyncio.create_task(services.feed.run())
    try:
        yield
    finally:
        services.feed.end()
        feeding.cancel()  # of two lifespans over one app, the other's loop holds what would wake it
        await asyncio.wait([feeding])
        await run_in_threadpool(services.reconciler.stop)


def create_app(services: Services) -> FastAPI:
    """Build the API over a migrated database."""
    app = FastAPI(
        title="gatekeeper",
        version=version("gatekeeper"),
        description="Decides, route by route, whether an LLM fleet should decode speculatively.",
        lifespan=_lifespan,
        docs_url=None,  # Swagger UI would load its script from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    problems.install(app)
    app.add_middleware(_BodyLimit)
    app.add_middleware(_Measure)
    for router in ROUTERS:
        app.include_router(router, responses=problems.RESPONSES)
    # The errors of these two have their protocols' own forms.
    app.include_router(ofrep.router)
    app.include_router(traces.router)
    app.include_router(health.router, responses={503: problems.RESPONSES[503]})
    return app


class _BodyLimit:
    """Refuses JSON bodies beyond all use before they fill the memory.

    Evidence streams to disk, and traces count their own bytes, also those that they unpack to.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_JSON_BYTES:
                # FastAPI turns any other exception here into "error parsing the body".
                raise HTTPException(413, f"the body is larger than {MAX_JSON_BYTES} bytes")
            return message

        own = scope["type"] != "http" or "/evidence/" in scope["path"]
        own = own or scope["path"] in traces.PATHS
        await self.app(scope, receive if own else counted, send)


class _Measure:
    """Counts and times answers up to their first byte: a stream has no end to wait for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics = scope["app"].state.services.metrics
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The template, never the path: a label per run id would grow without end.
                path = getattr(scope.get("route"), "path", "unmatched")
                method = scope["method"] if scope["method"] in METHODS else "other"
                metrics.requests.labels(method, path, str(message["status"])).inc()
                metrics.latency.labels(method, path).observe(time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, counted)
