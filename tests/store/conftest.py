"""A queue with something in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper.store import catalog, runs
from gatekeeper.store.records import ArtifactRecord, PolicyRecord, RouteRecord, RunRecord

if TYPE_CHECKING:
    from gatekeeper.store.database import Database, Session

ARTIFACT, POLICY = "a" * 64, "b" * 64
ENGINE = "reference 1"

Enqueue = Callable[..., RunRecord]


@pytest.fixture
def catalogued(db: Database) -> Database:
    with db.write() as session:
        catalog.add_artifact(session, ArtifactRecord(ARTIFACT, {"gamma": 4}, "exact", 0.0, "test"))
        catalog.add_policy(session, PolicyRecord(POLICY, "demo", {"name": "demo"}, 0.0, "test"))
        catalog.put_route(
            session, RouteRecord("prose", "prose", ARTIFACT, "demo", [], None, [{}], 0.0)
        )
    return db


@pytest.fixture
def enqueue() -> Enqueue:
    def add(session: Session, run_id: str, **changes: Any) -> RunRecord:
        values: dict[str, Any] = {
            "id": run_id,
            "idempotency_key": f"key-{run_id}",
            "route": "prose",
            "slice": "prose",
            "gate": "serving",
            "artifact": ARTIFACT,
            "policy": POLICY,
            "sampling": [{}],
            "slo": None,
            "parameters": {},
            "requirements": {},
            "engine": ENGINE,
            "device": "cpu",
            "state": "pending",
            "priority": 0,
            "attempt": 1,
            "max_attempts": 3,
            "fence": 0,
            "owner": None,
            "lease_s": None,
            "lease_until": None,
            "executor": None,
            "executor_job_id": None,
            "executor_attempt": None,
            "cancel_requested": False,
            "progress": None,
            "info": None,
            "error": None,
            "created_at": 0.0,
            "created_by": "test",
            "started_at": None,
            "finished_at": None,
        }
        return runs.enqueue(session, RunRecord(**{**values, **changes}))

    return add
