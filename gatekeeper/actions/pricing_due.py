"""What a route's pricing rests on, and which routes are due for a new one; ``actions.price`` computes.

Asked once a second, and mostly for nothing: so it needs no more than the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from gatekeeper.actions import on_demand
from gatekeeper.actions.decide import pricing_basis
from gatekeeper.core.pricing_method import METHOD
from gatekeeper.errors import GatekeeperError
from gatekeeper.store import catalog, economics, pricing, results
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.economics import EconomicsRecord
    from gatekeeper.store.pricing import PricingRecord
    from gatekeeper.store.records import DecisionRecord, GateRecord, PolicyRecord

__all__ = ["Basis", "basis_of", "holds", "reprice_due"]

TASKS_EVERY_S = 10.0
"""How long new tasks may wait for their pricing while nothing else has changed."""

ROUTES_AT_ONCE = 4
"""Most routes priced in one tick."""

_log = structlog.get_logger()


@dataclass(frozen=True)
class Basis:
    """Everything a pricing is computed from, read at one moment."""

    route: str
    artifact: str
    policy: PolicyRecord
    economics_name: str
    economics: EconomicsRecord | None
    governing: dict[str, GateRecord]
    tasks: str

    @property
    def key(self) -> tuple[str | None, ...]:
        """What a decision compares with its own basis."""
        return pricing_basis(
            artifact=self.artifact,
            policy=self.policy.digest,
            economics_name=self.economics_name,
            economics=None if self.economics is None else self.economics.digest,
            governing=self.governing,
        )


def holds(known: PricingRecord, basis: Basis) -> bool:
    """Whether a pricing rests on what is there now, and was made as one would be made now."""
    return known.basis == basis.key and known.document.get("method") == METHOD


def basis_of(
    session: Session,
    name: str,
    *,
    result: GateRecord | None = None,
    prices: EconomicsRecord | None = None,
) -> Basis | None:
    """Return the basis as it will be once ``result`` or ``prices`` are stored; None without route."""
    route = catalog.route(session, name)
    artifact = None if route is None else catalog.resolve(session, route.artifact)
    policy = None if route is None else catalog.current_policy(session, route.policy)
    if route is None or artifact is None or policy is None:
        return None
    governing = results.governing_results(
        session, route=name, artifact=artifact.digest, policy=policy.digest
    )
    if result is not None and (result.artifact, result.policy) == (artifact.digest, policy.digest):
        governing = _with(governing, result)
    wanted = route.economics or route.policy
    if prices is None or prices.name != wanted:
        prices = economics.current(session, wanted)
    mark = pricing.tasks_mark(session, name)
    return Basis(name, artifact.digest, policy, wanted, prices, governing, mark)


def _with(governing: dict[str, GateRecord], result: GateRecord) -> dict[str, GateRecord]:
    """Governing results once this newest one is stored, by the rule of ``governing_results``."""
    before = governing.get(result.gate)
    stays = before is not None and before.outcome == "FAIL" and result.outcome != "FAIL"
    if stays or result.outcome == "CANCELLED":
        return governing
    return {**governing, result.gate: result}


def reprice_due(db: Database, folder: Path) -> list[DecisionRecord]:
    """Price a few of the routes that are due; one that cannot be priced keeps no other waiting."""
    changed: list[DecisionRecord] = []
    for route in _due(db)[:ROUTES_AT_ONCE]:
        try:
            changed += on_demand.price.reprice(db, folder, [route])
        except GatekeeperError as error:
            _log.error("route could not be priced", route=route, error=str(error))
    return changed


def _due(db: Database) -> list[str]:
    """Routes whose basis changed, and those whose tasks did some time ago; oldest pricing first."""
    found: list[tuple[float, str]] = []
    with db.read() as session:
        at = now(session)
        for route in catalog.route_names(session):
            known = pricing.latest(session, route)
            basis = basis_of(session, route)
            if basis is None:
                continue
            if known is None or not holds(known, basis):
                found.append((0.0 if known is None else known.priced_at, route))
            elif known.tasks != basis.tasks and known.priced_at + TASKS_EVERY_S <= at:
                found.append((known.priced_at, route))
    return [route for _, route in sorted(found)]
