"""Spans of requests, exported to a collector and read back by ``gatekeeper profile``."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from engine_server import HTTP, gauge, service_around, serving, wait_until
from gatekeeper_adapters.engines.reference.server.spans import (
    SpanSender,
    caller_of,
    endpoint_of,
)

from gatekeeper.cli import cli
from gatekeeper.testing import Costs, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP endpoint that keeps what it is sent, and answers ``status``."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.url = ""


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.headers.append(dict(self.headers))
            collector.bodies.append(data)
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(collector: Collector) -> Iterator[str]:
    costs = Costs(verify_s=0.01, prefill_token_s=0.01)
    engine = FakeEngine(max_batch=1, costs=costs, spend=time.sleep)
    service = service_around(engine)
    service.sender = SpanSender(
        collector.url, {"authorization": "Bearer x"}, service.metrics.spans_dropped.inc
    )
    with serving(service) as url:
        yield url


def ask(url: str, headers: dict[str, str] | None = None) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "gamma": 2}
    answer = HTTP.post(f"{url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200


def test_a_request_that_waited_is_profiled_by_its_phases(tmp_path: Path) -> None:
    long = {"prompt": "hello", "max_tokens": 400, "stream": True}
    with collecting() as collector, served(collector) as url:
        with HTTP.stream("POST", f"{url}/v1/completions", json=long) as first:
            lines = first.iter_lines()  # kept: a stream whose reader is gone is closed
            next(lines)
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            second = threading.Thread(target=ask, args=(url, headers))
            second.start()
            wait_until(lambda: gauge(url, "num_requests_waiting") == 1)
            time.sleep(0.1)
        second.join()
        # the end of the server sends what is left
    assert collector.headers[0]["authorization"] == "Bearer x"
    for number, body in enumerate(collector.bodies):
        (tmp_path / f"{number}.otlp").write_bytes(body)
    done = CliRunner().invoke(cli, ["profile", *map(str, tmp_path.iterdir()), "--json"])
    assert done.exit_code == 0, done.output
    tasks = {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}
    assert len(tasks) == 2
    task = tasks[TRACE]
    assert (task["evidence_grade"], task["reconciled"], task["model_calls"]) == ("A", True, 1)
    segments = task["segments_s"]
    assert segments["queue"] > 0.1
    assert segments["prefill"] >= 0.05  # five tokens
    assert segments["decode"] >= 0.05
    assert segments["other"] < 0.5 * task["wall_s"]


def test_a_collector_that_refuses_costs_spans_and_no_answers() -> None:
    with collecting() as collector:
        collector.status = 503
        with served(collector) as url:
            ask(url)
            wait_until(lambda: gauge(url, "spans_dropped_total") == 1)
            ask(url)


def test_where_spans_go() -> None:
    assert (
        endpoint_of("http://h:4318") == endpoint_of("http://h:4318/") == "http://h:4318/v1/traces"
    )
    assert endpoint_of("http://h/x/v1/traces") == "http://h/x/v1/traces"


@pytest.mark.parametrize(
    "header", [None, "", "00-" + "0" * 32 + f"-{PARENT}-01", f"00-{TRACE}-{PARENT}", "00-zz-1-01"]
)
def test_a_header_that_is_no_trace_context_begins_a_trace(header: str | None) -> None:
    caller = caller_of(header)
    assert len(caller.trace_id) == 16
    assert caller.span_id == b""
    assert caller.trace_id != caller_of(header).trace_id
