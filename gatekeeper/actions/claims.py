"""The claim ledger as it stands; ``actions.ledger`` recomputes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.store import results

if TYPE_CHECKING:
    from gatekeeper.core.claims import Claim
    from gatekeeper.store.database import Database

__all__ = ["page_of_claims"]


def page_of_claims(
    db: Database, *, after: str | None, limit: int, run_id: str | None
) -> list[Claim]:
    """Page of the ledger by id, as recorded."""
    with db.read() as session:
        return results.claims(session, after=after, limit=limit, run_id=run_id)
