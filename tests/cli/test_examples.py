"""The examples of docs/examples run as they are printed there."""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from reported import ROUTE, override, set_up, work

from gatekeeper.client import DecisionClient

if TYPE_CHECKING:
    from live import LiveServer

Run = Callable[..., Any]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def pool(name: str) -> type[BaseHTTPRequestHandler]:
    class Pool(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: Any) -> None:
            pass

    return Pool


@SQLITE
def test_the_proxy_chooses_the_pool_by_the_decision(live_server: LiveServer) -> None:
    spec = importlib.util.spec_from_file_location("pool_proxy", EXAMPLES / "pool_proxy.py")
    assert spec is not None
    assert spec.loader is not None
    proxy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = proxy  # where its source is looked up
    spec.loader.exec_module(proxy)
    written = [line for line in inspect.getsource(proxy.Pools).splitlines() if line.strip()]
    assert len(written) <= 10
    set_up(live_server)
    now = [0.0]
    decisions = DecisionClient(
        live_server.url, live_server.tokens["reader"], timeout_s=20, clock=lambda: now[0]
    )
    with (
        decisions,
        httpx.Client(timeout=20) as http,
        listening(pool("speculative")) as speculative,
        listening(pool("plain")) as plain,
    ):
        pools = proxy.Pools(decisions, ROUTE, speculative, plain)
        with listening(proxy.handler(pools, http)) as url:

            def chosen() -> str:
                return httpx.post(f"{url}/v1/completions", json={}, timeout=20).text

            assert chosen() == "plain"
            override(live_server, "enable", 3600, gamma=2)
            now[0] += 31  # half the lease is over, so it is renewed
            assert chosen() == "speculative"
            live_server.stop()
            now[0] += 301  # and beyond all of it, with nobody to renew it
            assert chosen() == "plain"


@SQLITE
def test_the_ci_job_gates_and_says_so(
    live_server: LiveServer, gatekeeper: Run, tmp_path: Path
) -> None:
    document = yaml.safe_load((EXAMPLES / "gate-on-change.yml").read_text())
    steps = [step.get("run", "") for step in document["jobs"]["gate"]["steps"]]
    commands = [shlex.split(step)[1:] for step in steps if step.startswith("gatekeeper ")]
    assert [command[:2] for command in commands] == [["gate", "run"], ["decide", "chat"]]
    assert "--wait" in commands[0]
    set_up(live_server, mandatory_gates=["equivalence", "serving"])
    settings = {"URL": live_server.url, "TOKEN": live_server.tokens["operator"]}

    def run(command: list[str]) -> Any:
        return gatekeeper(*(ROUTE if part == "chat" else part for part in command), **settings)

    worker = threading.Thread(target=work, args=(live_server, tmp_path, 2))
    worker.start()
    gated = run(commands[0])
    worker.join()
    assert gated.status == 0, gated.err
    assert "PASS" in gated.out
    decided = run(commands[1])
    assert f"{ROUTE}: " in decided.out
    assert decided.status == (0 if "enable" in decided.out.splitlines()[0] else 1)
