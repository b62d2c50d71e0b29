"""``gatekeeper watch`` between a live server and the engine's own HTTP server."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_server import HTTP, service_around
from engine_server import serving as serving_engine
from reported import ROUTE, policy, set_up

from gatekeeper.testing import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live import LiveServer

Run = Any


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine that has traffic whenever the watch sleeps."""
    slept, main = time.sleep, threading.main_thread()
    with serving_engine(service_around(FakeEngine(max_batch=2, agreement=0.2), gamma=3)) as url:

        def busy(seconds: float) -> None:
            if threading.current_thread() is not main:
                slept(seconds)
                return
            body = {"prompt": "hello", "max_tokens": 120}
            HTTP.post(f"{url}/v1/completions", json=body).raise_for_status()

        monkeypatch.setattr(time, "sleep", busy)
        yield url


def least(server: LiveServer, acceptance: float) -> None:
    document = policy()
    document["bypass"]["min_acceptance"] = acceptance
    with server.client("admin") as admin:
        admin.put("/v1/policies/demo", json=document).raise_for_status()


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_live_engine_is_bypassed_within_an_interval(
    live_server: LiveServer, engine: str, gatekeeper: Run
) -> None:
    set_up(live_server)
    least(live_server, 0.05)
    asked = ("watch", "--url", f"{engine}/metrics", "--route", ROUTE, "--once")
    settings = {"URL": live_server.url, "TOKEN": live_server.tokens["ingester"]}
    done = gatekeeper(*asked, **settings)
    assert done.status == 0, done.out + done.err
    assert f"{ROUTE}: ok; decision bypass (insufficient_evidence)" in done.out
    assert "draft queue: 0, the limit is 8" in done.out
    least(live_server, 0.95)
    with live_server.client("admin") as admin:
        force = {"route": ROUTE, "action": "enable", "gamma": 3, "reason": "t", "ttl_s": 60}
        admin.post("/v1/overrides", json=force).raise_for_status()
    done = gatekeeper(*asked, "--engine", "reference", "--json", **settings)
    assert done.status == 1, done.out + done.err
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["decision"]["action"] in {"enable", "bypass"}
    assert (second["outcome"], second["decision"]["reason"]) == ("alarm", "low_acceptance")
    assert second["counts"]["drafted"] > 200
    with live_server.client("reader") as reader:
        (one,) = reader.get("/v1/watches").json()["items"]
        assert (one["source"], one["kind"], one["looks"]) == (engine, "engine", 4)
        assert reader.get(f"/v1/routes/{ROUTE}/decision").json()["action"] == "bypass"


def test_what_cannot_be_watched_is_named(gatekeeper: Run) -> None:
    done = gatekeeper("watch", "--url", "engine", "--route", "r", TOKEN="t")
    assert (done.status, "url=engine: is not the address of a server" in done.err) == (2, True)
    done = gatekeeper("watch", "--url", "http://127.0.0.1:1", "--route", "r")
    assert (done.status, "GATEKEEPER_TOKEN" in done.err) == (2, True)
    away = {"URL": "http://127.0.0.1:1", "TOKEN": "t"}
    once = ("--once", "--interval", "0.1")
    done = gatekeeper("watch", "--url", "http://127.0.0.1:1", "--route", "r", *once, **away)
    assert (done.status, done.err.count("the look is kept")) == (1, 2)
