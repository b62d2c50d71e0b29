"""Pricing a route: computed outside the deciding transaction, stored in it with the decision.

A decision reads a stored pricing only while its basis (artifact, policy, economics, serving and
outcome run) is the decision's own; otherwise the value is unknown. So whatever changes the basis
is priced first and stored together with its pricing, or the next tick of the reconciler prices it.
New tasks leave the basis as it is: they are priced a little later, and the decision holds until then.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from gatekeeper.actions.decide import derive
from gatekeeper.actions.evidence import receive
from gatekeeper.actions.pricing_due import Basis, basis_of, holds
from gatekeeper.core.economics import Economics
from gatekeeper.core.policies import Policy
from gatekeeper.core.pricing import PricingInputs, price
from gatekeeper.core.task_savings import COLUMNS
from gatekeeper.errors import NotFound
from gatekeeper.store import catalog, economics, pricing, results, tasks
from gatekeeper.store.pricing import PricingRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gatekeeper.core.claims import Claim
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.economics import EconomicsRecord
    from gatekeeper.store.records import DecisionRecord, GateRecord

__all__ = [
    "Fresh",
    "current_value",
    "drop_replaced",
    "inputs_again",
    "no_curves",
    "prepare_pricing",
    "reprice",
    "store_pricing",
]

NEWEST_TASKS = 5_000
"""Tasks that a route is priced from, the ones that came last: traffic drifts, and work is bounded."""


@dataclass(frozen=True)
class Fresh:
    """A pricing that is not stored yet; its curves' file is in place already."""

    record: PricingRecord
    claims: tuple[Claim, ...]


def prepare_pricing(
    db: Database,
    folder: Path,
    route: str,
    *,
    result: GateRecord | None = None,
    prices: EconomicsRecord | None = None,
) -> Fresh | None:
    """Price a route as it will be once ``result`` or ``prices`` are stored.

    None where the stored pricing rests on the same already, or the route is not there.
    """
    with db.read() as session:
        basis = basis_of(session, route, result=result, prices=prices)
        if basis is None:
            return None
        known = pricing.latest(session, route)
        if known is not None and holds(known, basis) and known.tasks == basis.tasks:
            return None
        parts = tasks.route_tasks(session, route, newest=NEWEST_TASKS)
    return _price(folder, basis, _curves(parts))


def _price(folder: Path, basis: Basis, curves: pd.DataFrame) -> Fresh:
    evidence, path = _keep(folder, basis.route, curves) if len(curves) else (None, None)
    governing = basis.governing
    priced = price(
        PricingInputs(
            route=basis.route,
            curves=curves,
            evidence=evidence,
            serving=_summary(governing.get("serving")),
            outcome=_summary(governing.get("outcome")),
            economics_name=basis.economics_name,
            economics=None
            if basis.economics is None
            else Economics.from_dict(basis.economics.document),
            minimum=Policy.from_dict(basis.policy.document).minimum_value,
        )
    )
    artifact, policy, economics_name, prices, serving, outcome = basis.key
    record = PricingRecord(
        route=basis.route,
        artifact=str(artifact),
        policy=str(policy),
        economics_name=str(economics_name),
        economics=prices,
        serving_run=serving,
        outcome_run=outcome,
        tasks=basis.tasks,
        document=priced.document,
        evidence=evidence,
        path=path,
        priced_at=0.0,
    )
    return Fresh(record, priced.claims)


def _summary(record: GateRecord | None) -> tuple[str, Any] | None:
    return None if record is None else (record.run, record.document["summary"])


def _curves(parts: Sequence[tasks.TaskRoute]) -> pd.DataFrame:
    """Table of ``core.task_savings``; tasks that must not be priced have empty curves."""
    rows = []
    for part in parts:
        curves = [part.curve or [], part.curve_low or [], part.curve_high or []]
        makespans = [[float(time) for _, time in curve] for curve in curves]
        x = [float(point) for point, _ in curves[0]]
        figures = (part.calls, part.grade, part.reconciled, part.wall_s, part.decode_on_path_s)
        rows.append((part.task, part.version, part.session, *figures, x, *makespans))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _keep(folder: Path, route: str, curves: pd.DataFrame) -> tuple[str, str]:
    """Write the curves under the name of their content; return sha256 and path below ``folder``."""
    buffer = io.BytesIO()
    curves.to_parquet(buffer, index=False)
    data = buffer.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"pricings/{route}/curves-{sha256}.parquet"
    target = folder / name
    with receive(folder) as incoming:
        incoming.add(data)
        incoming.handle.flush()
        target.parent.mkdir(parents=True, exist_ok=True)
        incoming.path.replace(target)
    return sha256, name


def store_pricing(session: Session, fresh: Fresh) -> PricingRecord | None:
    """Store a pricing in the caller's transaction; return the one that it replaces."""
    return pricing.put(session, fresh.record, fresh.claims)


def drop_replaced(db: Database, folder: Path, replaced: Iterable[PricingRecord | None]) -> None:
    """Remove the curves of pricings that are gone, after the transaction that replaced them."""
    for record in replaced:
        if record is None or record.evidence is None or record.path is None:
            continue
        with db.read() as session:
            used = pricing.paths_of(session, record.evidence)
        if record.path not in used:
            (folder / record.path).unlink(missing_ok=True)


def reprice(db: Database, folder: Path, routes: Iterable[str]) -> list[DecisionRecord]:
    """Price those of the routes that rest on something new, and decide them; changed decisions."""
    changed: list[DecisionRecord] = []
    for route in routes:
        fresh = prepare_pricing(db, folder, route)
        if fresh is None:
            continue
        with db.write() as session:
            basis = basis_of(session, route)
            # Another request changed the route meanwhile: its pricing is not ours to replace.
            if basis is None or basis.key != fresh.record.basis:
                continue
            replaced = store_pricing(session, fresh)
            changed += derive(session, [route])
        drop_replaced(db, folder, [replaced])
    return changed


def current_value(db: Database, folder: Path, route: str) -> PricingRecord:
    """Return a route's pricing, made anew where its basis or its tasks have changed.

    Raises:
        NotFound: no such route.
    """
    reprice(db, folder, [route])
    with db.read() as session:
        record = pricing.latest(session, route)
    if record is None:
        raise NotFound(
            "is not a route", field="route", value=route, remedy="see gatekeeper route list"
        )
    return record


def inputs_again(session: Session, record: PricingRecord, curves: pd.DataFrame) -> PricingInputs:
    """Return what a stored pricing was computed from, as the database holds it today.

    Raises:
        NotFound: a version or a result that it names is not there any more.
    """
    policy = catalog.policy(session, record.policy)
    prices = None if record.economics is None else economics.version(session, record.economics)
    found = {
        gate: None if run is None else results.gate_result(session, run)
        for gate, run in (("serving", record.serving_run), ("outcome", record.outcome_run))
    }
    lost = policy is None or (prices is None and record.economics is not None)
    lost = lost or (found["serving"] is None and record.serving_run is not None)
    if policy is None or lost or (found["outcome"] is None and record.outcome_run is not None):
        raise NotFound(
            "rests on a version or result that is not stored",
            field=f"pricing/{record.route}",
            remedy="price the route again",
        )
    return PricingInputs(
        route=record.route,
        curves=curves,
        evidence=record.evidence,
        serving=_summary(found["serving"]),
        outcome=_summary(found["outcome"]),
        economics_name=record.economics_name,
        economics=None if prices is None else Economics.from_dict(prices.document),
        minimum=Policy.from_dict(policy.document).minimum_value,
    )


def no_curves() -> pd.DataFrame:
    """Table of a route without tasks."""
    return _curves([])
