"""From the outbox to the receivers: any number of servers deliver, and each try is one server's.

A server that stops in the middle of a try leaves its claim to lapse, and the event is sent again
with the same id: receivers that keep the ids they have seen take each event once.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import structlog

from gatekeeper.core.webhooks import (
    check_address,
    check_target,
    key_mark,
    retry_delay_s,
    secret_of,
    sign,
)
from gatekeeper.errors import InputError, printable
from gatekeeper.store import webhooks as store

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.actions.webhooks import WebhookSettings
    from gatekeeper.store.database import Database, Session
    from gatekeeper.store.webhooks import DeliveryRecord

__all__ = ["Courier", "Sent"]

TRY_S = 15.0
"""Longest try, from looking the name up to the first line of the answer."""

CLAIM_S = 60.0
"""A claim outlives the longest try by far, so that two servers never send at a time."""

MOST = 16
KEEP_DELIVERED_S = 7 * 86_400.0
KEEP_DEAD_S = 30 * 86_400.0

_PRUNE_EVERY_S = 3600.0
_GONE = 410
_LONGEST_ERROR = 300

_log = structlog.get_logger()


@dataclass(frozen=True)
class Sent:
    """How one try ended: ``status`` is None where there was no answer."""

    status: int | None
    error: str | None
    asked_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the receiver has it."""
        return self.error is None


@dataclass
class Courier:
    """One server's deliveries.

    Args:
        settings: the key to sign with and the networks that may be reached.
        count: told "delivered", "failed" or "dead" after each try, for the metrics.
        transport: httpx transport, for tests.
    """

    db: Database
    settings: WebhookSettings
    count: Callable[[str], object] = field(default=lambda _outcome: None)
    transport: httpx.AsyncBaseTransport | None = None
    _pruned: float = float("-inf")
    _tls: ssl.SSLContext | None = None

    def deliver_due(self) -> int:
        """Try once what is due; return how many that were."""
        key = self.settings.key
        if key is None:
            return 0
        if time.monotonic() - self._pruned > _PRUNE_EVERY_S:
            self._pruned = time.monotonic()
            with self.db.write() as session:
                store.prune(session, delivered_s=KEEP_DELIVERED_S, dead_s=KEEP_DEAD_S)
        if not self._anything_due():
            return 0
        with self.db.write() as session:
            claimed = store.claim(session, key_mark(key), lease_s=CLAIM_S, most=MOST)
            urls = {record.webhook: _url(session, record.webhook) for record in claimed}
        if not claimed:
            return 0
        sent = asyncio.run(self._send_all(claimed, urls, key))
        with self.db.write() as session:
            for record, one in zip(claimed, sent, strict=True):
                self._settle(session, record, one)
        return len(claimed)

    def _anything_due(self) -> bool:
        """Look first without the write lock, which SQLite has only one of."""
        with self.db.read() as session:
            return store.is_due(session)

    def _settle(self, session: Session, record: DeliveryRecord, sent: Sent) -> None:
        wait_s: float | None = 0.0
        state = store.DELIVERED
        if not sent.good:
            wait_s = retry_delay_s(record.attempt, random.random(), asked_s=sent.asked_s)
            gone = sent.status == _GONE
            state = store.DEAD if wait_s is None or gone else store.PENDING
        mine = store.settle(
            session,
            record,
            state=state,
            wait_s=wait_s or 0.0,
            status=sent.status,
            error=sent.error,
        )
        if not mine:
            return
        self.count("failed" if state == store.PENDING else state)
        if not sent.good:
            _log.warning(
                "webhook not delivered",
                webhook=record.webhook,
                event_id=record.event,
                attempt=record.attempt,
                error=sent.error,
                state=state,
            )

    async def _send_all(
        self, claimed: list[DeliveryRecord], urls: dict[str, str], key: bytes
    ) -> list[Sent]:
        if self._tls is None and self.transport is None:
            self._tls = ssl.create_default_context()
        async with httpx.AsyncClient(
            verify=self._tls or True,
            transport=self.transport,
            timeout=TRY_S,
            # a proxy of the environment would connect to whatever the name stands for there
            trust_env=False,
            follow_redirects=False,
        ) as client:
            return list(
                await asyncio.gather(
                    *(self._send(client, record, urls[record.webhook], key) for record in claimed)
                )
            )

    async def _send(
        self, client: httpx.AsyncClient, record: DeliveryRecord, url: str, key: bytes
    ) -> Sent:
        try:
            async with asyncio.timeout(TRY_S):
                return await self._post(client, record, url, key)
        except TimeoutError:
            return Sent(None, f"no answer within {TRY_S:g} s")
        except InputError as error:
            return Sent(None, _short(f"refused: {error.message} ({error.value})"))
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            # by kind alone: a message may hold the address, and with it a key
            return Sent(None, f"cannot be reached ({type(error).__name__})")

    async def _post(
        self, client: httpx.AsyncClient, record: DeliveryRecord, url: str, key: bytes
    ) -> Sent:
        check_target(url, self.settings.networks)
        target = httpx.URL(url)
        address = await self._address(target)
        body = record.body.encode()
        timestamp = int(time.time())
        headers = {
            "Host": target.netloc.decode(),
            "Content-Type": "application/json",
            "User-Agent": "gatekeeper",
            "webhook-id": record.event,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(
                secret_of(key, record.webhook), event=record.event, timestamp=timestamp, body=body
            ),
        }
        # To the very address that was checked: looked up again, the name may stand for another.
        request = client.build_request(
            "POST",
            target.copy_with(host=address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": target.host},
        )
        response = await client.send(request, stream=True)
        await response.aclose()
        if response.is_success:
            return Sent(response.status_code, None)
        return Sent(
            response.status_code,
            f"HTTP {response.status_code}",
            _seconds(response.headers.get("Retry-After")),
        )

    async def _address(self, target: httpx.URL) -> str:
        port = target.port or (443 if target.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(target.host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            # all of them: one private address among public ones is how a name is rebound
            encrypted = target.scheme == "https"
            check_address(address, self.settings.networks, encrypted=encrypted)
        return addresses[0]


def _url(session: Session, webhook_id: str) -> str:
    record = store.get(session, webhook_id)
    return "" if record is None else record.url


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdecimal() else 0.0


def _short(text: str) -> str:
    return printable(text)[:_LONGEST_ERROR]
