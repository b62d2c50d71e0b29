"""Is the process alive, may it serve, and how is it doing."""

from typing import Any

from fastapi import APIRouter, Response

from gatekeeper.api.figures import figures
from gatekeeper.api.problems import problem
from gatekeeper.api.services import Using
from gatekeeper.store.database import reach
from gatekeeper.store.migrate import require_current

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, Any]:
    """Answer as long as the process does."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
def readyz(services: Using) -> dict[str, Any] | Response:
    """Answer 200 once the schema is current and the first snapshot of decisions is taken.

    Later 503 says that the database does not answer, or that the reconciler has stopped.
    """
    if services.migrated.is_set():
        reach(services.db)
    else:
        # Once is enough: a newer release that migrates beside us must not take us out of service.
        require_current(services.db, services.migrations)
        services.migrated.set()
    if not services.reconciler.running:
        return problem(
            503,
            "Not ready",
            "the first snapshot of decisions is not taken yet, or the reconciler has stopped",
            remedy="wait, then read the server's log",
        )
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
def metrics(services: Using) -> Response:
    """Prometheus text format; while the database does not answer, without what only it knows."""
    return Response(
        services.metrics.render(figures(services)), media_type="text/plain; version=0.0.4"
    )
