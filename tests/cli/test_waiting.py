"""Whoever waits for a plan is told at once for what and how long, on stderr alone."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from gatekeeper.cli import waiting
from gatekeeper.cli.waiting import waiting as wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

Run = Any
PLAN = {
    "gate": "serving",
    "route": "chat",
    "policy": "demo",
    "minutes": 1234.5,
    "rates": "measured",
    "tokens": 123456,
    "effect": -0.25,
}


class _Slow(BaseHTTPRequestHandler):
    """A server that takes its time over a plan."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(1.5)
        body = json.dumps(PLAN).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def slow_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_slow_plan_says_what_it_waits_for(gatekeeper: Run) -> None:
    with slow_server() as url:
        words = gatekeeper("gate", "run", "chat", "serving", "--plan", URL=url, TOKEN="t")
        as_json = gatekeeper(
            "gate", "run", "chat", "serving", "--plan", "--json", URL=url, TOKEN="t"
        )
    first = words.err.splitlines()[0]
    assert first.startswith(f"waiting for the server at {url} to plan serving")
    assert "1 s of at most 60 s" in first
    assert "waiting" not in words.out
    assert as_json.json == PLAN
    assert as_json.err == ""


def test_figures_of_a_plan_have_one_form(gatekeeper: Run) -> None:
    with slow_server() as url:
        words = gatekeeper("gate", "run", "chat", "serving", "--plan", URL=url, TOKEN="t").out
    assert "minutes: at most about 1\u202f23" in words
    assert "tokens at most: 123\u202f456" in words
    assert "effect: −0.25" in words


def test_a_long_wait_is_told_again_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_AT_ONCE_S", 0.01)
    monkeypatch.setattr(waiting, "_EVERY_S", 0.02)
    with wait_for("a friend"):
        time.sleep(0.3)
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) > 1
    assert said.err.startswith("waiting for a friend: 0 s so far\n")
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_is_done_at_once_needs_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_AT_ONCE_S", 30.0)
    with wait_for("nothing"):
        pass
    assert capsys.readouterr().err == ""
