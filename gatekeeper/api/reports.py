"""Reports: everything behind a route's decision."""

from typing import Any

from fastapi import APIRouter

from gatekeeper.actions import on_demand
from gatekeeper.api.services import RouteReader, Using

router = APIRouter(prefix="/v1", tags=["reports"])


@router.get("/reports/{route}")
def route_report(route: str, services: Using, _actor: RouteReader) -> dict[str, Any]:
    """Return decision, gates, value, tasks, history and the claim of every figure among them."""
    return on_demand.report.route_report(services.db, route)
