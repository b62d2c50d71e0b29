"""Tasks: what came in as spans, seen as work; and each one's critical path."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from gatekeeper.actions import tasks
from gatekeeper.api.services import After, Limit, Reader, Using, page
from gatekeeper.api.views import path_view, plain_view

router = APIRouter(prefix="/v1", tags=["tasks"])


@router.get("/tasks")
def list_tasks(
    services: Using,
    _actor: Reader,
    *,
    limit: Limit = 100,
    after: After = None,
    route: str | None = None,
    state: Literal["open", "complete"] | None = None,
) -> dict[str, Any]:
    """List tasks, newest first, and count the model calls that belong to no route."""
    records = tasks.list_tasks(services.db, after=after, limit=limit, route=route, state=state)
    listed = page([plain_view(record) for record in records], limit, "id")
    return {**listed, "unmatched_calls": tasks.unmatched_calls(services.db)}


@router.get("/tasks/{task_id}")
def task(task_id: str, services: Using, _actor: Reader) -> dict[str, Any]:
    """One task, computed from every span that has arrived."""
    return plain_view(tasks.get_task(services.db, task_id))


@router.get("/tasks/{task_id}/critical-path")
def critical_path(
    task_id: str,
    services: Using,
    _actor: Reader,
    decode_speedup: Annotated[float, Query(ge=0.001, le=1000, allow_inf_nan=False)] = 2.0,
) -> dict[str, Any]:
    """Return the steps that determine a task's wall time, and every model call with its route."""
    return path_view(tasks.path_of(services.db, task_id, speedup=decode_speedup))
