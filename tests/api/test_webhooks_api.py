"""Webhooks from the subscription to the receiver, which is a real one on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import text

from gatekeeper.actions import webhook_delivery
from gatekeeper.actions.identity import SYSTEM
from gatekeeper.actions.overrides import set_override
from gatekeeper.actions.webhook_delivery import Courier
from gatekeeper.actions.webhooks import WebhookSettings, load_key
from gatekeeper.core.webhooks import RETRY_S, networks, verify
from gatekeeper.errors import InputError
from gatekeeper.store.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Api = Any  # the fixture's class lives in conftest

SETTINGS = WebhookSettings(b"k" * 32, networks("127.0.0.0/8"))


@dataclass
class Receiver:
    """Keeps what arrives, and answers with the next of ``statuses``, else 200."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _own_loop() -> Iterator[None]:
    """Playwright's loop counts as running in between, for every test of the same process."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(found.statuses.pop(0) if found.statuses else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Retry-After", "7")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/hook?key=planted"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hooked(routed: Api, receiver: Receiver) -> tuple[Api, str, str]:
    """A server with one webhook; its id and secret."""
    object.__setattr__(routed.services, "webhooks", SETTINGS)
    answer = routed.admin.post("/v1/webhooks", json={"url": receiver.url})
    assert answer.status_code == 201, answer.text
    return routed, answer.json()["id"], answer.json()["secret"]


def decide(api: Api, reason: str = "incident") -> None:
    set_override(
        api.services.db, SYSTEM, route="prose", action="bypass", reason=reason, ttl_s=600.0
    )


def later(api: Api) -> None:
    """Let every wait and every claim be over."""
    with api.services.db.write() as session:
        session.execute(text("UPDATE webhook_deliveries SET next_at = 0, claimed_until = NULL"))


def events(api: Api, webhook: str, **query: str) -> list[dict[str, Any]]:
    answer = api.operator.get(f"/v1/webhooks/{webhook}/events", params=query)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_a_decision_reaches_its_subscriber_signed(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, webhook, secret = hooked
    decide(api)
    assert Courier(api.services.db, SETTINGS).deliver_due() == 1
    ((headers, body),) = receiver.got
    assert verify(secret, headers, body, now=time.time())
    notice, lease = json.loads(body), api.decision()
    assert notice["type"] == "decision.changed"
    assert notice["data"]["decision"]["version"] == lease["version"]
    assert notice["data"]["decision"]["reason"] == "override"
    assert notice["data"]["previous"]["reason"] == "insufficient_evidence"
    assert headers["webhook-id"] == "decision_{}_{}".format(*lease["version"])
    (event,) = events(api, webhook)
    assert (event["state"], event["status"], event["attempt"]) == ("delivered", 200, 1)
    assert Courier(api.services.db, SETTINGS).deliver_due() == 0


def test_the_secret_is_shown_once_and_stored_nowhere(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, _, secret = hooked
    decide(api)
    told = api.operator.get("/v1/webhooks").text
    told += api.admin.get("/v1/audit").text
    with api.services.db.read() as session:
        for table in ("webhooks", "webhook_deliveries", "audit"):
            told += str(session.execute(metadata.tables[table].select()).all())
    assert secret not in told
    assert secret.removeprefix("whsec_") not in told
    assert SETTINGS.key is not None
    assert SETTINGS.key.decode() not in told
    # a receiver's address may be a key itself
    assert "planted" not in api.operator.get("/v1/webhooks").text
    assert api.reader.get("/v1/webhooks").status_code == 403
    assert api.operator.post("/v1/webhooks", json={"url": receiver.url}).status_code == 403


def test_a_failure_is_tried_again_with_the_same_id_and_body(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, webhook, _ = hooked
    receiver.statuses = [500, 302, 200]  # a redirect is not followed
    decide(api)
    courier = Courier(api.services.db, SETTINGS)
    assert courier.deliver_due() == 1
    assert courier.deliver_due() == 0  # it waits
    (event,) = events(api, webhook)
    assert (event["state"], event["error"]) == ("pending", "HTTP 500")
    for _ in range(2):
        later(api)
        assert courier.deliver_due() == 1
    assert len(receiver.got) == 3
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert len({body for _, body in receiver.got}) == 1
    (event,) = events(api, webhook)
    assert (event["state"], event["attempt"]) == ("delivered", 3)


def test_after_the_last_try_it_is_dead_until_it_is_delivered_again(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, webhook, _ = hooked
    receiver.statuses = [503] * (len(RETRY_S) + 1)
    decide(api)
    courier = Courier(api.services.db, SETTINGS, count=api.services.metrics.count_notice)
    for _ in range(len(RETRY_S) + 1):
        assert courier.deliver_due() == 1
        later(api)
    assert courier.deliver_due() == 0
    (dead,) = events(api, webhook, state="dead")
    assert api.operator.get("/v1/webhooks").json()["items"][0]["events"] == {"dead": 1}
    page = api.anonymous.get("/metrics").text
    assert 'gatekeeper_webhook_notices{state="dead"} 1.0' in page
    assert 'gatekeeper_webhook_tries_total{outcome="failed"} 9.0' in page
    path = f"/v1/webhooks/{webhook}/redeliver"
    assert api.operator.post(path, json={"event": "decision_0_0"}).status_code == 404
    queued = api.operator.post(path, json={}).json()["items"]
    assert [one["event"] for one in queued] == [dead["event"]]
    assert courier.deliver_due() == 1
    (event,) = events(api, webhook)
    assert (event["state"], event["attempt"]) == ("delivered", 1)


def test_gone_is_not_tried_again(hooked: tuple[Api, str, str], receiver: Receiver) -> None:
    api, webhook, _ = hooked
    receiver.statuses = [410]
    decide(api)
    Courier(api.services.db, SETTINGS).deliver_due()
    assert events(api, webhook)[0]["state"] == "dead"


def test_many_servers_deliver_each_notice_once(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, webhook, _ = hooked
    for number in range(12):
        decide(api, f"incident {number}")
    couriers = [Courier(api.services.db, SETTINGS) for _ in range(4)]

    def deliver(courier: Courier) -> None:
        while courier.deliver_due():
            pass

    threads = [threading.Thread(target=deliver, args=(courier,)) for courier in couriers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for courier in couriers:
        deliver(courier)
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(ids) == len(set(ids)) == 12
    assert {event["state"] for event in events(api, webhook)} == {"delivered"}


def test_what_a_stopped_server_had_claimed_is_sent_by_another_once_the_claim_lapses(
    hooked: tuple[Api, str, str], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, webhook, _ = hooked
    decide(api)
    stopped = Courier(api.services.db, SETTINGS)
    late: list[Any] = []

    def killed(coroutine: Any) -> Any:
        late.append(asyncio.new_event_loop().run_until_complete(coroutine))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(webhook_delivery.asyncio, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            stopped.deliver_due()
    other = Courier(api.services.db, SETTINGS)
    assert other.deliver_due() == 0  # claimed
    later(api)
    assert other.deliver_due() == 1
    first, second = receiver.got
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert events(api, webhook)[0]["state"] == "delivered"


def test_another_key_or_none_delivers_nothing(hooked: tuple[Api, str, str]) -> None:
    api, _, _ = hooked
    decide(api)
    for settings in (WebhookSettings(), WebhookSettings(b"j" * 32, SETTINGS.networks)):
        assert Courier(api.services.db, settings).deliver_due() == 0
    object.__setattr__(api.services, "webhooks", WebhookSettings())
    refused = api.admin.post("/v1/webhooks", json={"url": "https://example.com"})
    assert refused.status_code == 503
    assert "openssl rand" in refused.json()["remedy"]


def test_a_name_that_stands_for_a_private_address_is_not_connected_to(
    routed: Api, receiver: Receiver
) -> None:
    """Checked at each delivery, and on the very address: a name can be bound anew at any time."""
    object.__setattr__(routed.services, "webhooks", WebhookSettings(SETTINGS.key))
    url = "https://localhost/hook"
    webhook = routed.admin.post("/v1/webhooks", json={"url": url}).json()["id"]
    decide(routed)
    reached: list[httpx.Request] = []
    transport = httpx.MockTransport(lambda request: reached.append(request) or httpx.Response(200))
    settings = WebhookSettings(SETTINGS.key)
    assert Courier(routed.services.db, settings, transport=transport).deliver_due() == 1
    assert reached == []
    (event,) = events(routed, webhook)
    assert event["state"] == "pending"
    assert "not a public address" in event["error"]
    refused = routed.admin.post("/v1/webhooks", json={"url": receiver.url})
    assert (refused.status_code, refused.json()["field"]) == (422, "url")
    assert "planted" not in refused.text


def test_removing_a_webhook_drops_what_waits_and_routes_are_kept_apart(
    hooked: tuple[Api, str, str], receiver: Receiver
) -> None:
    api, webhook, _ = hooked
    api.route("chat")
    body = {"url": receiver.url, "routes": ["chat"]}
    other = api.admin.post("/v1/webhooks", json=body).json()["id"]
    decide(api)
    assert events(api, other) == []
    assert "prose" in {event["route"] for event in events(api, webhook)}
    assert api.admin.delete(f"/v1/webhooks/{webhook}").is_success
    assert Courier(api.services.db, SETTINGS).deliver_due() == 0
    assert api.admin.delete(f"/v1/webhooks/{webhook}").status_code == 404
    assert api.operator.get(f"/v1/webhooks/{webhook}/events").status_code == 404
    missing = api.admin.post("/v1/webhooks", json={"url": receiver.url, "routes": ["nowhere"]})
    assert missing.status_code == 404


def test_the_key_of_a_home_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    key = load_key(None, tmp_path, shared=False)
    assert key == load_key(None, tmp_path, shared=False)
    assert (tmp_path / "webhook.key").stat().st_mode & 0o777 == 0o600
    assert load_key(None, tmp_path, shared=True) is None
    assert load_key("x" * 32, tmp_path, shared=True) == b"x" * 32
    with pytest.raises(InputError, match="WEBHOOK_KEY"):
        load_key("short", tmp_path, shared=False)
