"""Artifacts, aliases, policies, routes."""

from typing import Any

from fastapi import APIRouter, Response

from gatekeeper.actions import catalog, dry_run
from gatekeeper.api.models import AliasBody, Document, RouteBody, TryBody
from gatekeeper.api.services import (
    Admin,
    After,
    Limit,
    Operator,
    Reader,
    RouteOperator,
    RouteReader,
    Using,
    page,
)
from gatekeeper.api.views import plain_view

router = APIRouter(prefix="/v1", tags=["catalog"])


@router.post("/artifacts", status_code=201, responses={200: {"description": "Known already"}})
def register(
    body: Document, services: Using, actor: Operator, response: Response
) -> dict[str, Any]:
    """Register an artifact document; the same one again answers 200."""
    record, created = catalog.register(services.db, actor, body)
    if not created:
        response.status_code = 200
    return plain_view(record)


@router.get("/artifacts")
def artifacts(
    services: Using, _actor: Reader, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List artifacts with the aliases that point at them."""
    names: dict[str, list[str]] = {}
    for alias, digest in catalog.list_aliases(services.db).items():
        names.setdefault(digest, []).append(alias)
    records = catalog.list_artifacts(services.db, after=after, limit=limit)
    items = [{**plain_view(r), "aliases": names.get(r.digest, [])} for r in records]
    return page(items, limit, "digest")


@router.get("/artifacts/{reference}")
def artifact(reference: str, services: Using, _actor: Reader) -> dict[str, Any]:
    """One artifact by digest or alias."""
    return plain_view(catalog.get_artifact(services.db, reference))


@router.put("/artifacts/aliases/{alias}")
def alias(alias: str, body: AliasBody, services: Using, actor: Operator) -> dict[str, Any]:
    """Point an alias at an artifact; routes on it are decided anew."""
    record = catalog.move_alias(services.db, actor, alias, body.digest)
    return {"alias": alias, "digest": record.digest}


@router.get("/policies")
def policies(services: Using, _actor: Reader) -> dict[str, Any]:
    """Return the current version of every policy."""
    return {"items": [plain_view(r) for r in catalog.list_policies(services.db)], "next": None}


@router.post("/policies/try")
def try_policy(body: TryBody, services: Using, _actor: Reader) -> dict[str, Any]:
    """Say what a policy would have decided in the past days; nothing is stored."""
    return dry_run.try_policy(services.db, body.document, days=body.days, routes=body.routes)


@router.get("/policies/{name}")
def policy(name: str, services: Using, _actor: Reader) -> dict[str, Any]:
    """One policy by name or digest."""
    return plain_view(catalog.get_policy(services.db, name))


@router.put("/policies/{name}")
def apply_policy(name: str, body: Document, services: Using, actor: Admin) -> dict[str, Any]:
    """Apply a policy version; a changed one voids the evidence of the version before."""
    record, changed = catalog.apply_policy(services.db, actor, name, body)
    return {**plain_view(record), "changed": changed}


@router.get("/routes")
def routes(
    services: Using, _actor: Reader, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List routes."""
    records = catalog.list_routes(services.db, after=after, limit=limit)
    return page([plain_view(r) for r in records], limit, "name")


@router.get("/routes/{route}")
def get_route(route: str, services: Using, _actor: RouteReader) -> dict[str, Any]:
    """One route."""
    return plain_view(catalog.get_route(services.db, route))


@router.put("/routes/{route}")
def put_route(route: str, body: RouteBody, services: Using, actor: RouteOperator) -> dict[str, Any]:
    """Create or replace a route and decide it."""
    record = catalog.put_route(
        services.db,
        actor,
        route,
        slice_name=body.slice,
        artifact=body.artifact,
        policy=body.policy,
        rules=body.rules,
        slo=body.slo,
        sampling=body.sampling,
        task_rules=body.task_rules,
        economics=body.economics,
        rollout=body.rollout if "rollout" in body.model_fields_set else catalog.KEEP,
    )
    return plain_view(record)
