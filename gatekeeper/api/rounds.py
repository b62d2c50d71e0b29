"""The live watch: rounds and looks in, watches and alarms out."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from gatekeeper.actions import alarms, watch
from gatekeeper.actions.identity import within
from gatekeeper.api.models import Body, Name
from gatekeeper.api.runs import IdempotencyKey
from gatekeeper.api.services import After, Limit, RouteReader, ScopedIngester, Using, page
from gatekeeper.api.views import plain_view
from gatekeeper.core.watch import MAX_DRIFT
from gatekeeper.core.watch_counts import ClusterSums, LiveCounts
from gatekeeper.errors import InputError
from gatekeeper.store.rounds import WatchRecord

MAX_ROUNDS = 10_000
"""Most rounds in one post; whoever has more sends counts."""

_MAX_COUNT = 10**12

router = APIRouter(prefix="/v1", tags=["live watch"])

Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Line = Annotated[
    str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")
]


class RoundItem(Body):
    """One draft-then-verify step of one request."""

    request: Name
    drafted: Annotated[int, Field(ge=0, le=1000)]
    accepted: Annotated[int, Field(ge=0, le=1000)]


class ClusterBody(Body):
    """Sums over requests of 1, a², d² and a·d: a of d draft tokens accepted in a request."""

    requests: Count
    accepted_sq: Annotated[int, Field(ge=0, le=_MAX_COUNT**2)]
    drafted_sq: Annotated[int, Field(ge=0, le=_MAX_COUNT**2)]
    accepted_drafted: Annotated[int, Field(ge=0, le=_MAX_COUNT**2)]


class CountsBody(Body):
    """Rounds summed by the sender; without ``clusters`` the requests behind them stay unknown."""

    rounds: Count
    drafted: Count
    accepted: Count
    clusters: ClusterBody | None = None


class RoundsBody(Body):
    """Rounds of live traffic: each of them, or their counts; no artifact means the route's own."""

    route: Name
    source: Name
    artifact: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    rounds: Annotated[list[RoundItem], Field(min_length=1, max_length=MAX_ROUNDS)] | None = None
    counts: CountsBody | None = None


class ReadingsBody(Body):
    """A server's own words on what it runs."""

    engine: Literal["vllm", "sglang", "llamacpp", "reference"] | None = None
    model: Line | None = None
    owned_by: Line | None = None
    version: Line | None = None
    weights: Line | None = None
    root: Line | None = None


class LookBody(Body):
    """One look at an engine; what was not seen is left out, and is not zero."""

    route: Name
    source: Name
    interval_s: Annotated[float, Field(gt=0, le=86_400)]
    max_drift: Annotated[float, Field(gt=0, le=1)] = MAX_DRIFT
    rounds: Count | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    memory_utilisation: Annotated[float, Field(ge=0, le=1e6)] | None = None
    waiting: Count | None = None
    readings: ReadingsBody = ReadingsBody()
    restarted: bool = False
    problems: Annotated[list[Line], Field(max_length=50, default_factory=list)]


@router.post("/rounds")
def post_rounds(
    body: RoundsBody, services: Using, actor: ScopedIngester, idempotency_key: IdempotencyKey = None
) -> dict[str, Any]:
    """Count rounds of live traffic, and bypass the route where their acceptance is not as gated."""
    within(actor, body.route)
    counts = _counts(body)
    seen = watch.record_rounds(
        services.db,
        actor,
        route=body.route,
        artifact=body.artifact,
        source=body.source,
        counts=counts,
        key=idempotency_key,
    )
    services.metrics.rounds.inc(counts.rounds)
    return _answer(seen)


@router.post("/watches")
def post_look(
    body: LookBody, services: Using, actor: ScopedIngester, idempotency_key: IdempotencyKey = None
) -> dict[str, Any]:
    """Judge a look at an engine, and bypass the route on an alarm; nothing here enables one."""
    within(actor, body.route)
    look = watch.Look(
        rounds=body.rounds,
        drafted=body.drafted,
        accepted=body.accepted,
        memory_utilisation=body.memory_utilisation,
        waiting=body.waiting,
        readings=body.readings.model_dump(exclude_none=True),
        restarted=body.restarted,
        problems=tuple(body.problems),
        interval_s=body.interval_s,
        max_drift=body.max_drift,
    )
    seen = watch.record_look(
        services.db,
        actor,
        route=body.route,
        source=body.source,
        look=look,
        key=idempotency_key,
    )
    return _answer(seen)


@router.get("/watches")
def list_watches(
    services: Using,
    _actor: RouteReader,
    limit: Limit = 100,
    after: After = None,
    route: str | None = None,
) -> dict[str, Any]:
    """List who watches, newest first: when each last looked, and what it saw."""
    if after is not None and not after.isdecimal():
        raise InputError("is not a cursor", field="after", value=after, remedy="use `next`")
    start = None if after is None else min(int(after), 2**62)
    found = watch.list_watches(services.db, route=route, after=start, limit=limit)
    items = [{**_view(one.record), "overdue": one.overdue} for one in found]
    return page(items, limit, "id")


@router.get("/watches/alarms")
def list_alarms(
    services: Using,
    _actor: RouteReader,
    limit: Limit = 100,
    after: After = None,
    route: str | None = None,
) -> dict[str, Any]:
    """List alarms, newest first; ``needed`` gates have not passed since, null where it is moot."""
    found = alarms.list_alarms(services.db, route=route, after=after, limit=limit)
    items = [
        {**plain_view(one.record), "needed": None if one.needed is None else list(one.needed)}
        for one in found
    ]
    return page(items, limit, "id")


def _counts(body: RoundsBody) -> LiveCounts:
    if body.rounds is not None and body.counts is None:
        return LiveCounts.from_rounds((r.request, r.drafted, r.accepted) for r in body.rounds)
    if body.counts is not None and body.rounds is None:
        given, sums = body.counts, body.counts.clusters
        clusters = None if sums is None else ClusterSums(**sums.model_dump())
        return LiveCounts(given.rounds, given.drafted, given.accepted, clusters)
    raise InputError("and counts exclude each other", field="rounds", remedy="send one of the two")


def _view(record: WatchRecord) -> dict[str, Any]:
    view = plain_view(record)
    view["counts"] = view.pop("state")["counts"]
    del view["last_key"]
    return view


def _answer(seen: watch.Seen) -> dict[str, Any]:
    decision = seen.decision
    return {
        **_view(seen.watch),
        "decision": {
            "action": decision.action,
            "reason": decision.reason,
            "explanation": decision.document["explanation"],
            "version": [decision.epoch, decision.counter],
        },
    }
