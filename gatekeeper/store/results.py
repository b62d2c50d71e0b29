"""What runs leave behind: evidence tables, gate results, acceptance counts, claims."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, delete, select

from gatekeeper.core.claims import Claim
from gatekeeper.store import schema
from gatekeeper.store.database import Session, clock
from gatekeeper.store.records import EvidenceRecord, GateRecord
from gatekeeper.store.rows import page, upsert

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import RowMapping

__all__ = [
    "add_claims",
    "add_evidence",
    "add_gate_result",
    "add_rounds",
    "all_claims",
    "all_gate_results",
    "claims",
    "claims_below",
    "drop_stale_evidence",
    "evidence",
    "evidence_of",
    "evidence_table",
    "gate_result",
    "governing_results",
    "latest_duration",
    "latest_rates",
    "newest_result",
    "outcomes",
    "rounds",
]


def add_evidence(session: Session, record: EvidenceRecord) -> EvidenceRecord | None:
    """Record a table; return the record that it replaced, from a repeated upload."""
    before = _held_table(session, record)
    upsert(
        session,
        schema.evidence,
        {"run": record.run, "table": record.table, "fence": record.fence},
        {
            "sha256": record.sha256,
            "path": record.path,
            "rows": record.rows,
            "bytes": record.bytes,
            "received_at": clock(),
        },
    )
    return before


def _held_table(session: Session, record: EvidenceRecord) -> EvidenceRecord | None:
    rows = evidence(session, record.run, fence=record.fence)
    return next((row for row in rows if row.table == record.table), None)


def evidence(session: Session, run_id: str, *, fence: int | None = None) -> list[EvidenceRecord]:
    """Tables of a run: those of one fence, or all."""
    table = schema.evidence
    query = select(table).where(table.c.run == run_id).order_by(table.c.table, table.c.fence)
    if fence is not None:
        query = query.where(table.c.fence == fence)
    return [EvidenceRecord(**row) for row in session.execute(query).mappings()]


def evidence_table(session: Session, run_id: str, name: str) -> EvidenceRecord | None:
    """Newest version of one table of a run."""
    rows = [row for row in evidence(session, run_id) if row.table == name]
    return rows[-1] if rows else None


def evidence_of(session: Session, sha256: str) -> list[EvidenceRecord]:
    """Every table whose content has this digest."""
    table = schema.evidence
    query = select(table).where(table.c.sha256 == sha256).order_by(table.c.run, table.c.table)
    return [EvidenceRecord(**row) for row in session.execute(query).mappings()]


def drop_stale_evidence(session: Session, run_id: str, fence: int) -> list[EvidenceRecord]:
    """Forget what earlier attempts of a run uploaded; return it so that its files can go."""
    table = schema.evidence
    statement = delete(table).where(table.c.run == run_id, table.c.fence != fence)
    rows = session.execute(statement.returning(table)).mappings()
    return [EvidenceRecord(**row) for row in rows]


def add_gate_result(session: Session, record: GateRecord, *, ttl_s: float) -> None:
    """Store a run's result; it expires ``ttl_s`` after now."""
    values = {**asdict(record), "finished_at": clock(), "expires_at": clock() + ttl_s}
    session.execute(schema.gate_result.insert().values(values))


def gate_result(session: Session, run_id: str) -> GateRecord | None:
    """Result of a run."""
    table = schema.gate_result
    row = session.execute(select(table).where(table.c.run == run_id)).mappings().one_or_none()
    return None if row is None else GateRecord(**row)


def outcomes(session: Session, run_ids: Sequence[str]) -> dict[str, str]:
    """Outcome of each of these runs that has one."""
    table = schema.gate_result
    query = select(table.c.run, table.c.outcome).where(table.c.run.in_(list(run_ids)))
    return {str(run): str(outcome) for run, outcome in session.execute(query)}


def all_gate_results(session: Session) -> list[GateRecord]:
    """Every stored result, oldest first."""
    table = schema.gate_result
    rows = session.execute(select(table).order_by(table.c.finished_at, table.c.run)).mappings()
    return [GateRecord(**row) for row in rows]


def governing_results(
    session: Session, *, route: str, artifact: str, policy: str
) -> dict[str, GateRecord]:
    """For each gate, the result that counts for this route, artifact and policy.

    A FAIL stands until a new artifact or policy version, however often the gate is repeated
    (repeating until it passes would be no test); otherwise the newest counts. CANCELLED says
    nothing and is passed over. Expiry is the reader's to judge.
    """
    table = schema.gate_result
    failed_first = case((table.c.outcome == "FAIL", 0), else_=1)
    query = (
        select(table)
        .where(
            table.c.route == route,
            table.c.artifact == artifact,
            table.c.policy == policy,
            table.c.outcome != "CANCELLED",
        )
        .order_by(table.c.gate, failed_first, table.c.finished_at.desc(), table.c.run.desc())
    )
    governing: dict[str, GateRecord] = {}
    for row in session.execute(query).mappings():
        governing.setdefault(row["gate"], GateRecord(**row))
    return governing


def newest_result(
    session: Session,
    *,
    route: str,
    gate: str,
    artifact: str,
    policy: str,
    outcomes: Sequence[str],
) -> GateRecord | None:
    """Newest result of a gate with one of these outcomes; None where there is none."""
    table = schema.gate_result
    query = (
        select(table)
        .where(
            table.c.route == route,
            table.c.gate == gate,
            table.c.artifact == artifact,
            table.c.policy == policy,
            table.c.outcome.in_(list(outcomes)),
        )
        .order_by(table.c.finished_at.desc(), table.c.run.desc())
        .limit(1)
    )
    row = session.execute(query).mappings().one_or_none()
    return None if row is None else GateRecord(**row)


def latest_rates(session: Session, artifact: str) -> dict[str, Any] | None:
    """Speeds that the newest run of an artifact measured; None where none did.

    Only the equivalence gate measures them, so newer runs of other gates are passed over.
    """
    table = schema.run
    query = (
        select(table.c.info)
        .where(
            table.c.artifact == artifact,
            table.c.gate == "equivalence",
            table.c.info.is_not(None),
        )
        .order_by(table.c.finished_at.desc())
    )
    found = (info.get("details", {}).get("rates") for info in session.execute(query).scalars())
    return next((dict(rates) for rates in found if rates), None)


def latest_duration(
    session: Session, *, route: str, gate: str, artifact: str, policy: str, workload: str
) -> float | None:
    """Seconds that the newest such run took which a worker measured in one go; None where none did.

    A run that was taken up again counts the time between, too, and one that was cancelled or went
    wrong ended early: neither says how long the next takes.
    """
    run, result = schema.run, schema.gate_result
    query = (
        select(run.c.finished_at - run.c.started_at)
        .join(result, result.c.run == run.c.id)
        .where(
            run.c.route == route,
            run.c.gate == gate,
            run.c.artifact == artifact,
            run.c.policy == policy,
            run.c.slice == workload,
            run.c.state == "finished",
            run.c.attempt == 1,
            result.c.outcome.in_(["PASS", "FAIL", "INCONCLUSIVE"]),
        )
        .order_by(run.c.finished_at.desc())
        .limit(1)
    )
    return session.execute(query).scalar()


def add_rounds(
    session: Session,
    *,
    run_id: str,
    route: str,
    artifact: str,
    counts: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    """Store acceptance counts, one row for each (slice, counts)."""
    rows = [
        {"run": run_id, "route": route, "artifact": artifact, "slice": name, "counts": dict(count)}
        for name, count in counts
    ]
    if rows:
        session.execute(schema.round_counts.insert(), rows)


def rounds(
    session: Session, *, run_id: str | None = None, route: str | None = None
) -> list[dict[str, Any]]:
    """Acceptance counts as plain rows: run, route, slice, artifact, counts."""
    table = schema.round_counts
    conditions = []
    if run_id is not None:
        conditions.append(table.c.run == run_id)
    if route is not None:
        conditions.append(table.c.route == route)
    query = select(table).where(*conditions).order_by(table.c.id)
    return [dict(row) for row in session.execute(query).mappings()]


def add_claims(session: Session, claims: Iterable[Claim], *, run_id: str | None) -> None:
    """Enter figures in the ledger; an id that is there already is the database's error."""
    rows = [{**claim.to_dict(), "printed": claim.printed, "run": run_id} for claim in claims]
    if rows:
        session.execute(schema.claim.insert(), rows)


def claims(
    session: Session, *, after: str | None, limit: int, run_id: str | None = None
) -> list[Claim]:
    """Page of the ledger by id."""
    where = [] if run_id is None else [schema.claim.c.run == run_id]
    rows = page(session, schema.claim, schema.claim.c.id, after=after, limit=limit, where=where)
    return [_claim(row) for row in rows]


def claims_below(session: Session, prefix: str) -> list[Claim]:
    """Claims whose ids begin with ``prefix``, by id."""
    table = schema.claim
    query = select(table).where(table.c.id.startswith(prefix, autoescape=True)).order_by(table.c.id)
    return [_claim(row) for row in session.execute(query).mappings()]


def all_claims(session: Session) -> list[Claim]:
    """Return the whole ledger by id."""
    rows = session.execute(select(schema.claim).order_by(schema.claim.c.id)).mappings()
    return [_claim(row) for row in rows]


def _claim(row: RowMapping) -> Claim:
    return Claim(**{name: value for name, value in row.items() if name != "run"})
