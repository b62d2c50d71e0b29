"""The claim ledger against the evidence: every figure recomputed, every summary judged anew."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.decide import contradictions
from gatekeeper.actions.evidence_tables import EvidenceFolder
from gatekeeper.actions.finish import claim_prefix
from gatekeeper.actions.price import inputs_again, no_curves
from gatekeeper.core.documents import is_number, leaves, read
from gatekeeper.core.equations import verify
from gatekeeper.core.policies import Policy, Slo
from gatekeeper.core.pricing import price
from gatekeeper.core.verdicts import GateResult, to_json
from gatekeeper.errors import GatekeeperError
from gatekeeper.gates import equivalence, outcome, servers_equivalence, servers_serving, serving
from gatekeeper.store import catalog, pricing, results, runs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd

    from gatekeeper.store.database import Database
    from gatekeeper.store.records import GateRecord, RunRecord

__all__ = ["verify_ledger"]

_TOLERANCE = 1e-9


def verify_ledger(db: Database, folder: Path) -> list[dict[str, Any]]:
    """Recompute every figure from its evidence; rows as of ``Verified.to_dict``.

    After the ledger's claims come the figures that decisions read: each stored result is judged
    anew from its Parquet tables, and every number of its summary and parts is compared, under the
    id ``run/<id>/summary.<path>`` and the equation ``<gate>.evaluate``. Each route's pricing is
    computed anew from the kept curves, the stored results and the prices, as
    ``pricing/<route>/<path>``. Then each route's latest decision is derived anew from the stored
    results and pricing, as ``decision/<route>/<path>``.
    """
    evidence = EvidenceFolder(folder, db)
    with db.read() as session:
        claims = results.all_claims(session)
        stored = results.all_gate_results(session)
        judged = [(record, runs.get(session, record.run)) for record in stored]
        policies = {r.policy: catalog.policy(session, r.policy) for r in stored}
        tables = {r.run: results.evidence(session, r.run) for r in stored}
    rows = [checked.to_dict() for checked in verify(claims, evidence.load)]
    for record, run in judged:
        policy = policies[record.policy]
        if run is None or policy is None or run.state != "finished":
            continue  # a run that failed or was cancelled was never judged and has no figures
        names = {row.table: row.sha256 for row in tables[record.run]}
        rows += _judge_again(record, run, Policy.from_dict(policy.document), names, evidence)
    rows += _price_again(db, evidence)
    for path, recorded, fresh in contradictions(db):
        inputs: dict[str, str] = {}
        rows.append(_row(f"decision/{path}", "policies.decide", inputs, recorded, fresh))
    return rows


def _judge_again(
    record: GateRecord,
    run: RunRecord,
    policy: Policy,
    names: Mapping[str, str],
    evidence: EvidenceFolder,
) -> list[dict[str, Any]]:
    equation = f"{record.gate}.evaluate"
    prefix = claim_prefix(record.run)
    try:
        frames = {name: evidence.load(name, sha256) for name, sha256 in names.items()}
        if run.gate == "equivalence" and "cost" in frames:
            equivalence.check_continued(run.parameters.get("continues"), frames, evidence.load)
        again = _evaluate(run, policy, frames)
    except (GatekeeperError, KeyError) as error:
        row = _row(f"{prefix}summary", equation, names, record.outcome, None)
        return [{**row, "cause": "not_computable", "reason": str(error)}]
    stored = {**record.document, "claims": None, "recorded_outcome": record.outcome}
    fresh = {**to_json(again), "claims": None, "recorded_outcome": str(again.outcome)}
    return _compare(prefix, equation, names, stored, fresh)


def _compare(
    prefix: str,
    equation: str,
    inputs: Mapping[str, str],
    stored: Mapping[str, Any],
    fresh: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """One row for each number of a document, and for whatever else differs."""
    recorded = dict(leaves(dict(stored)))
    computed = dict(leaves(json.loads(json.dumps(fresh))))
    rows = []
    for path in sorted({*recorded, *computed}):
        one, other = recorded.get(path), computed.get(path)
        if is_number(one) or not _agree(one, other):
            rows.append(_row(f"{prefix}{path}", equation, inputs, one, other))
    return rows


def _price_again(db: Database, evidence: EvidenceFolder) -> list[dict[str, Any]]:
    rows = []
    with db.read() as session:
        records = pricing.all_pricings(session)
    for record in records:
        prefix, names = f"pricing/{record.route}/", {"curves": record.evidence or "none"}
        try:
            curves = (
                no_curves() if record.path is None else evidence.load("curves", record.evidence)
            )
            with db.read() as session:
                again = price(inputs_again(session, record, curves))
        except (GatekeeperError, KeyError) as error:
            total = (record.document.get("total") or {}).get("per_task")
            row = _row(f"{prefix}document", "pricing.price", names, total, None)
            rows.append({**row, "agrees": False, "cause": "not_computable", "reason": str(error)})
        else:
            rows += _compare(prefix, "pricing.price", names, record.document, again.document)
    return rows


def _evaluate(run: RunRecord, policy: Policy, frames: Mapping[str, pd.DataFrame]) -> GateResult:
    on_servers = "servers" in frames  # only runs on servers that already run have this table
    if run.gate == "equivalence":
        if on_servers:
            return servers_equivalence.evaluate(policy.equivalence, frames)
        return equivalence.evaluate(policy.equivalence, frames)
    if run.gate == "outcome":
        return outcome.evaluate(policy.outcome, frames)
    budget = policy.serving
    if run.slo is not None:
        budget = replace(budget, slo=read(Slo, dict(run.slo), field="slo"))
    if on_servers:
        return servers_serving.evaluate(budget, frames)
    return serving.evaluate(budget, frames)


def _row(
    name: str, equation: str, inputs: Mapping[str, str], recorded: object, computed: object
) -> dict[str, Any]:
    agrees = _agree(recorded, computed)
    return {
        "id": name,
        "equation": equation,
        "inputs": dict(inputs),
        "value": recorded,
        "unit": "as in the summary",
        "status": "measured",
        "source": "database summary",
        "recomputed": computed,
        "agrees": agrees,
        "cause": None if agrees else "value_changed",
        "reason": None if agrees else f"{name}: recorded {recorded!r}, recomputed {computed!r}",
    }


def _agree(one: object, other: object) -> bool:
    if is_number(one) and is_number(other):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=0.0)
    return one == other and type(one) is type(other)
