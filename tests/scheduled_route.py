"""A route that schedules can gate, on a database without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shipped_policies import shipped_policy

from gatekeeper.core.policies import Policy
from gatekeeper.store import catalog, decisions
from gatekeeper.store.records import ArtifactRecord, PolicyRecord, RouteRecord

if TYPE_CHECKING:
    from gatekeeper.store.database import Database

FIRST, SECOND = "a" * 64, "b" * 64
DOCUMENT = {
    "proposer": {"kind": "ngram"},
    "gamma": 4,
    "sampling": [{"temperature": 0.0}],
    "engine": {"name": "reference", "version": "1", "device": "cpu"},
}


def fill(db: Database) -> PolicyRecord:
    """Store two artifacts, policy ci, and route ``prose`` on the alias ``current`` of the first."""
    policy = Policy.from_dict(shipped_policy("ci"))
    record = PolicyRecord(policy.digest, "ci", policy.to_dict(), 0.0, "test")
    with db.write() as session:
        decisions.new_epoch(session)
        for digest in (FIRST, SECOND):
            catalog.add_artifact(session, ArtifactRecord(digest, DOCUMENT, "exact", 0.0, "test"))
        catalog.set_alias(session, "current", FIRST)
        catalog.add_policy(session, record)
        route = RouteRecord("prose", "prose", "current", "ci", [], None, [], 0.0)
        catalog.put_route(session, route)
    return record
