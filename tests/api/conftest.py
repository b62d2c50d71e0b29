"""The API in this process, on both databases, with a token for every role."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from gatekeeper.actions.identity import ROLES, SYSTEM, create_token
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.start import prepare
from gatekeeper.actions.tasks import settle_due
from gatekeeper.actions.webhooks import WebhookSettings
from gatekeeper.api.app import create_app
from gatekeeper.api.services import Services
from gatekeeper.config import data_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd

    from gatekeeper.store.database import Database


def artifact_document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": 1,
        "target": {
            "source": "hf:tiny/model@abc",
            "revision": "abc",
            "files": {"model.safetensors": "1" * 64},
            "tokenizer": "2" * 64,
            "vocab_size": 64,
            "architecture": "llama",
        },
        "proposer": {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}},
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}, {"temperature": 1.0}],
        "engine": {
            "name": "reference",
            "version": "1",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    return {**document, **changes}


@dataclass
class Api:
    """One server with a client for each role."""

    services: Services
    clients: dict[str, TestClient]
    anonymous: TestClient

    @property
    def reader(self) -> TestClient:
        return self.clients["reader"]

    @property
    def worker(self) -> TestClient:
        return self.clients["worker"]

    @property
    def operator(self) -> TestClient:
        return self.clients["operator"]

    @property
    def admin(self) -> TestClient:
        return self.clients["admin"]

    def document(self, **changes: Any) -> dict[str, Any]:
        return artifact_document(**changes)

    def parquet(self, frame: pd.DataFrame) -> bytes:
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        return buffer.getvalue()

    def register(self, **changes: Any) -> str:
        answer = self.operator.post("/v1/artifacts", json=artifact_document(**changes))
        assert answer.is_success, answer.text
        digest: str = answer.json()["digest"]
        return digest

    def route(self, name: str = "prose", **changes: Any) -> dict[str, Any]:
        body = {"slice": "prose", "artifact": "current", "policy": "ci", **changes}
        answer = self.operator.put(f"/v1/routes/{name}", json=body)
        assert answer.is_success, answer.text
        view: dict[str, Any] = answer.json()
        return view

    def submit(self, gate: str = "serving", route: str = "prose") -> str:
        answer = self.operator.post("/v1/gate-runs", json={"route": route, "gate": gate})
        assert answer.status_code == 201, answer.text
        run_id: str = answer.json()["id"]
        return run_id

    def claim(self, lease_s: float = 60.0, **more: Any) -> Any:
        body = {
            "worker": "w1",
            "engines": [{"name": "reference", "version": "1"}],
            "devices": [{"kind": "cpu", "count": 1, "memory_bytes": 1}],
            "labels": {},
            "run_id": None,
            "lease_s": lease_s,
            **more,
        }
        return self.worker.post("/v1/runs/claim", json=body)

    def upload(self, run: dict[str, Any], table: str, data: bytes, **changes: Any) -> Any:
        headers = {"X-Content-SHA256": hashlib.sha256(data).hexdigest()}
        return self.worker.put(
            f"/v1/gate-runs/{run['id']}/evidence/{table}",
            params={"fence": changes.pop("fence", run["fence"])},
            content=data,
            headers=headers | changes.pop("headers", {}),
        )

    def finish(self, run: dict[str, Any], result: dict[str, Any], evidence: dict[str, str]) -> Any:
        body = {
            "fence": run["fence"],
            "result": result,
            "evidence": evidence,
            "info": {"name": "reference"},
            "acceptance": [],
        }
        return self.worker.post(f"/v1/runs/{run['id']}/finish", json=body)

    def settle(self) -> None:
        """Compute every task that is due; the reconciler's ticks stop for breath in between."""
        while settle_due(self.services.db):
            pass

    def decision(self, route: str = "prose") -> dict[str, Any]:
        answer = self.reader.get(f"/v1/routes/{route}/decision")
        assert answer.status_code == 200, answer.text
        lease: dict[str, Any] = answer.json()
        return lease


@pytest.fixture
def api(db: Database, tmp_path: Path) -> Iterator[Api]:
    prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
    reconciler = Reconciler(db, period_s=3600, evidence=tmp_path / "evidence")  # tests tick by hand
    services = Services(
        db,
        tmp_path / "evidence",
        data_dir("migrations"),
        reconciler,
        webhooks=WebhookSettings(b"k" * 32),
    )
    app = create_app(services)
    clients = {}
    for role in ROLES:
        _, secret = create_token(db, SYSTEM, name=role, role=role, ttl_s=None)
        clients[role] = TestClient(app, headers={"Authorization": f"Bearer {secret}"})
    with TestClient(app) as anonymous:
        yield Api(services, clients, anonymous)


@pytest.fixture
def routed(api: Api) -> Api:
    """A server with one artifact, an alias and a route."""
    digest = api.register()
    assert api.operator.put("/v1/artifacts/aliases/current", json={"digest": digest}).is_success
    api.route()
    return api
