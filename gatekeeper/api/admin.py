"""Tokens, the audit trail and the claim ledger."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gatekeeper.actions import identity, on_demand
from gatekeeper.actions.claims import page_of_claims
from gatekeeper.api.models import Name, RotationBody, TokenBody
from gatekeeper.api.services import Admin, After, Limit, Reader, Using, page
from gatekeeper.api.views import plain_view, token_view
from gatekeeper.errors import InputError

router = APIRouter(prefix="/v1", tags=["administration"])


@router.post("/tokens", status_code=201)
def create_token(body: TokenBody, services: Using, actor: Admin) -> dict[str, Any]:
    """Create a token; its secret is in this answer and nowhere else."""
    record, secret = identity.create_token(
        services.db,
        actor,
        name=body.name,
        role=body.role,
        ttl_s=body.ttl_s,
        routes=body.routes,
        rate_per_s=body.rate_per_s,
    )
    return {**token_view(record), "token": secret}


@router.get("/tokens")
def tokens(
    services: Using, _actor: Admin, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """List tokens, revoked ones included; no secrets."""
    records = identity.list_tokens(services.db, after=after, limit=limit)
    return page([token_view(r) for r in records], limit, "id")


@router.delete("/tokens/{token_id}")
def revoke_token(token_id: str, services: Using, actor: Admin) -> dict[str, Any]:
    """Revoke a token at once."""
    return token_view(identity.revoke_token(services.db, actor, token_id))


@router.post("/tokens/{token_id}/rotate", status_code=201)
def rotate_token(
    token_id: str, body: RotationBody, services: Using, actor: Admin
) -> dict[str, Any]:
    """Give a token a successor, whose secret is in this answer and nowhere else."""
    record, secret = identity.rotate_token(services.db, actor, token_id, overlap_s=body.overlap_s)
    return {**token_view(record), "token": secret}


@router.get("/audit")
def audit(
    services: Using,
    _actor: Admin,
    *,
    limit: Limit = 100,
    after: After = None,
    actor: Annotated[Name | None, Query(description="As recorded, or a token's id")] = None,
    action: Name | None = None,
    object_: Annotated[Name | None, Query(alias="object")] = None,
) -> dict[str, Any]:
    """List changes, newest first."""
    if after is not None and not after.isdecimal():
        raise InputError("is not a cursor", field="after", value=after, remedy="use `next`")
    start = None if after is None else min(int(after), 2**62)
    records = identity.audit_trail(
        services.db, after=start, limit=limit, actor=actor, action=action, target=object_
    )
    return page([plain_view(r) for r in records], limit, "id")


@router.get("/claims")
def claims(
    services: Using,
    _actor: Reader,
    *,
    limit: Limit = 100,
    after: After = None,
    run: str | None = None,
    verify: Annotated[bool, Query(description="Recompute the whole ledger; not paged")] = False,
) -> dict[str, Any]:
    """List the ledger; ``verify=true`` recomputes every figure from its evidence."""
    if verify:
        rows = on_demand.ledger.verify_ledger(services.db, services.evidence)
        return {"items": rows, "next": None}
    records = page_of_claims(services.db, after=after, limit=limit, run_id=run)
    return page([claim.to_dict() for claim in records], limit, "id")
