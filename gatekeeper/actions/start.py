"""First start and every later one: schema, counter, shipped policies, the essay's ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.actions.decide import derive
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.core.claims import essay_claims
from gatekeeper.core.economics import Economics
from gatekeeper.core.policies import Policy
from gatekeeper.core.yaml_documents import from_yaml
from gatekeeper.errors import InputError
from gatekeeper.store import access, catalog, decisions, economics, results
from gatekeeper.store.economics import EconomicsRecord
from gatekeeper.store.migrate import take_turn, upgrade
from gatekeeper.store.records import PolicyRecord

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.records import Version

__all__ = ["ECONOMICS_FOLDER", "begin_epoch", "prepare", "read_documents"]

ECONOMICS_FOLDER = "economics"
"""Where a folder of policies keeps the prices that its routes are valued by."""


def prepare(db: Database, *, migrations: Path, policies: Path) -> None:
    """Bring a database to this installation's state; repeating it changes nothing.

    Policies and economics are seeded only into a database that has none: afterwards the database
    is the truth.
    """
    upgrade(db, migrations)
    shipped = [Policy.from_dict(document) for document in read_documents(policies)]
    prices = [
        Economics.from_dict(document) for document in read_documents(policies / ECONOMICS_FOLDER)
    ]
    with db.write() as session:
        take_turn(session)  # replicas that start together would each seed the same
        if decisions.version(session) is None:
            decisions.new_epoch(session)
        if not catalog.policies(session):
            for policy in shipped:
                _seed(session, policy)
        if not economics.all_current(session):
            for document in prices:
                _seed_economics(session, document)
        known = {claim.id for claim in results.all_claims(session)}
        fresh = [claim for claim in essay_claims() if claim.id not in known]
        results.add_claims(session, fresh, run_id=None)


def _seed(session: Session, policy: Policy) -> None:
    record = PolicyRecord(policy.digest, policy.name, policy.to_dict(), 0.0, SYSTEM.name)
    catalog.add_policy(session, record)
    access.audit(
        session,
        actor=SYSTEM,
        action="policy.seed",
        target=policy.name,
        detail={"digest": policy.digest},
    )


def _seed_economics(session: Session, prices: Economics) -> None:
    record = EconomicsRecord(prices.digest, prices.name, prices.to_dict(), 0.0, SYSTEM.name)
    economics.add(session, record)
    access.audit(
        session,
        actor=SYSTEM,
        action="economics.seed",
        target=prices.name,
        detail={"digest": prices.digest},
    )


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """Read every ``*.yaml`` of a folder (or the one file), by name.

    Raises:
        InputError: nothing is there, a file is unreadable, not YAML, or not a mapping.
    """
    try:
        paths = [folder] if folder.is_file() else sorted(folder.glob("*.yaml"))
        if not paths:
            raise InputError(
                "holds no policy",
                field="path",
                value=str(folder),
                remedy="name a .yaml file or a folder",
            )
        return [from_yaml(path.read_bytes(), file=str(path)) for path in paths]
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})",
            field="path",
            value=str(error.filename or folder),
            remedy="name a readable .yaml file or a folder",
        ) from error


def begin_epoch(db: Database) -> Version:
    """Start a new epoch after restoring a backup, so that clients drop what they knew.

    Every route gets a decision of this epoch, the same or not: one of the old epoch may be older than
    what clients hold from the database that was lost, and they would refuse it.
    """
    with db.write() as session:
        names = catalog.route_names(session)
        for name in names:
            catalog.route(session, name, lock=True)  # before the counter, as everywhere
        version = decisions.new_epoch(session)
        derive(session, names, anew=True)
        access.audit(
            session,
            actor=SYSTEM,
            action="epoch.begin",
            target="decisions",
            detail={"epoch": version.epoch},
        )
    return version
