from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gatekeeper.client import BYPASS, ENABLE, DecisionClient, RequestContext
from gatekeeper.core.bypass import Envelope, Lease


def lease(
    version: tuple[int, int] = (1, 5),
    action: str = ENABLE,
    ttl_s: float = 60.0,
    max_stale_s: float = 300.0,
) -> Any:
    enabled = action == ENABLE
    return Lease(
        route="r",
        action=action,
        variant="speculative" if enabled else "baseline",
        gamma=2 if enabled else 0,
        gamma_by_concurrency={1: 4, 4: 2} if enabled else {},
        artifact="a" * 64,
        reason="gates_passed" if enabled else "serving_failed",
        explanation="because",
        gates=(),
        value=None,
        envelope=Envelope(max_concurrency=4, max_context_tokens=500),
        version=version,
        decided_at=datetime(2030, 1, 1, tzinfo=UTC),
        evidence_expires_at=None,
        ttl_s=ttl_s,
        max_stale_s=max_stale_s,
    ).to_dict()


class Server:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = []

    def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, json=answer)


class Clock:
    now = 1000.0

    def __call__(self) -> Any:
        return self.now


def client(server: Server, clock: Any = None) -> Any:
    return DecisionClient(
        "http://server", "secret", clock=clock or Clock(), transport=httpx.MockTransport(server)
    )


def test_enable_inside_the_envelope_and_bypass_outside() -> None:
    server = Server(lease())
    with client(server) as decisions:
        assert decisions.decide("r", RequestContext(concurrency=1)).gamma == 4
        assert decisions.decide("r", RequestContext(concurrency=4)).gamma == 2
        outside = decisions.decide("r", RequestContext(concurrency=5))
        assert (outside.action, outside.reason) == (BYPASS, "outside_envelope")
    assert len(server.asked) == 1  # a fresh lease is used without asking again
    assert server.asked[0].url.path == "/v1/routes/r/decision"
    assert server.asked[0].headers["authorization"] == "Bearer secret"


def test_a_lease_is_renewed_at_half_its_life() -> None:
    server, clock = Server(lease()), Clock()
    with client(server, clock) as decisions:
        decisions.decide("r")
        clock.now += 29
        decisions.decide("r")
        assert len(server.asked) == 1
        clock.now += 2
        decisions.decide("r")
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(500),
        httpx.Response(401),
        httpx.Response(404),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"route": "r"}),
        lease(version=(1, 4)),  # older than what is known
        lease(version=(0, 99)),  # an older epoch, however high its counter
    ],
    ids=lambda t: type(t).__name__,
)
def test_trouble_keeps_the_lease_until_it_lapses_then_bypasses(trouble: Any) -> None:
    server, clock = Server(lease(), trouble), Clock()
    with client(server, clock) as decisions:
        assert decisions.decide("r").action == ENABLE
        clock.now += 299
        assert decisions.decide("r").action == ENABLE
        assert decisions.trouble("r")
        clock.now += 2
        lapsed = decisions.decide("r")
        assert (lapsed.action, lapsed.reason, lapsed.gamma) == (BYPASS, "lease_lapsed", 0)


def test_without_any_answer_bypass() -> None:
    with client(Server(httpx.ConnectError("refused"))) as decisions:
        assert decisions.decide("r").action == BYPASS


def test_an_unreachable_server_is_not_asked_for_every_request() -> None:
    server, clock = Server(httpx.ConnectError("refused")), Clock()
    with client(server, clock) as decisions:
        for _ in range(20):
            decisions.decide("r")
        assert len(server.asked) == 1
        clock.now += 1.5
        decisions.decide("r")
        assert len(server.asked) == 2


def test_a_newer_bypass_replaces_an_enable_at_once() -> None:
    server, clock = Server(lease(), lease(version=(1, 6), action=BYPASS)), Clock()
    with client(server, clock) as decisions:
        decisions.decide("r")
        assert decisions.refresh("r")
        answer = decisions.decide("r")
        assert (answer.action, answer.reason) == (BYPASS, "serving_failed")


def test_a_restored_server_with_a_new_epoch_is_believed() -> None:
    with client(Server(lease(), lease(version=(2, 1), action=BYPASS))) as decisions:
        decisions.decide("r")
        decisions.refresh("r")
        assert decisions.decide("r").action == BYPASS


def snapshot(*leases: Any, version: tuple[int, int] = (1, 5), etag: str = '"a"') -> Any:
    body = {"version": list(version), "items": list(leases)}
    return httpx.Response(200, json=body, headers={"ETag": etag})


def test_in_the_background_decide_never_waits_for_the_network() -> None:
    server = Server(snapshot(lease(ttl_s=0.2, max_stale_s=0.2)))
    decisions = DecisionClient("http://server", "t", transport=httpx.MockTransport(server))
    decisions.start(interval_s=0.01)
    decisions.start(interval_s=0.01)  # once is enough
    deadline = time.monotonic() + 10
    while decisions.decide("r").action != ENABLE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert decisions.decide("r").action == ENABLE
    assert decisions.decide("unheard-of").reason == "lease_lapsed"
    server.answers = [httpx.ConnectError("gone")]
    while decisions.decide("r").action != BYPASS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert decisions.decide("r").reason == "lease_lapsed"
    decisions.close()
    assert {request.url.path for request in server.asked} == {"/v1/decisions/snapshot"}


def test_not_modified_renews_what_the_snapshot_held() -> None:
    server, clock = Server(snapshot(lease()), httpx.Response(304)), Clock()
    with client(server, clock) as decisions:
        assert decisions.refresh_all()
        assert "if-none-match" not in server.asked[0].headers
        for _ in range(4):
            clock.now += 200
            assert decisions.refresh_all()
            assert decisions.decide("r").action == ENABLE
        assert server.asked[1].headers["if-none-match"] == '"a"'
        assert len([r for r in server.asked if r.url.path.endswith("snapshot")]) == 5
        clock.now += 301
        server.answers = [httpx.ConnectError("gone")]
        assert not decisions.refresh_all()
        assert decisions.decide("r").reason == "lease_lapsed"


def test_not_modified_says_nothing_of_a_lease_from_elsewhere() -> None:
    newer = lease(version=(1, 6), ttl_s=10, max_stale_s=10)
    server, clock = Server(snapshot(lease()), newer, httpx.Response(304)), Clock()
    with client(server, clock) as decisions:
        assert decisions.refresh_all()
        assert decisions.refresh("r")
        clock.now += 11
        assert decisions.refresh_all()
        server.answers = [httpx.ConnectError("gone")]
        assert decisions.decide("r").action == BYPASS


@pytest.mark.parametrize(
    "answer",
    [
        snapshot(lease(version=(1, 4), action=ENABLE), version=(1, 4)),
        snapshot(lease(version=(0, 9), action=ENABLE), version=(0, 9)),
        snapshot({**lease(version=(1, 7)), "gamma": "many"}, version=(1, 7)),
        httpx.Response(200, json={"version": [1, 7]}),
        httpx.Response(200, text="<html>"),
        httpx.Response(304),  # though nothing was asked of a snapshot
        httpx.Response(500),
    ],
    ids=["older", "older epoch", "half a lease", "no items", "html", "304", "500"],
)
def test_an_older_or_unreadable_snapshot_changes_nothing(answer: Any) -> None:
    server, clock = Server(lease(version=(1, 5), action=BYPASS), answer), Clock()
    with client(server, clock) as decisions:
        assert decisions.refresh("r")
        if answer.headers.get("ETag") == '"a"' and b"many" not in answer.content:
            server.answers = [snapshot(lease(version=(1, 5), action=BYPASS)), answer]
            assert decisions.refresh_all()
        assert not decisions.refresh_all()
        assert decisions.trouble("r")
        assert decisions.decide("r").reason == "serving_failed"


def test_a_newer_snapshot_replaces_every_lease_and_clears_the_trouble() -> None:
    other = {**lease(version=(1, 6)), "route": "s"}
    bypass = lease(version=(1, 7), action=BYPASS)
    server = Server(
        snapshot(lease()),
        httpx.ConnectError("gone"),
        snapshot(bypass, other, version=(1, 7), etag='"b"'),
    )
    with client(server) as decisions:
        assert decisions.refresh_all()
        assert not decisions.refresh_all()
        assert decisions.trouble("r") == "gone"
        assert decisions.refresh_all()
        assert decisions.trouble("r") is None
        assert decisions.decide("r").action == BYPASS
        assert decisions.decide("s").action == ENABLE


def test_importing_the_client_loads_no_heavy_library() -> None:
    heavy = ["numpy", "pandas", "scipy", "sqlalchemy", "fastapi", "pydantic", "torch", "yaml"]
    code = f"import sys, gatekeeper.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LIES = {
    "another route": {"route": "other"},
    "no lapse": {"ttl_s": float("inf")},
    "a limit of text": {"envelope": {"max_concurrency": "8"}},
    "a window without end": {"gamma": float("inf")},
    "no interval": {"value": {"per_task": 1, "low": 2, "high": 0, "currency": "EUR"}},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lease_that_can_be_none_is_a_bypass_and_never_raises(lie: dict[str, Any]) -> None:
    text = json.dumps({**lease(), **lie})
    with client(Server(httpx.Response(200, text=text))) as decisions:
        assert decisions.decide("r", RequestContext(concurrency=1)).action == BYPASS
        assert decisions.trouble("r")


@pytest.mark.parametrize("text", ["[" * 100_000, " " * (17 * 1024**2)], ids=["deep", "huge"])
def test_an_answer_beyond_use_is_a_bypass(text: str) -> None:
    with client(Server(httpx.Response(200, text=text))) as decisions:
        assert decisions.decide("r").action == BYPASS
        assert not decisions.refresh_all()


def test_any_name_is_one_segment_of_the_path() -> None:
    server = Server(lease())
    with client(server) as decisions:
        for name in ("../x", "a/b?c#d", "\x00", "\ud800"):
            assert decisions.decide(name).action == BYPASS
    assert [r.url.raw_path for r in server.asked[:2]] == [
        b"/v1/routes/..%2Fx/decision",
        b"/v1/routes/a%2Fb%3Fc%23d/decision",
    ]


def test_an_answer_that_trickles_in_is_given_up() -> None:
    def slowly() -> Any:
        for _ in range(100):
            time.sleep(0.02)
            yield b" "

    with client(Server(httpx.Response(200, content=slowly()))) as decisions:
        began = time.monotonic()
        assert decisions.decide("r").action == BYPASS
        assert time.monotonic() - began < 1.5
