"""Rollouts: outcomes of tasks in, and what was delivered beside what was promised out."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from gatekeeper.actions import on_demand, outcomes
from gatekeeper.actions.identity import within
from gatekeeper.api.models import Body, Name
from gatekeeper.api.services import RouteReader, ScopedIngester, Using
from gatekeeper.store.rollouts import OutcomeRecord

MAX_OUTCOMES = 1000
"""Most outcomes in one post."""

_YEAR_S = 366 * 86_400.0

router = APIRouter(prefix="/v1", tags=["rollouts"])


class OutcomeItem(Body):
    """How one task of a route ended; ``arm`` and ``session`` are its trace's where it has one."""

    route: Name
    task: Name
    arm: Literal["candidate", "baseline", "holdout"] | None = None
    session: Name | None = None
    success: bool | None = None
    wall_s: Annotated[float, Field(ge=0, le=_YEAR_S)] | None = None


class OutcomesBody(Body):
    """Outcomes of tasks that have ended."""

    outcomes: Annotated[list[OutcomeItem], Field(min_length=1, max_length=MAX_OUTCOMES)]


@router.post("/outcomes")
def post_outcomes(body: OutcomesBody, services: Using, actor: ScopedIngester) -> dict[str, Any]:
    """Store outcomes, all or none; one that is stored already changes nothing."""
    for item in body.outcomes:
        within(actor, item.route)
    records = [OutcomeRecord(**item.model_dump()) for item in body.outcomes]
    new, known = outcomes.record_outcomes(services.db, records)
    return {"stored": new, "known": known}


@router.get("/routes/{route}/delivered")
def delivered(route: str, services: Using, _actor: RouteReader) -> dict[str, Any]:
    """Return what the route's rollout delivered against the tasks that decode ordinarily."""
    return dict(on_demand.delivered.delivered_view(services.db, route))
