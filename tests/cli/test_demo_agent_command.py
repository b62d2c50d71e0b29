"""``python -m gatekeeper.cli.demo.agent`` against a live server: real exporter, real ingest."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper import plugins
from gatekeeper.cli import main
from gatekeeper.cli.demo import agent as command
from gatekeeper.testing import Costs, FakeProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import LiveServer

STEP_S = 0.004

ARTIFACT = {
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
    "gamma": 3,
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


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


@pytest.fixture
def agent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Done]:
    """Run the command on an engine whose steps take 4 ms and accept every draft."""
    provider = FakeProvider(
        agreement=1.0,
        max_context=2048,
        costs=Costs(verify_s=STEP_S),
        spend=time.sleep,
    )
    real = plugins.load
    monkeypatch.setattr(
        plugins,
        "load",
        lambda group, name: provider if (name == "fake") else real(group, name),
    )
    file = tmp_path / "artifact.json"
    file.write_text(json.dumps(ARTIFACT))

    def run(*arguments: object, token: str | None = None) -> Done:
        monkeypatch.delenv("GATEKEEPER_TOKEN", raising=False)
        if token is not None:
            monkeypatch.setenv("GATEKEEPER_TOKEN", token)
        options = ("--home", tmp_path / "home", "--artifact-file", file, "--route", "tool-calls")
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in (*options, *arguments)], command=command.agent)
        captured = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


def test_the_service_has_every_task_and_the_figures_agree_with_it(
    agent: Callable[..., Done], live_server: LiveServer
) -> None:
    done = agent(
        *("--url", live_server.url, "--gamma", 3, "--tasks", 5, "--tokens", 16, "--json"),
        *("--speedup", "1=3,3.75,5", "--speedup", "2=3,3.75,5"),
        token=live_server.tokens["ingester"],
    )
    document = json.loads(done.out)
    assert done.status == (0 if document["agrees"] else 1)
    assert document["exported"] == {"url": live_server.url, "spans": 5 * 2 * 8}
    assert document["problems"] == []
    assert "task 5 of 5" in done.err
    assert "s left" in done.err
    with live_server.client("reader") as http:
        for row in document["tasks"]:
            for arm in ("baseline", "candidate"):
                task = http.get(f"/v1/tasks/{row['traces'][arm]}").json()
                assert task["reconciled"] is True
                assert task["grade"] == "B"
                assert task["calls"] == 4
                assert task["wall_s"] == pytest.approx(row[f"{arm}_s"], abs=1e-9)


def test_without_json_it_says_what_it_saw(
    agent: Callable[..., Done], live_server: LiveServer
) -> None:
    done = agent(
        *("--url", live_server.url, "--gamma", 3, "--tasks", 3, "--speedup", "2,3,4"),
        token=live_server.tokens["ingester"],
    )
    assert "predicted saving" in done.out
    assert "observed saving" in done.out
    assert done.status == 1  # three pairs are too few for an interval
    assert "cannot be said" in done.out


def test_a_window_counts_only_where_its_speed_up_was_measured(
    agent: Callable[..., Done], live_server: LiveServer
) -> None:
    done = agent(
        *("--url", live_server.url, "--gamma", 3, "--tasks", 1, "--tokens", 8, "--json"),
        *("--speedup", "1=3,3.5,4"),
        token=live_server.tokens["ingester"],
    )
    document = json.loads(done.out)
    assert document["gamma_by_concurrency"] == {"1": 3}
    (row,) = document["tasks"]
    assert row["rounds"] == {"baseline": 4 * 8, "candidate": 2 * 8 + 2 * 2}


def test_a_token_that_may_not_send_spans_is_an_error_and_no_traceback(
    agent: Callable[..., Done], live_server: LiveServer
) -> None:
    done = agent(
        *("--url", live_server.url, "--gamma", 3, "--tasks", 1, "--speedup", "2,3,4"),
        token=live_server.tokens["reader"],
    )
    assert done.status == 2
    assert "did not take 8 spans" in done.err
    assert "gatekeeper doctor" in done.err
    assert "Traceback" not in done.err


def test_it_needs_a_token(agent: Callable[..., Done]) -> None:
    done = agent("--gamma", 3, "--speedup", "2,3,4")
    assert done.status == 2
    assert "gatekeeper token create --role ingester" in done.err


@pytest.mark.parametrize("bad", ["0", "x", "1=", "=2", "0=2", "1=0", "1=2=3", "-1", "100"])
def test_a_window_that_is_none_is_refused(agent: Callable[..., Done], bad: str) -> None:
    done = agent(f"--gamma={bad}", "--speedup", "1,2,3", token="t")
    assert done.status == 2
    assert "CONCURRENCY=GAMMA" in done.err


def test_what_is_given_for_a_concurrency_wins() -> None:
    assert command._by_concurrency([(None, 4), (2, 3)]) == {1: 4, 2: 3}
    assert command._by_concurrency([(2, 3), (None, 4)]) == {1: 4, 2: 3}
    assert command._by_concurrency([(1, 4)]) == {1: 4}


@pytest.mark.parametrize(
    "bad", ["2", "3,2,1", "1=x,2,3", "0=1,2,3", "1,2,inf", "1,2,3,4", "nan,1,2"]
)
def test_a_speed_up_that_is_none_is_refused(agent: Callable[..., Done], bad: str) -> None:
    done = agent("--gamma", 3, "--speedup", bad, token="t")
    assert done.status == 2
    assert "LOW <= VALUE <= HIGH" in done.err


def test_it_names_the_extra_that_it_needs(
    agent: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> Any:
        raise ModuleNotFoundError("opentelemetry")

    monkeypatch.setattr(command, "find_spec", absent)
    done = agent("--gamma", 3, "--speedup", "2,3,4", token="t")
    assert done.status == 2
    assert "pip install gatekeeper[otel]" in done.err


def test_an_interrupt_leaves_no_traceback(
    agent: Callable[..., Done], live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gatekeeper.cli.demo.agent_run.run_agent", interrupt)
    done = agent(
        *("--url", live_server.url, "--gamma", 3, "--tasks", 1, "--speedup", "2,3,4"),
        token=live_server.tokens["ingester"],
    )
    assert done.status == 1
    assert done.err.strip().splitlines()[-1] == "gatekeeper: interrupted"
