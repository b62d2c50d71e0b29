"""The agent on the real model: one task in each arm, traces as the service would get them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from models import smollm2

from gatekeeper import plugins
from gatekeeper.cli.demo.agent_run import evaluate, run_agent
from gatekeeper.cli.demo.agent_spans import Spans, http_exporter
from gatekeeper.cli.demo.agent_task import Agent, task_works
from gatekeeper.cli.demo.agent_tools import Archive, Threads
from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.task_prediction import Speedup
from gatekeeper.core.trace_documents import read_traces

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["smollm2"]

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

TOKENS = 12


class Accepts(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_agent_runs_on_smollm2(smollm2: Path, tmp_path: Path) -> None:
    import time

    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    engine = load_engine(
        smollm2, {"kind": "ngram"}, version="test", options=Options(max_batch=2, max_context=512)
    )
    with HTTPServer(("127.0.0.1", 0), Accepts) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        spans = Spans(http_exporter(f"http://127.0.0.1:{server.server_port}", "t"), service="test")
        tools = Threads(time.time_ns)
        agent = Agent(
            engine=engine,
            spans=spans,
            background=tools,
            archive=Archive(tmp_path / "agent.sqlite"),
            now_ns=time.time_ns,
            route="tool-calls",
            model="SmolLM2-135M-Instruct",
            run="test",
            sampling=(GREEDY,),
            max_tokens=TOKENS,
        )
        try:
            works = task_works(engine.tokenize, 1, tool_s=(0.1,), seed=1)
            runs = run_agent(agent, works, gammas={1: 2, 2: 2}, seed=1)
        finally:
            tools.close()
            spans.close()
            server.shutdown()
            thread.join()
    found = read_traces(spans.document(), [plugins.load("gatekeeper.traces", "otlp")])
    traces = {trace.trace_id: trace for trace in found}
    speedups = [Speedup(1, 1.1, 1.3, 1.6), Speedup(2, 1.1, 1.3, 1.6)]
    (row,) = evaluate(traces, runs, speedups, route="tool-calls", run="test").rows
    assert row["problem"] is None
    assert row["residual_s"] == {"baseline": 0.0, "candidate": 0.0}
    assert row["same_text"]  # greedy fp32: speculation changes no token
    assert row["verified"] == {"baseline": True, "candidate": True}
    assert row["rounds"]["baseline"] == 4 * TOKENS
    assert row["rounds"]["candidate"] < 4 * TOKENS  # drafts were accepted
    ceiling = row["ceiling_s"]
    assert 0 < row["predicted_s"]["low"] < row["predicted_s"]["value"] < ceiling
    decode = row["critical_path_s"]["decode"]
    assert row["predicted_s"]["value"] <= (1 - 1 / 1.3) * decode + 1e-6
