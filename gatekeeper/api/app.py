"""The application: routers, errors, metrics, and the reconciler for as long as it runs."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from gatekeeper.api import admin, catalog, decisions, health, ofrep, problems, runs
from gatekeeper.api.services import Services

__all__ = ["create_app"]

ROUTERS = (catalog.router, runs.router, decisions.router, admin.router)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await run_in_threadpool(services.reconciler.start)
    try:
        yield
    finally:
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
    app.middleware("http")(_measure)
    for router in ROUTERS:
        app.include_router(router, responses=problems.RESPONSES)
    app.include_router(ofrep.router)  # its errors have the protocol's own form
    app.include_router(health.router, responses={503: problems.RESPONSES[503]})
    return app


async def _measure(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    services: Services = request.app.state.services
    began = time.perf_counter()
    response = await call_next(request)
    # The template, never the path: a label per run id would grow without end.
    template: Any = request.scope.get("route")
    path = getattr(template, "path", "unmatched")
    services.metrics.requests.labels(request.method, path, str(response.status_code)).inc()
    services.metrics.latency.labels(request.method, path).observe(time.perf_counter() - began)
    return response
