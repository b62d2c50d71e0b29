from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmark_scripts import script

from gatekeeper import plugins
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces

if TYPE_CHECKING:
    from pathlib import Path

payload = script("otlp_payload")


def test_the_payload_is_whole_tasks_with_first_token_times() -> None:
    shape = payload.Shape(spans=64, per_task=32, content=120)
    formats = list(plugins.load_all("gatekeeper.traces").values())
    traces = read_traces(payload.request(3, shape), formats)
    assert [len(trace.spans) for trace in traces] == [32, 32]
    profiled = profile_task(traces[0])
    assert (profiled.evidence_grade, profiled.reconciled, profiled.model_calls) == ("B", True, 16)
    assert "lorem ipsum" in str(traces[0].spans[1].attributes["gen_ai.input.messages"])
    ids = {s.span_id for n in range(2) for t in read_traces(payload.request(n, shape), formats) for s in t.spans}  # fmt: skip
    assert len(ids) == 128


def test_every_step_is_measured(tmp_path: Path) -> None:
    taken = script("traces_ingest").steps(tmp_path, payload.Shape(spans=64), 2)
    assert len(taken) == 6
    assert all(us > 0 for us in taken.values())


def test_another_server_needs_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["traces_ingest.py", "--endpoint", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit):
        script("traces_ingest").main()
    assert "--pid" in capsys.readouterr().err
