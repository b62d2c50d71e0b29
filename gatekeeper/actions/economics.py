"""Economics: whose prices are stored, and the routes that they decide anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.actions import on_demand
from gatekeeper.actions.decide import derive
from gatekeeper.core.economics import Economics
from gatekeeper.core.names import check_same_name
from gatekeeper.errors import NotFound
from gatekeeper.store import access, catalog, economics
from gatekeeper.store.economics import EconomicsRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gatekeeper.actions.identity import Actor
    from gatekeeper.store.database import Database, Session

__all__ = [
    "apply_economics",
    "get_economics",
    "list_economics",
    "new_economics",
    "set_economics",
]


def apply_economics(
    db: Database, folder: Path, actor: Actor, name: str, document: Mapping[str, Any]
) -> tuple[EconomicsRecord, bool]:
    """Store a version and make it current; its routes are priced with it and decided at once.

    Returns the version, and False when it was the current one already.

    Raises:
        InputError: the document is not sound, or carries another name.
    """
    record = new_economics(actor, name, document)
    with db.read() as session:
        concerned = catalog.route_names(session, economics=name)
    price = on_demand.price
    fresh = [price.prepare_pricing(db, folder, route, prices=record) for route in concerned]
    replaced = []
    with db.write() as session:
        changed = set_economics(session, actor, record)
        replaced = [price.store_pricing(session, item) for item in fresh if item is not None]
        derive(session, concerned)
        stored = economics.version(session, record.digest)
    price.drop_replaced(db, folder, replaced)
    return stored or record, changed


def new_economics(actor: Actor, name: str, document: Mapping[str, Any]) -> EconomicsRecord:
    """Check an economics document.

    Raises:
        InputError: it is not sound, or carries another name.
    """
    prices = Economics.from_dict(document)
    check_same_name(prices.name, name)
    return EconomicsRecord(prices.digest, name, prices.to_dict(), 0.0, actor.name)


def set_economics(session: Session, actor: Actor, record: EconomicsRecord) -> bool:
    """Make a version the current one; the caller decides its routes. False when it already was."""
    before = economics.add(session, record)
    if before is not None and before.digest == record.digest:
        return False
    access.audit(
        session,
        actor=actor,
        action="economics.apply",
        target=record.name,
        detail={"from": before.digest if before else None, "to": record.digest},
    )
    return True


def list_economics(db: Database) -> list[EconomicsRecord]:
    """Return the current version of every economics document."""
    with db.read() as session:
        return economics.all_current(session)


def get_economics(db: Database, name: str) -> EconomicsRecord:
    """Economics by name (the current version) or by digest.

    Raises:
        NotFound: neither.
    """
    with db.read() as session:
        record = economics.current(session, name) or economics.version(session, name)
    if record is None:
        raise NotFound(
            "is not an economics document",
            field="economics",
            value=name,
            remedy="see gatekeeper policy list",
        )
    return record
