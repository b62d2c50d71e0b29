"""Gate runs: submitted and watched by operators, claimed and reported by workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from gatekeeper.actions import evidence, on_demand, queue
from gatekeeper.actions.decide import stamp
from gatekeeper.actions.identity import within
from gatekeeper.actions.submit import engine_key, submit
from gatekeeper.api.models import (
    ClaimBody,
    FailBody,
    Fence,
    FinishBody,
    GateRunBody,
    HeartbeatBody,
    Name,
)
from gatekeeper.api.services import (
    After,
    Limit,
    RouteReader,
    ScopedOperator,
    ScopedReader,
    Using,
    Worker,
    page,
)
from gatekeeper.api.views import evidence_view, plain_view, result_view, run_view

router = APIRouter(prefix="/v1", tags=["gate runs"])

IdempotencyKey = Annotated[Name | None, Header(alias="Idempotency-Key")]


@router.post(
    "/gate-runs",
    status_code=201,
    responses={200: {"description": "The plan, or the run that this Idempotency-Key made before"}},
)
def submit_run(
    body: GateRunBody,
    services: Using,
    actor: ScopedOperator,
    response: Response,
    *,
    planned: Annotated[
        bool, Query(alias="plan", description="Only say what it would cost")
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Queue a gate run; ``plan=true`` answers minutes, tokens and attainable power instead."""
    within(actor, body.route)
    if planned:
        response.status_code = 200
        return on_demand.plan.plan_run(services.db, route=body.route, gate=body.gate)
    run, created = submit(
        services.db,
        actor,
        route=body.route,
        gate=body.gate,
        parameters=body.parameters,
        priority=body.priority,
        idempotency_key=idempotency_key,
    )
    if not created:
        response.status_code = 200
    return run_view(run, None)


@router.get("/gate-runs")
def runs(
    services: Using,
    _actor: RouteReader,
    limit: Limit = 100,
    after: After = None,
    route: Name | None = None,
    state: Name | None = None,
) -> dict[str, Any]:
    """List runs, newest first."""
    records = queue.list_runs(services.db, after=after, limit=limit, route=route, state=state)
    outcomes = queue.outcomes(services.db, [r.id for r in records])
    return page([run_view(r, outcomes.get(r.id)) for r in records], limit, "id")


@router.get("/gate-runs/{run_id}")
def run(run_id: str, services: Using, actor: ScopedReader) -> dict[str, Any]:
    """One run with its result and evidence tables."""
    queue.in_scope(services.db, actor, run_id)
    record, result, tables = queue.run_details(services.db, run_id)
    view = run_view(record, None if result is None else result.outcome)
    return {**view, "result": result_view(result), "evidence": evidence_view(tables)}


@router.post("/gate-runs/{run_id}/cancel")
def cancel(run_id: str, services: Using, actor: ScopedOperator) -> dict[str, Any]:
    """Cancel a pending run, or ask a running one to stop."""
    queue.in_scope(services.db, actor, run_id)
    return run_view(queue.cancel(services.db, actor, run_id), None)


@router.get("/gate-runs/{run_id}/evidence")
def tables(run_id: str, services: Using, actor: ScopedReader) -> dict[str, Any]:
    """List a run's evidence tables."""
    queue.in_scope(services.db, actor, run_id)
    _, _, records = queue.run_details(services.db, run_id)
    return {"items": evidence_view(records), "next": None}


@router.get("/gate-runs/{run_id}/evidence/{table}", response_class=FileResponse)
def table(run_id: str, table: str, services: Using, actor: ScopedReader) -> FileResponse:
    """One evidence table as Parquet."""
    queue.in_scope(services.db, actor, run_id)
    record, path = evidence.table_file(services.db, services.evidence, run_id, table)
    return FileResponse(
        path,
        media_type="application/vnd.apache.parquet",
        filename=f"{run_id}-{table}.parquet",
        headers={"X-Content-SHA256": record.sha256},
    )


@router.put(
    "/gate-runs/{run_id}/evidence/{table}",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def upload(
    run_id: str,
    table: str,
    request: Request,
    services: Using,
    _actor: Worker,
    *,
    fence: Annotated[Fence, Query()],
    x_content_sha256: Annotated[str, Header(pattern="^[0-9a-fA-F]{64}$")],
) -> dict[str, Any]:
    """Store one Parquet table of a held run; a broken or partial upload leaves nothing."""
    await run_in_threadpool(queue.check_fence, services.db, run_id, fence)
    with evidence.receive(services.evidence) as incoming:
        async for chunk in request.stream():
            incoming.add(chunk)
        record = await run_in_threadpool(
            evidence.store_table,
            services.db,
            services.evidence,
            incoming,
            run_id=run_id,
            table=table,
            fence=fence,
            expected_sha256=x_content_sha256,
        )
    services.metrics.evidence_bytes.inc(record.bytes)
    return evidence_view([record])[0]


@router.post(
    "/runs/claim", responses={204: {"description": "Nothing that this worker could run is waiting"}}
)
def claim(body: ClaimBody, services: Using, _actor: Worker) -> Any:  # noqa: ANN401 - 200 or an empty 204
    """Claim the next run that fits; the answer carries the fence for all later writes."""
    claimed = queue.claim(
        services.db,
        worker=body.worker,
        engines=[engine_key(e.name, e.version) for e in body.engines],
        devices=sorted({d.kind for d in body.devices}),
        lease_s=body.lease_s,
        run_id=body.run_id,
    )
    if claimed is None:
        return Response(status_code=204)
    return {"run": {**claimed, "lease_until": stamp(claimed["lease_until"])}}


@router.post("/runs/{run_id}/heartbeat")
def heartbeat(run_id: str, body: HeartbeatBody, services: Using, _actor: Worker) -> dict[str, Any]:
    """Renew the lease; the answer says whether to stop."""
    progress = None if body.progress is None else body.progress.model_dump()
    record = queue.heartbeat(services.db, run_id, body.fence, progress)
    return {
        "lease_until": stamp(record.lease_until),
        "cancel_requested": record.cancel_requested,
    }


@router.post("/runs/{run_id}/finish")
def finish_run(run_id: str, body: FinishBody, services: Using, actor: Worker) -> dict[str, Any]:
    """Hand in a result: stored with its claims, and the route is decided anew, or nothing is."""
    record = on_demand.finish.finish(
        services.db,
        services.evidence,
        actor,
        run_id,
        body.fence,
        result=body.result,
        evidence=body.evidence,
        info=body.info,
        acceptance=body.acceptance,
    )
    return plain_view(record)


@router.post("/runs/{run_id}/fail")
def fail(run_id: str, body: FailBody, services: Using, actor: Worker) -> dict[str, Any]:
    """Hand a run back: for another attempt, or as an ERROR."""
    record = queue.fail(services.db, actor, run_id, body.fence, error=body.error, retry=body.retry)
    return plain_view(record)
