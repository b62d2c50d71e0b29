"""The stream of decisions against a real server, and the client that follows it."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from live import serving
from reported import ROUTE, override, set_up

from gatekeeper.client import BYPASS, ENABLE, DecisionClient
from gatekeeper.client.events import Event, events
from gatekeeper.client.follower import SILENCE_S, Follower

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer

    from gatekeeper.store.database import Database

SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
STREAM = "/v1/decisions/stream"


class Reader:
    """One stream, read by hand."""

    def __init__(self, client: httpx.Client, **headers: str) -> None:
        self._manager = client.stream("GET", STREAM, headers=headers)
        self.response = self._manager.__enter__()
        self._parts = self.response.iter_bytes()
        self._rest = b""

    def next(self) -> tuple[str, str, Any]:
        """The next event that is no comment: id, name and data."""
        while True:
            while b"\n\n" not in self._rest:
                self._rest += next(self._parts)
            block, _, self._rest = self._rest.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in block.decode().splitlines())
            if "event" in fields:
                return fields["id"], fields["event"], json.loads(fields["data"])

    def news(self) -> tuple[str, str, Any]:
        """The next event that brings something."""
        while True:
            found = self.next()
            if found[1] != "confirm":
                return found

    def drain(self) -> None:
        """Read to the end."""
        for _ in self._parts:
            pass

    def close(self) -> None:
        self._manager.__exit__(None, None, None)


@SQLITE
def test_events_bring_what_is_new_and_resume_after_an_id(live_server: LiveServer) -> None:
    set_up(live_server)
    with live_server.client("reader") as http:
        reader = Reader(http)
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        first, name, data = reader.next()
        assert (name, data["complete"], len(data["items"])) == ("leases", True, 1)
        override(live_server, "enable", 3600, gamma=2)
        second, name, data = reader.news()
        assert (name, data["complete"]) == ("leases", False)
        assert [item["reason"] for item in data["items"]] == ["override"]
        assert second == "{}.{}".format(*data["version"])
        assert [int(p) for p in second.split(".")] > [int(p) for p in first.split(".")]
        reader.close()
        for known, fresh in ((first, 1), (second, 0), ("0.0", 1), ("nonsense", 1)):
            again = Reader(http, **{"Last-Event-ID": known})
            identity, name, data = again.next()
            assert (identity, name, len(data["items"])) == (second, "leases", fresh)
            assert data["complete"] == (known not in {first, second})
            again.close()


@SQLITE
def test_a_stream_confirms_is_bounded_and_ends_with_its_token_and_its_server(
    db: Database, tmp_path: Path
) -> None:
    with serving(db, tmp_path / "evidence") as server:
        set_up(server)
        feed = server.services.feed
        feed.heartbeat_s, feed.most = 0.2, 2
        with server.client("admin") as admin:
            made = admin.post("/v1/tokens", json={"name": "x", "role": "reader"}).json()
        mine = httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {made['token']}"}, timeout=20
        )
        with server.client("reader") as http, mine:
            reader, doomed = Reader(http), Reader(mine)
            assert [reader.next()[1] for _ in range(3)] == ["leases", "confirm", "confirm"]
            refused = http.get(STREAM)
            assert (refused.status_code, refused.json()["field"]) == (429, "stream")
            assert refused.headers["retry-after"]
            with server.client("admin") as admin:
                admin.delete(f"/v1/tokens/{made['id']}")
            doomed.drain()
            doomed.close()
            deadline = time.monotonic() + 20
            while feed.open > 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert feed.open == 1  # the place is free again
            began = time.monotonic()
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            reader.drain()
            stopping.join()
            assert time.monotonic() - began < 20  # and the server did not wait for its own stream
            reader.close()


@SQLITE
def test_a_stream_holds_the_routes_of_its_token_alone(live_server: LiveServer) -> None:
    set_up(live_server)
    live_server.services.feed.heartbeat_s = 0.2
    scope = {"name": "x", "role": "reader", "routes": ["elsewhere"]}
    with live_server.client("admin") as admin:
        route = admin.get(f"/v1/routes/{ROUTE}").json()
        body = {name: route[name] for name in ("slice", "artifact", "policy")}
        assert admin.put("/v1/routes/elsewhere", json=body).is_success
        secret = admin.post("/v1/tokens", json=scope).json()["token"]
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=live_server.url, headers=headers, timeout=20) as mine:
        reader = Reader(mine)
        _, _, data = reader.next()
        assert [item["route"] for item in data["items"]] == ["elsewhere"]
        override(live_server, "enable", 3600, gamma=2)  # of the other one
        _, _, data = reader.news()
        assert data["items"] == []
        reader.close()


@SQLITE
def test_an_outage_confirms_nothing(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gatekeeper.errors import Unavailable

    set_up(live_server)
    live_server.services.feed.heartbeat_s = 0.1
    with live_server.client("reader") as http:
        reader = Reader(http)
        reader.next()

        def gone(*_: object) -> None:
            raise Unavailable("does not answer", field="database")

        monkeypatch.setattr("gatekeeper.actions.snapshots.read_decisions", gone)
        heard = b""
        while b"does not answer" not in heard:
            heard = next(reader._parts)
        for _ in range(5):
            assert b"confirm" not in next(reader._parts)
        reader.close()


@SQLITE
def test_the_client_follows_the_stream_and_falls_back_to_asking(live_server: LiveServer) -> None:
    set_up(live_server)
    paths: list[str] = []

    class Seen(httpx.HTTPTransport):
        refuse = False

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            paths.append(request.url.path)
            if self.refuse and request.url.path == STREAM:
                raise httpx.ConnectError("refused", request=request)
            return super().handle_request(request)

    def until(decisions: DecisionClient, action: str) -> None:
        deadline = time.monotonic() + 30
        while decisions.decide(ROUTE).action != action and time.monotonic() < deadline:
            time.sleep(0.02)
        assert decisions.decide(ROUTE).action == action

    token = live_server.tokens["reader"]
    with DecisionClient(live_server.url, token, timeout_s=20, transport=Seen()) as decisions:
        decisions.start(interval_s=0.1, stream=True)
        override(live_server, "enable", 3600, gamma=2)
        until(decisions, ENABLE)
        override(live_server, "bypass", 3600)
        until(decisions, BYPASS)
    assert set(paths) == {STREAM}
    with live_server.client("admin") as admin:
        assert admin.delete(f"/v1/overrides/{ROUTE}").is_success
    override(live_server, "enable", 3600, gamma=2)
    wire = Seen()
    wire.refuse = True
    with DecisionClient(live_server.url, token, timeout_s=20, transport=wire) as decisions:
        decisions.start(interval_s=0.1, stream=True)
        until(decisions, ENABLE)
    assert "/v1/decisions/snapshot" in paths


def test_a_reader_that_stood_still_takes_nothing_from_the_buffer() -> None:
    """A process paused beyond its leases finds confirmations that waited in its socket."""
    now = [0.0]
    parts = [b"event: confirm\ndata: {}\n\n"] * 3

    def body() -> Any:
        for part in parts:
            yield part
            now[0] += SILENCE_S + 1

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body()))
    with httpx.Client(transport=transport, base_url="http://server") as http:
        follower = Follower(http, timeout_s=1, clock=lambda: now[0], most=1000)
        taken = follower.events((0, 0))
        assert next(taken).name == "confirm"
        with pytest.raises(ValueError, match="silent"):
            next(taken)


def test_events_in_any_pieces_and_no_endless_one() -> None:
    whole = b"retry: 1\n\n: hello\n\nid: 1.2\nevent: leases\ndata: {}\n\n"
    expected = [Event("", b""), Event("", b""), Event("leases", b"{}")]
    for size in (1, 7, len(whole)):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert list(events(parts, most=100)) == expected
    with pytest.raises(ValueError, match="bytes"):
        list(events([b"x" * 200], most=100))
