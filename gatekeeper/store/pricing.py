"""Pricings: one per route, the newest; its claims live in the ledger under ``value/<route>/``."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from gatekeeper.store import schema, schema_traces, schema_value
from gatekeeper.store.database import Session, clock
from gatekeeper.store.results import add_claims
from gatekeeper.store.rows import upsert
from gatekeeper.store.tasks import ordinary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.claims import Claim

__all__ = ["PricingRecord", "all_pricings", "latest", "paths_of", "put", "tasks_mark"]


@dataclass(frozen=True)
class PricingRecord:
    """What a route was priced from, by digest or id, and the pricing document.

    ``economics`` None: no such document was there. ``evidence`` and ``path`` (below the evidence
    folder): the curves; None without tasks.
    """

    route: str
    artifact: str
    policy: str
    economics_name: str
    economics: str | None
    serving_run: str | None
    outcome_run: str | None
    tasks: str
    document: Mapping[str, Any]
    evidence: str | None
    path: str | None
    priced_at: float

    @property
    def basis(self) -> tuple[str | None, ...]:
        """All that a decision needs to be the same for the pricing to hold; tasks may be newer."""
        return (
            self.artifact,
            self.policy,
            self.economics_name,
            self.economics,
            self.serving_run,
            self.outcome_run,
        )


def put(session: Session, record: PricingRecord, claims: Iterable[Claim]) -> PricingRecord | None:
    """Store a route's pricing and its claims in place of the one before, which is returned."""
    before = latest(session, record.route)
    values = {**asdict(record), "priced_at": clock()}
    del values["route"]
    upsert(session, schema_value.pricing, {"route": record.route}, values)
    table = schema.claim
    ours = table.c.id.startswith(f"value/{record.route}/", autoescape=True)
    session.execute(delete(table).where(ours))
    add_claims(session, claims, run_id=None)
    return before


def latest(session: Session, route: str) -> PricingRecord | None:
    """Newest pricing of a route."""
    table = schema_value.pricing
    row = session.execute(select(table).where(table.c.route == route)).mappings().one_or_none()
    return None if row is None else PricingRecord(**row)


def all_pricings(session: Session) -> list[PricingRecord]:
    """Every route's newest pricing, by route."""
    table = schema_value.pricing
    rows = session.execute(select(table).order_by(table.c.route)).mappings()
    return [PricingRecord(**row) for row in rows]


def paths_of(session: Session, sha256: str) -> list[str]:
    """Files below the evidence folder that keep curves with this digest."""
    table = schema_value.pricing
    query = select(table.c.path).where(table.c.evidence == sha256, table.c.path.is_not(None))
    return [str(path) for path in session.execute(query.order_by(table.c.route)).scalars()]


def tasks_mark(session: Session, route: str) -> str:
    """Digest that changes whenever the complete tasks that it is priced from or their versions do."""
    mine, whole = schema_traces.task_route, schema_traces.task
    query = (
        select(func.count(), func.sum(mine.c.version), func.max(whole.c.updated_at))
        .join(whole, whole.c.id == mine.c.task)
        .where(mine.c.route == route, whole.c.state == "complete", ordinary())
    )
    found = tuple(session.execute(query).one())
    return hashlib.sha256(repr(found).encode()).hexdigest()
