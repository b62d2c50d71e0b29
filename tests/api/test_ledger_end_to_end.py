"""A whole rollout over HTTP with the real worker; then somebody changes what was recorded."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import httpx
import pandas as pd
import pytest
from reported import FAST, StepClock, artifact
from shipped_policies import shipped_policy
from sqlalchemy import select

from gatekeeper.actions.decide import current
from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.cli import main
from gatekeeper.store import schema
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import LiveServer


def policy() -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("demo")
    document |= {"mandatory_gates": ["equivalence", "serving"], "minimum_value": None}
    document["serving"] |= {"tokens_per_request": 8, "max_prompt_tokens": 400}
    document["equivalence"]["tolerance"] |= {"window": 0.2, "bonus": 0.3}
    return document


@pytest.fixture
def rolled_out(live_server: LiveServer, tmp_path: Path) -> LiveServer:
    """A route with both gates run by a worker."""
    with live_server.client("admin") as admin:

        def put(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = admin.put(path, json=body)
            assert answer.is_success, answer.text
            view: dict[str, Any] = answer.json()
            return view

        digest = admin.post("/v1/artifacts", json=artifact()).json()["digest"]
        put("/v1/policies/demo", policy())
        put("/v1/routes/prose", {"slice": "prose", "artifact": digest, "policy": "demo"})
        for gate in ("equivalence", "serving"):
            assert admin.post("/v1/gate-runs", json={"route": "prose", "gate": gate}).is_success
    clock = StepClock()
    said: list[str] = []
    headers = {"Authorization": f"Bearer {live_server.tokens['worker']}"}
    with httpx.Client(base_url=live_server.url, headers=headers, timeout=120) as client:
        for _ in range(2):
            status = Worker(
                WorkerApi(client, "w1"),
                {"fake": FakeProvider(costs=FAST, spend=clock.spend, agreement=0.9)},
                WorkerOptions(cache=tmp_path, devices=[{"kind": "cpu", "count": 1}], once=True),
                clock=clock,
                sleep=time.sleep,
                say=said.append,
                lost=said.append,
            ).run()
            assert status == 0, said
    return live_server


def change_json(
    server: LiveServer, table: Any, where: Any, column: str, edit: Callable[[Any], Any]
) -> None:
    with server.db.write() as session:
        before = session.execute(select(table.c[column]).where(where)).scalar_one()
        session.execute(table.update().where(where).values({column: edit(before)}))


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_every_figure_is_recomputed_and_every_change_is_named(
    rolled_out: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = rolled_out
    with server.client("reader") as reader:
        runs = {r["gate"]: r for r in reader.get("/v1/gate-runs").json()["items"]}
        details = [reader.get(f"/v1/gate-runs/{r['id']}").json()["result"] for r in runs.values()]
    assert {r["state"] for r in runs.values()} == {"finished"}
    assert {r["outcome"] for r in runs.values()} == {"PASS"}, [d["parts"] for d in details]
    _, lease = current(server.db, "prose")
    assert lease.action == "enable"
    rows = verify_ledger(server.db, server.evidence)
    assert sum(row["id"].startswith("run/") for row in rows) > 20
    assert [row["reason"] for row in rows if not row["agrees"]] == []

    serving = runs["serving"]["id"]

    # a database summary
    def faster(document: dict[str, Any]) -> dict[str, Any]:
        document["summary"]["speedup"]["ratio"] += 0.5
        return document

    results = schema.gate_result
    change_json(server, results, results.c.run == serving, "document", faster)
    named = {f"run/{serving}/summary.speedup.ratio"}
    # an input of the ledger, and one of the essay's
    claims = schema.claim
    with server.db.read() as session:
        query = select(claims.c.id, claims.c.inputs).where(claims.c.run == serving)
        inputs = {str(name): dict(row) for name, row in session.execute(query)}
    changed = next(name for name, row in inputs.items() if row.get("concurrency") == 1)
    change_json(server, claims, claims.c.id == changed, "inputs", lambda i: {**i, "concurrency": 4})
    essay = claims.c.id == "essay.progress.high"
    change_json(server, claims, essay, "inputs", lambda i: {**i, "alpha": 0.81})
    named |= {changed, "essay.progress.high"}
    # a decision that the stored results do not bear out
    decision = schema.decision
    newest = select(decision.c.id).order_by(decision.c.id.desc()).limit(1).scalar_subquery()
    change_json(server, decision, decision.c.id == newest, "document", lambda d: {**d, "gamma": 9})
    named.add("decision/prose/gamma")
    rows = verify_ledger(server.db, server.evidence)
    assert {row["id"] for row in rows if not row["agrees"]} == named

    # one cell of the Parquet evidence: every claim that rests on the table, by the command line
    with server.db.read() as session:
        path = session.execute(
            select(schema.evidence.c.path).where(
                schema.evidence.c.run == serving, schema.evidence.c.table == "confirm"
            )
        ).scalar_one()
    table = pd.read_parquet(server.evidence / path)
    column = next(c for c in table.columns if table[c].dtype == float)
    table.loc[0, column] += 1.0
    table.to_parquet(server.evidence / path, index=False)
    resting = {name for name, row in inputs.items() if row.get("table") == "confirm"}
    url = server.db.engine.url.render_as_string(hide_password=False)
    for name, value in (("DATABASE_URL", url), ("EVIDENCE", str(server.evidence))):
        monkeypatch.setenv(f"GATEKEEPER_{name}", value)
    with pytest.raises(SystemExit) as ended:
        main(["claims", "verify", "--json"])
    assert ended.value.code == 1
    printed = json.loads(capsys.readouterr().out)["claims"]
    wrong = {row["id"] for row in printed if not row["agrees"]}
    assert resting
    # without its evidence the result cannot be judged anew, so its summary is named as a whole
    expected = {n for n in named if n != f"run/{serving}/summary.speedup.ratio"}
    assert wrong == expected | resting | {f"run/{serving}/summary"}
