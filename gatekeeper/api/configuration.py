"""Configuration as documents: everything that is declared, and a set of documents applied at once."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from gatekeeper.actions.configuration import apply_configuration, export_configuration
from gatekeeper.api.models import Body, Document
from gatekeeper.api.services import Operator, Reader, Using

router = APIRouter(prefix="/v1", tags=["configuration"])

MAX_DOCUMENTS = 10_000


class DeclaredBody(Body):
    """A document, and the file that errors name."""

    file: Annotated[
        str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]+$")
    ]
    document: Document


class ConfigurationBody(Body):
    """Documents to apply; ``plan`` is the digest of a dry run whose changes are agreed to."""

    documents: Annotated[list[DeclaredBody], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    prune: bool = False
    dry_run: bool = False
    plan: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None


@router.get("/configuration")
def export(services: Using, _actor: Reader) -> dict[str, Any]:
    """Return policies, economics, aliases, routes and schedules as documents."""
    return {"items": export_configuration(services.db), "next": None}


@router.post("/configuration")
def apply(body: ConfigurationBody, services: Using, actor: Operator) -> dict[str, Any]:
    """Apply documents in one transaction, or say with ``dry_run`` what that would change."""
    plan = apply_configuration(
        services.db,
        services.evidence,
        actor,
        [(one.file, one.document) for one in body.documents],
        prune=body.prune,
        dry_run=body.dry_run,
        plan=body.plan,
    )
    return {
        "changes": [one.to_dict() for one in plan.changes],
        "plan": plan.digest,
        "applied": plan.applied,
        "not_pruned": list(plan.not_pruned),
    }
