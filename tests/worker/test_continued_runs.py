"""An inconclusive run is gone on from through the whole product: server, worker, evidence, ledger."""

from __future__ import annotations

import hashlib
import io
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from look_up_artifact import look_up_artifact
from shipped_policies import shipped_policy

from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    import httpx
    from live import LiveServer

pytestmark = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
ROWS = ("requests", "strict", "tolerance", "greedy")


def artifact() -> Any:
    return look_up_artifact("fake")


def policy() -> Any:
    """So few tokens a run that one alone says nothing, and so wide a tolerance that some runs do."""
    document = shipped_policy("demo")
    document |= {"name": "test", "mandatory_gates": ["equivalence", "serving"]}
    document["minimum_value"] = None
    equivalence = document["equivalence"]
    equivalence["tokens_per_request"] = 16
    equivalence["greedy"]["prompts"] = 2
    equivalence["sampled"] |= {"min_tokens": 96, "max_tokens": 96}
    equivalence["tolerance"] |= {"window": 0.15, "bonus": 0.3}
    document["serving"]["max_prompt_tokens"] = 150
    return document


@pytest.fixture
def server(live_server: LiveServer) -> LiveServer:
    with live_server.client("admin") as admin:
        digest = admin.post("/v1/artifacts", json=artifact()).raise_for_status().json()["digest"]
        admin.put("/v1/policies/test", json=policy()).raise_for_status()
        body = {"slice": "prose", "artifact": digest, "policy": "test"}
        admin.put("/v1/routes/prose", json=body).raise_for_status()
    return live_server


def submit(server: LiveServer, **parameters: Any) -> Any:
    with server.client("operator") as operator:
        body = {"route": "prose", "gate": "equivalence", "parameters": parameters}
        return operator.post("/v1/gate-runs", json=body).raise_for_status().json()


def view(server: LiveServer, run_id: str) -> Any:
    with server.client("reader") as reader:
        return reader.get(f"/v1/gate-runs/{run_id}").raise_for_status().json()


def planned(server: LiveServer) -> Any:
    body = {"route": "prose", "gate": "equivalence"}
    with server.client("operator") as operator:
        answer = operator.post("/v1/gate-runs", params={"plan": "true"}, json=body)
    return answer.raise_for_status().json()


def work(server: LiveServer, run_id: str, *, expected: int = 0, **engine: Any) -> Any:
    """Measure a run by the real worker; the run as the API shows it, and what the worker said."""
    lines: list[str] = []
    provider = FakeProvider("fake", max_context=4096, **{"agreement": 0.6, "order": 2, **engine})
    with server.client("worker") as client:
        status = Worker(
            WorkerApi(client, "w1"),
            {"fake": provider},
            WorkerOptions(
                cache=Path(), devices=[{"kind": "cpu", "count": 1}], once=True, run_id=run_id
            ),
            clock=time.monotonic,
            sleep=lambda _: None,
            say=lines.append,
            lost=lines.append,
        ).run()
    assert status == expected, lines
    return view(server, run_id), "\n".join(lines)


def tables(server: LiveServer, run_id: str) -> dict[str, pd.DataFrame]:
    found = {}
    with server.client("reader") as reader:
        for row in view(server, run_id)["evidence"]:
            path = f"/v1/gate-runs/{run_id}/evidence/{row['table']}"
            data = reader.get(path).raise_for_status().content
            found[row["table"]] = pd.read_parquet(io.BytesIO(data))
    return found


def digests(run: Any) -> dict[str, str]:
    return {row["table"]: row["sha256"] for row in run["evidence"]}


def test_repeated_runs_go_on_until_the_evidence_suffices(server: LiveServer) -> None:
    runs: list[Any] = []
    while not runs or (runs[-1]["outcome"] == "INCONCLUSIVE" and len(runs) < 12):
        asked = submit(server)
        named = asked["parameters"].get("continues")
        assert (named is None) == (not runs)
        done, _ = work(server, asked["id"])
        if runs:
            assert named == {"run": runs[-1]["id"], "evidence": digests(runs[-1])}
            links = done["result"]["summary"]["continues"]
            assert [link["run"] for link in links] == [run["id"] for run in runs]
            assert links[-1]["evidence"] == digests(runs[-1])
            before, now = tables(server, runs[-1]["id"]), tables(server, done["id"])
            for name in ROWS:
                pd.testing.assert_frame_equal(before[name], now[name].head(len(before[name])))
            assert now["requests"]["request"].is_unique
        runs.append(done)
        plan = planned(server)
        open_ = done["outcome"] == "INCONCLUSIVE"
        assert plan["earlier_runs"] == (len(runs) if open_ else None)
        tokens = done["result"]["summary"]["tokens"]
        assert plan["earlier_tokens"] == (tokens if open_ else None)
    assert runs[-1]["outcome"] == "PASS"
    assert len(runs) > 2
    spent = [run["result"]["summary"]["tokens"] for run in runs]
    # a run ends with the requests that its batch of eight holds
    assert all(96 <= b - a <= 96 + 8 * 16 for a, b in itertools.pairwise(spent[:-1]))
    checked = verify_ledger(server.db, server.evidence)
    assert [row["reason"] for row in checked if not row["agrees"]] == []
    assert {row["id"].partition("/")[2].partition("/")[0] for row in checked} >= {
        run["id"] for run in runs
    }
    assert "continues" not in submit(server)["parameters"]  # a PASS ends the chain


def test_what_a_run_goes_on_from_is_settled_when_it_is_claimed(server: LiveServer) -> None:
    ids = [submit(server)["id"] for _ in range(2)]
    first, second = (work(server, run_id)[0] for run_id in ids)
    assert second["parameters"]["continues"]["run"] == first["id"]
    assert len(second["result"]["summary"]["continues"]) == 1
    checked = verify_ledger(server.db, server.evidence)
    assert [row["reason"] for row in checked if not row["agrees"]] == []
    assert {row["id"].partition("/")[2].partition("/")[0] for row in checked} >= {
        first["id"],
        second["id"],
    }


def test_evidence_that_was_changed_is_not_gone_on_from(server: LiveServer) -> None:
    first, _ = work(server, submit(server)["id"])
    (path,) = server.evidence.glob(f"runs/{first['id']}/strict-*.parquet")
    frame = pd.read_parquet(path)
    frame["log_e"] -= 1
    frame.to_parquet(path, index=False)
    second, said = work(server, submit(server)["id"], expected=1)
    assert (second["state"], second["outcome"]) == ("failed", "ERROR")
    assert f"run {first['id']}, strict" in said


def test_another_engine_starts_anew_and_says_so(server: LiveServer) -> None:
    first, _ = work(server, submit(server)["id"])
    second, _ = work(server, submit(server)["id"], identity_rule="bitwise")
    summary = second["result"]["summary"]
    assert summary["continues"] == []
    assert summary["not_continued"] == {"run": first["id"], "differs": ["identity_rule", "delta"]}
    assert second["parameters"]["continues"]["run"] == first["id"]
    checked = verify_ledger(server.db, server.evidence)
    assert [row["reason"] for row in checked if not row["agrees"]] == []


def claim(worker: httpx.Client, run_id: str) -> Any:
    offer = {
        "worker": "w2",
        "engines": [{"name": "fake", "version": "1"}],
        "devices": [{"kind": "cpu", "count": 1, "memory_bytes": 1}],
        "labels": {},
        "run_id": run_id,
        "lease_s": 60,
    }
    return worker.post("/v1/runs/claim", json=offer).raise_for_status().json()["run"]


def finish(worker: httpx.Client, run: Any, outcome: str, **evidence: str) -> Any:
    body = {
        "fence": run["fence"],
        "result": {"gate": "equivalence", "outcome": outcome, "parts": []},
        "evidence": evidence,
        "info": None,
        "acceptance": [],
    }
    return worker.post(f"/v1/runs/{run['id']}/finish", json=body).raise_for_status().json()


def test_of_two_runs_at_a_time_the_later_goes_on_from_the_earlier(server: LiveServer) -> None:
    """Both are drawn from one state: storing both would be two draws for one verdict."""
    late, faulty, first = (submit(server, seed=seed)["id"] for seed in (2, 3, 1))
    with server.client("worker") as worker:
        claimed, found = claim(worker, late), claim(worker, faulty)
        assert "continues" not in claimed["parameters"]
        done, _ = work(server, first)
        assert done["outcome"] == "INCONCLUSIVE"
        answer = finish(worker, claimed, "INCONCLUSIVE")
        assert answer["state"] == "pending"
        assert f"run {first} of the same gate ended meanwhile" in answer["error"]
        assert view(server, late)["result"] is None
        again, said = work(server, late)
        assert again["result"]["summary"]["continues"][0]["run"] == first, said
        # a fault that was found stays found
        (path,) = server.evidence.glob(f"runs/{first}/requests-*.parquet")
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        worker.put(
            f"/v1/gate-runs/{faulty}/evidence/requests",
            params={"fence": found["fence"]},
            content=data,
            headers={"X-Content-SHA256": digest},
        ).raise_for_status()
        assert finish(worker, found, "FAIL", requests=digest)["state"] == "finished"
    assert view(server, faulty)["outcome"] == "FAIL"


def test_a_run_whose_tables_begin_anew_is_refused(server: LiveServer) -> None:
    first, _ = work(server, submit(server)["id"])
    second = submit(server)["id"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatekeeper.worker.run.ClaimedRun.continues", None)
        _, said = work(server, second, expected=1)
    assert f"does not name run {first['id']} and its evidence" in said
