"""A priced route without an engine: tasks, gate results and prices put in through the API."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pricing_cases import OUTCOME, PRICES, serving, task
from shipped_policies import shipped_policy

from gatekeeper.store import rollouts, schema_traces
from gatekeeper.store.database import now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Database

EVIDENCE = pd.DataFrame({"accepted": [4, 1], "drafted": [4, 4]})
PASS: dict[str, tuple[str, dict[str, Any]]] = {
    "equivalence": ("PASS", {}),
    "serving": ("PASS", {**serving(), "envelope": {"max_concurrency": 2}}),
    "outcome": ("PASS", OUTCOME),
}


def policy(**changes: Any) -> dict[str, Any]:
    """All three gates and a minimum of 0.001 EUR a task."""
    document: dict[str, Any] = shipped_policy("ci")
    document |= {
        "name": "priced",
        "mandatory_gates": ["equivalence", "serving", "outcome"],
        "minimum_value": {"per_task": 0.001, "currency": "EUR"},
    }
    return document | changes


def economics(**changes: Any) -> dict[str, Any]:
    document = {**PRICES, "name": "priced", **changes}
    return {name: value for name, value in document.items() if value is not None}


def add_tasks(db: Database, route: str = "prose", *, count: int = 8, decode: float = 1.2) -> None:
    """Store complete tasks of the essay's shape, each a session of its own."""
    with db.write() as session:
        for index in range(count):
            name = f"{route}-{decode}-{index}"
            row = task(decode, 3.8, name=name)
            curve = [list(pair) for pair in zip(row["x"], row["makespan_s"], strict=True)]
            session.execute(
                schema_traces.task.insert().values(
                    id=name,
                    source_format="otlp",
                    notes=[],
                    generation=1,
                    computed=1,
                    state="complete",
                    version=1,
                    created_at=1.0,
                    touched_at=1.0,
                    due_at=1.0,
                    updated_at=1.0 + index,
                )
            )
            kept = ("task", "version", "session", "calls", "grade", "reconciled", "wall_s")
            session.execute(
                schema_traces.task_route.insert().values(
                    **{column: row[column] for column in kept},
                    route=route,
                    decode_on_path_s=row["decode_on_path_s"],
                    curve=curve,
                    curve_low=curve,
                    curve_high=curve,
                    ceiling_s=decode,
                )
            )


def arrive(
    db: Database,
    arm: str,
    wall_s: float,
    *,
    count: int = 60,
    name: str = "",
    success: float | None = None,
) -> None:
    """Store complete tasks of an arm as if they had just come in, each a session of its own."""
    rng = np.random.default_rng(len(name) + count)
    walls = wall_s + rng.normal(0, 0.05, count)
    with db.write() as session:
        at = now(session)
        ids = [f"{arm}-{name or at}-{i}" for i in range(count)]
        whole = {
            "source_format": "otlp",
            "notes": [],
            "generation": 1,
            "computed": 1,
            "state": "complete",
            "version": 1,
            **dict.fromkeys(("created_at", "touched_at", "due_at", "updated_at", "started_at"), at),
        }
        part = {"route": "prose", "version": 1, "calls": 1, "grade": "A", "reconciled": True}
        session.execute(schema_traces.task.insert(), [{**whole, "id": one} for one in ids])
        session.execute(
            schema_traces.task_route.insert(),
            [
                {**part, "task": one, "session": one, "wall_s": float(wall), "arm": arm}
                for one, wall in zip(ids, walls, strict=True)
            ],
        )
        if success is not None:
            good = round(success * count)
            rollouts.add_outcomes(
                session,
                [
                    rollouts.OutcomeRecord("prose", one, None, None, i < good, None)
                    for i, one in enumerate(ids)
                ],
            )


@dataclass(frozen=True)
class Rollout:
    """Steps of a rollout over HTTP; ``api`` is the fixture of tests/api, where there is one."""

    clients: Mapping[str, Any]
    api: Any = None

    def apply(
        self, *, policy_changes: dict[str, Any] | None = None, prices: dict[str, Any] | None = None
    ) -> None:
        self._sent("admin", "PUT", "/v1/policies/priced", json=policy(**(policy_changes or {})))
        self._sent("admin", "PUT", "/v1/economics/priced", json=economics(**(prices or {})))

    def gate(
        self, name: str, outcome: str, summary: dict[str, Any], *, route: str = "prose"
    ) -> str:
        """Run one gate to its end; return the run's id."""
        body: dict[str, Any] = {"route": route, "gate": name}
        run_id: str = self._sent("operator", "POST", "/v1/gate-runs", json=body)["id"]
        claim = {
            "worker": "w1",
            "engines": [{"name": "reference", "version": "1"}],
            "devices": [{"kind": "cpu"}],
            "run_id": run_id,
            "lease_s": 60.0,
        }
        fence = self._sent("worker", "POST", "/v1/runs/claim", json=claim)["run"]["fence"]
        buffer = io.BytesIO()
        EVIDENCE.to_parquet(buffer, index=False)
        data = buffer.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        self._sent(
            "worker",
            "PUT",
            f"/v1/gate-runs/{run_id}/evidence/rows",
            params={"fence": fence},
            content=data,
            headers={"X-Content-SHA256": sha256},
        )
        result = {
            "gate": name,
            "outcome": outcome,
            "parts": [{"name": "all", "outcome": outcome, "detail": "as planned"}],
            "summary": summary,
            "claims": [],
            "still_needed": None if outcome == "PASS" else "more pairs",
        }
        body = {"fence": fence, "result": result, "evidence": {"rows": sha256}, "info": None}
        self._sent("worker", "POST", f"/v1/runs/{run_id}/finish", json=body)
        return run_id

    def gates(self, route: str = "prose", **changes: Any) -> None:
        """Run the gates, passing unless said otherwise; None leaves one out."""
        for name, passed in PASS.items():
            found = changes.get(name, passed)
            if found is not None:
                self.gate(name, *found, route=route)

    def value(self, route: str = "prose") -> dict[str, Any]:
        return self._sent("reader", "GET", f"/v1/routes/{route}/value")

    def _sent(self, role: str, method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = self.clients[role].request(method, path, **more)
        assert answer.is_success, answer.text
        document: dict[str, Any] = answer.json()
        return document
