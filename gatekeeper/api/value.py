"""Economics, and what a route is worth."""

from typing import Any

from fastapi import APIRouter

from gatekeeper.actions import economics, on_demand
from gatekeeper.api.models import Document
from gatekeeper.api.services import Admin, Reader, RouteReader, Using
from gatekeeper.api.views import plain_view

router = APIRouter(prefix="/v1", tags=["value"])


@router.get("/economics")
def all_economics(services: Using, _actor: Reader) -> dict[str, Any]:
    """Return the current version of every economics document."""
    return {"items": [plain_view(r) for r in economics.list_economics(services.db)], "next": None}


@router.get("/economics/{name}")
def one_economics(name: str, services: Using, _actor: Reader) -> dict[str, Any]:
    """One economics document by name or digest."""
    return plain_view(economics.get_economics(services.db, name))


@router.put("/economics/{name}")
def apply_economics(name: str, body: Document, services: Using, actor: Admin) -> dict[str, Any]:
    """Apply a version; its routes are priced with it and decided before the answer."""
    record, changed = economics.apply_economics(services.db, services.evidence, actor, name, body)
    return {**plain_view(record), "changed": changed}


@router.get("/routes/{route}/value")
def value(route: str, services: Using, _actor: RouteReader) -> dict[str, Any]:
    """Return the route's pricing, made anew first where tasks, gates or prices have changed."""
    return dict(on_demand.price.current_value(services.db, services.evidence, route).document)
