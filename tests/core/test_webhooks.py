from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from gatekeeper.core.webhooks import (
    RETRY_S,
    check_address,
    check_target,
    key_mark,
    networks,
    retry_delay_s,
    secret_of,
    sign,
    verify,
)
from gatekeeper.errors import InputError

KEY = b"k" * 32
BODY = b'{"type":"decision.changed"}'


def test_the_signature_is_that_of_standard_webhooks() -> None:
    secret = "whsec_" + base64.b64encode(b"s" * 32).decode()
    digest = hmac.new(b"s" * 32, b"msg_1.1700000000." + BODY, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(digest).decode()
    assert sign(secret, event="msg_1", timestamp=1_700_000_000, body=BODY) == expected


def test_only_a_fresh_and_unchanged_notice_verifies() -> None:
    secret = secret_of(KEY, "one")
    headers = {
        "webhook-id": "e",
        "webhook-timestamp": "1000",
        "webhook-signature": "v1,AAAA " + sign(secret, event="e", timestamp=1000, body=BODY),
    }
    assert verify(secret, headers, BODY, now=1200.0)
    assert not verify(secret, headers, BODY, now=1301.0)  # sent again by somebody who has kept it
    assert not verify(secret, headers, BODY + b" ", now=1000.0)
    assert not verify(secret, {**headers, "webhook-id": "f"}, BODY, now=1000.0)
    assert not verify(secret_of(KEY, "two"), headers, BODY, now=1000.0)
    assert not verify(secret, {**headers, "webhook-timestamp": "soon"}, BODY, now=1000.0)
    assert not verify(secret, {}, BODY, now=1000.0)


def test_a_secret_belongs_to_one_key_and_one_webhook() -> None:
    secrets = {secret_of(KEY, "one"), secret_of(KEY, "two"), secret_of(b"j" * 32, "one")}
    assert len(secrets) == 3
    assert len(base64.b64decode(secret_of(KEY, "one").removeprefix("whsec_"))) == 32
    assert key_mark(KEY) != key_mark(b"j" * 32)


def test_retries_back_off_with_jitter_and_end() -> None:
    waits = [retry_delay_s(attempt, 0.5) for attempt in range(1, len(RETRY_S) + 1)]
    assert waits == list(RETRY_S)
    assert retry_delay_s(1, 0.0) == pytest.approx(4.0)
    assert retry_delay_s(1, 0.999) == pytest.approx(6.0, abs=0.01)
    assert retry_delay_s(1, 0.5, asked_s=90.0) == 90.0
    assert retry_delay_s(1, 0.5, asked_s=1e9) == 3600.0
    assert retry_delay_s(len(RETRY_S) + 1, 0.5) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "ftp://example.com/hook",
        "https:///hook",
        "https://user:pass@example.com/hook",
        "https://example.com:0/hook",
        "https://example.com:99999/hook",
        "https://example.com/hook#part",
        "https://exa mple.com/",
        "https://127.0.0.1/hook",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://169.254.169.254/latest/meta-data",
        "https://10.1.2.3/",
        "https://[fd00::1]/",
        "https://224.0.0.1/",
        "https://0.0.0.0/",
    ],
)
def test_what_is_no_target(url: str) -> None:
    with pytest.raises(InputError, match="url"):
        check_target(url, ())


def test_what_is_a_target() -> None:
    check_target("https://example.com/hook?key=1", ())
    check_target("https://1.1.1.1/hook", ())
    check_target("http://127.0.0.1:8080/hook", networks("127.0.0.0/8"))
    with pytest.raises(InputError, match="public"):
        check_target("http://10.0.0.1/hook", networks("127.0.0.0/8"))
    with pytest.raises(InputError, match="encryption"):
        check_address("1.1.1.1", networks("127.0.0.0/8"), encrypted=False)
    with pytest.raises(InputError, match="network"):
        networks("10.0.0.0/99")
