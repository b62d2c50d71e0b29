"""The client against a real server: changes arrive, and silence ends in a bypass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest
from reported import ROUTE, override, set_up

from gatekeeper.client import BYPASS, ENABLE, DecisionClient

if TYPE_CHECKING:
    from live import LiveServer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Switch(httpx.HTTPTransport):
    """The network, until it is cut."""

    cut = False

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            raise httpx.ConnectError("cut", request=request)
        answer = super().handle_request(request)
        self.statuses.append(answer.status_code)
        return answer


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_lease_lapses_on_the_clients_own_clock_and_never_goes_back(
    live_server: LiveServer,
) -> None:
    set_up(live_server)
    clock, wire = Clock(), Switch()
    token = live_server.tokens["reader"]
    with DecisionClient(live_server.url, token, clock=clock, transport=wire) as decisions:
        assert decisions.refresh_all()
        assert decisions.decide(ROUTE).reason == "insufficient_evidence"
        assert decisions.refresh_all()
        assert wire.statuses == [200, 304]
        override(live_server, "enable", 3600, gamma=2)
        assert decisions.refresh_all()
        answer = decisions.decide(ROUTE)
        assert (answer.action, answer.gamma, answer.reason) == (ENABLE, 2, "override")
        wire.cut = True
        clock.now += 299
        assert not decisions.refresh_all()
        assert decisions.decide(ROUTE).action == ENABLE
        clock.now += 2
        assert decisions.decide(ROUTE).reason == "lease_lapsed"
        wire.cut = False
        assert decisions.refresh_all()
        assert decisions.decide(ROUTE).action == ENABLE


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_not_modified_never_carries_a_lease_beyond_its_end(live_server: LiveServer) -> None:
    """An override ends in 2 s: a 304 now must not let the client keep it for a minute."""
    set_up(live_server)
    clock = Clock()
    token = live_server.tokens["reader"]
    override(live_server, "enable", 2.0, gamma=2)
    wire = Switch()
    with DecisionClient(live_server.url, token, clock=clock, transport=wire) as decisions:
        assert decisions.refresh_all()
        time.sleep(0.5)
        clock.now += 0.5
        assert decisions.refresh_all()
        assert wire.statuses == [200, 200]
        wire.cut = True
        assert decisions.decide(ROUTE).action == ENABLE
        clock.now += 1.5
        assert decisions.decide(ROUTE).action == BYPASS


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_bypass_reaches_a_client_in_the_background_within_the_second(
    live_server: LiveServer,
) -> None:
    set_up(live_server)
    override(live_server, "enable", 3600, gamma=2)
    with DecisionClient(live_server.url, live_server.tokens["reader"], timeout_s=5) as decisions:
        decisions.start(interval_s=0.1)
        deadline = time.monotonic() + 20
        while decisions.decide(ROUTE).action != ENABLE and time.monotonic() < deadline:
            time.sleep(0.02)
        assert decisions.decide(ROUTE).action == ENABLE
        override(live_server, "bypass", 3600)
        while decisions.decide(ROUTE).action != BYPASS and time.monotonic() < deadline:
            time.sleep(0.02)
        assert decisions.decide(ROUTE).reason == "override"
