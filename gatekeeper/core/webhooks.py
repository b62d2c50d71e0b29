"""Signed notices to other systems: secret, signature, times of retries, and where they may go.

The scheme is that of Standard Webhooks: ``webhook-id`` is the event's and the same on every try,
``webhook-timestamp`` is the try's, and ``webhook-signature`` is ``v1,`` and the base64 of
HMAC-SHA256 over ``id.timestamp.body``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gatekeeper.core.addresses import has_credentials, is_host, without_secrets
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "RETRY_S",
    "Network",
    "check_address",
    "check_target",
    "key_mark",
    "networks",
    "retry_delay_s",
    "secret_of",
    "sign",
    "verify",
]

RETRY_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21_600.0, 43_200.0, 86_400.0)
"""Seconds from one try to the next: ten tries over two days, then the event is dead."""

TOLERANCE_S = 300.0
"""How far a receiver's clock may be from a notice's timestamp; older ones may be replayed."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_JITTER = 0.2
_PREFIX = "whsec_"
_VERSION = "v1"
_MAX_URL = 2_000


def secret_of(key: bytes, webhook: str) -> str:
    """Return a subscription's secret: derived from the server's key, so the database holds none."""
    return _PREFIX + base64.b64encode(_hmac(key, f"webhook {webhook}".encode())).decode()


def key_mark(key: bytes) -> str:
    """Return what tells one server key from another without telling the key."""
    return _hmac(key, b"mark").hex()[:16]


def sign(secret: str, *, event: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``.

    Raises:
        InputError: the secret is not ``whsec_`` and base64.
    """
    content = f"{event}.{timestamp}.".encode() + body
    return f"{_VERSION},{base64.b64encode(_hmac(_bytes(secret), content)).decode()}"


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> bool:
    """Whether a notice is from whoever has the secret, unchanged, and not an old one sent again.

    Args:
        secret: as it was shown when the subscription was made.
        headers: of the request, by lower-case name.
        body: as received, byte for byte.
        now: seconds since 1970.
    """
    event, stated = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (stated.isascii() and stated.isdecimal() and abs(now - int(stated)) <= TOLERANCE_S):
        return False
    expected = sign(secret, event=event, timestamp=int(stated), body=body).encode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected, one.encode()) for one in given)


def retry_delay_s(attempt: int, uniform: float, *, asked_s: float = 0.0) -> float | None:
    """Seconds to wait after failed try ``attempt`` (1 is the first); None after the last.

    Args:
        attempt: how many tries were made.
        uniform: a number in [0, 1) that spreads those who failed together.
        asked_s: the receiver's own ``Retry-After``; honoured up to an hour.
    """
    if attempt > len(RETRY_S):
        return None
    spread = 1 + _JITTER * (2 * uniform - 1)
    return max(RETRY_S[attempt - 1] * spread, min(asked_s, 3600.0))


def networks(text: str | None) -> tuple[Network, ...]:
    """Read addresses and networks separated by commas, such as ``10.1.0.0/16,127.0.0.1``.

    Raises:
        InputError: one is none.
    """
    found = []
    for part in (text or "").split(","):
        if part.strip():
            try:
                found.append(ipaddress.ip_network(part.strip(), strict=False))
            except ValueError as error:
                raise InputError(
                    f"is not a network ({error})",
                    field="GATEKEEPER_WEBHOOK_NETWORKS",
                    value=part.strip(),
                    remedy="list addresses or networks such as 10.1.0.0/16, separated by commas",
                ) from error
    return tuple(found)


def check_target(url: str, allowed: Sequence[Network]) -> None:
    """Check where notices shall go, as far as the address alone says.

    Plain HTTP, and private addresses, only where ``allowed`` networks were set; a name is looked
    up, and checked, at each delivery.

    Raises:
        InputError: it is no such URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    problem = None
    if not (url.isascii() and url.isprintable() and " " not in url) or len(url) > _MAX_URL:
        problem = "is not a URL of printable ASCII"
    elif parts.scheme not in {"https", "http"} or not is_host(parts.hostname) or port == 0:
        problem = "is not an https:// URL with a host"
    elif has_credentials(url):
        problem = "holds a user or password"
    elif parts.fragment:
        problem = "holds a fragment, which is never sent"
    elif parts.scheme == "http" and not allowed:
        problem = "is not encrypted"
    if problem is not None:
        raise InputError(
            problem,
            field="url",
            value=without_secrets(url),
            remedy="use https://HOST/PATH; GATEKEEPER_WEBHOOK_NETWORKS lets private networks in",
        )
    try:
        literal = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return
    check_address(str(literal), allowed, encrypted=parts.scheme == "https")


def check_address(address: str, allowed: Sequence[Network], *, encrypted: bool) -> None:
    """Check an address that a target's name stands for, just before it is connected to.

    Raises:
        InputError: it is not public and not in an allowed network, or reached without TLS.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found.version == network.version and found in network for network in allowed):
        return
    if not found.is_global or found.is_multicast or found.is_reserved:
        raise InputError(
            "is not a public address",
            field="url",
            value=str(found),
            remedy="use a public receiver, or name its network in GATEKEEPER_WEBHOOK_NETWORKS",
        )
    if not encrypted:
        raise InputError(
            "would be reached without encryption",
            field="url",
            value=str(found),
            remedy="use https://, or name its network in GATEKEEPER_WEBHOOK_NETWORKS",
        )


def _bytes(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            "is not whsec_ and base64",
            field="secret",
            remedy="use the line that gatekeeper webhook add printed",
        ) from error


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()
