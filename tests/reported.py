"""A route with every kind of evidence: three gates, tasks, a pricing; made by the real parts."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from live import LiveServer, serving
from shipped_policies import shipped_policy

from gatekeeper.actions.price import reprice
from gatekeeper.actions.tasks import settle_due
from gatekeeper.core.decoding import TokenPrompt
from gatekeeper.core.policies import Policy
from gatekeeper.core.verdicts import to_json
from gatekeeper.gates import outcome
from gatekeeper.testing import Costs, FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROUTE = "prose"
FAST = Costs(draft_round_s=0.0001, draft_token_s=0.0001, verify_s=0.004, jitter=0.05)
SLOW = Costs(draft_round_s=0.004, draft_token_s=0.004, verify_s=0.006, jitter=0.05)


def artifact(gamma: int = 2) -> dict[str, Any]:
    return {
        "schema": 1,
        "target": {
            "source": "hf:tiny/model@abc",
            "revision": "abc",
            "files": {"model.safetensors": "1" * 64},
            "tokenizer": "2" * 64,
            "vocab_size": 32,
            "architecture": "llama",
        },
        "proposer": {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}},
        "gamma": gamma,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}, {"temperature": 1.0}],
        "engine": {
            "name": "fake",
            "version": "1",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }


def policy(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("demo")
    document["serving"] |= {"tokens_per_request": 8, "max_prompt_tokens": 400}
    document["equivalence"]["tolerance"] |= {"window": 0.25, "bonus": 0.35}
    document["equivalence"]["sampled"] |= {"min_tokens": 240, "max_tokens": 600}
    document["outcome"] |= {"margin": 0.2, "pairs": 80, "samples": 2, "max_cost_ratio": 1.5}
    return {**document, "mandatory_gates": ["equivalence", "serving", "outcome"], **changes}


class StepClock:
    """Seconds that the fake engine says its steps took: figures do not depend on this machine."""

    def __init__(self) -> None:
        self._spent = 0.0

    def __call__(self) -> float:
        return self._spent

    def spend(self, seconds: float) -> None:
        self._spent += seconds


def set_up(server: LiveServer, **changes: Any) -> None:
    """Register the artifact, a policy and the route; no evidence yet."""
    with server.client("admin") as admin:
        digest = _ok(admin.post("/v1/artifacts", json=artifact()))["digest"]
        _ok(admin.put("/v1/policies/demo", json=policy(**changes)))
        body = {
            "slice": "prose",
            "artifact": digest,
            "policy": "demo",
            "economics": "demo",
            "task_rules": {"quiet_s": 0.0},
        }
        _ok(admin.put(f"/v1/routes/{ROUTE}", json=body))


def override(server: LiveServer, action: str, ttl_s: float, **more: Any) -> None:
    """Override the route's decision."""
    body = {"route": ROUTE, "action": action, "reason": "trial", "ttl_s": ttl_s, **more}
    with server.client("admin") as admin:
        answer = admin.post("/v1/overrides", json=body)
        assert answer.status_code == 201, answer.text


def run_gates(server: LiveServer, folder: Path, costs: Costs = FAST) -> None:
    """Run equivalence and serving by the real worker on a fake engine."""
    with server.client("admin") as admin:
        for gate in ("equivalence", "serving"):
            _ok(admin.post("/v1/gate-runs", json={"route": ROUTE, "gate": gate}))
    work(server, folder, 2, costs)


def work(server: LiveServer, folder: Path, runs: int, costs: Costs = FAST) -> None:
    """Take so many runs, one after the other, by the real worker on a fake engine."""
    clock, said = StepClock(), []
    headers = {"Authorization": f"Bearer {server.tokens['worker']}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        for _ in range(runs):
            status = Worker(
                WorkerApi(client, "w1"),
                {"fake": FakeProvider(costs=costs, spend=clock.spend, agreement=0.9)},
                WorkerOptions(cache=folder, devices=[{"kind": "cpu", "count": 1}], once=True),
                clock=clock,
                sleep=time.sleep,
                say=said.append,
                lost=said.append,
            ).run()
            assert status == 0, "\n".join(said)


def run_outcome(server: LiveServer, candidate: float = 0.8) -> None:
    """Upload pairs in which the baseline succeeds at 0.8 and the candidate as told."""
    with server.client("admin") as admin:
        run = _ok(admin.post("/v1/gate-runs", json={"route": ROUTE, "gate": "outcome"}))
    with server.client("worker") as worker:
        claim = {
            "worker": "w2",
            "engines": [{"name": "fake", "version": "1"}],
            "devices": [{"kind": "cpu", "count": 1, "memory_bytes": 1}],
            "run_id": run["id"],
            "lease_s": 60.0,
        }
        held = _ok(worker.post("/v1/runs/claim", json=claim))["run"]
        table = _pairs(candidate)
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        _ok(
            worker.put(
                f"/v1/gate-runs/{run['id']}/evidence/pairs",
                params={"fence": held["fence"]},
                content=buffer.getvalue(),
                headers={"X-Content-SHA256": digest},
            )
        )
        budget = Policy.from_dict(held["policy"]["document"]).outcome
        body = {
            "fence": held["fence"],
            "result": to_json(outcome.evaluate(budget, {"pairs": table})),
            "evidence": {"pairs": digest},
            "info": {"name": "fake"},
            "acceptance": [],
        }
        _ok(worker.post(f"/v1/runs/{run['id']}/finish", json=body))


@dataclass(frozen=True)
class Reported:
    """A server whose route has everything, and its report at each step on the way."""

    server: LiveServer
    steps: dict[str, dict[str, Any]]

    @property
    def full(self) -> dict[str, Any]:
        """The last step."""
        return self.steps["priced"]


@pytest.fixture(scope="session")
def reported_route(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reported]:
    """Made once: read it, do not change it."""
    from gatekeeper.store.database import open_database

    folder = tmp_path_factory.mktemp("reported")
    shutil.copy(sqlite_template, folder / "store.sqlite")
    db = open_database(f"sqlite:///{folder / 'store.sqlite'}")
    with serving(db, folder / "evidence") as server:
        steps = {}
        set_up(server)
        steps["nothing"] = document(server)
        run_gates(server, folder)
        steps["two gates"] = document(server)
        run_outcome(server)
        steps["three gates"] = document(server)
        send_tasks(server)
        steps["priced"] = document(server)
        yield Reported(server, steps)
    db.close()


def _pairs(candidate: float) -> Any:
    rng = np.random.default_rng(0)
    tasks = tuple(
        TokenPrompt(f"{kind}-{i}", kind, tuple(range(3 + i)))
        for kind in ("copy", "tool")
        for i in range(40)
    )
    settled = Policy.from_dict(policy())
    settled = replace(settled, outcome=replace(settled.outcome, pairs=160, concurrency=2))
    plan = outcome.plan(settled, {"gamma": 2}, tasks=tasks, suite="d" * 64, end_tokens=(2,), seed=7)
    answers = [
        outcome.Answer(
            attempt,
            block,
            "text",
            bool(rng.random() < (0.8 if block.arm == "baseline" else candidate)),
            5,
            cost_s=float(rng.lognormal(0, 0.1)),
        )
        for block in plan.blocks
        for attempt in block.attempts
    ]
    return plan.pairs(answers)


def send_tasks(server: LiveServer, count: int = 8) -> None:
    """Send the essay's task some times as traces of their own, and price the route."""
    text = files("gatekeeper").joinpath("examples/essay-trace.json").read_text()
    trace, route = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "order-desk/answer"
    assert trace in text
    assert route in text
    with server.client("ingester") as ingester:
        for number in range(count):
            own = text.replace(trace, f"{number + 1:032x}").replace(route, ROUTE)
            _ok(ingester.post("/v1/traces", json=json.loads(own)))
    settle_due(server.db, budget_s=60.0)
    reprice(server.db, server.evidence, [ROUTE])


def document(server: LiveServer, route: str = ROUTE) -> dict[str, Any]:
    """The report as the API answers it."""
    with server.client("reader") as reader:
        found: dict[str, Any] = _ok(reader.get(f"/v1/reports/{route}"))
        return found


def _ok(response: httpx.Response) -> Any:
    assert response.is_success, response.text
    return response.json()
