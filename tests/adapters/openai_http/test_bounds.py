"""Answers of servers that lie, trickle or never end."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from gatekeeper_adapters.engines.openai_http import bounds
from gatekeeper_adapters.engines.openai_http.wire import Reader, counters, event_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def ask(monkeypatch: pytest.MonkeyPatch, answer: httpx.Response) -> httpx.Response:
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *_: answer)
    with httpx.Client(transport=bounds.Bounded()) as client:
        return client.get("http://server/")


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 65_536


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(httpx.ReadError, match="bytes"):
        ask(monkeypatch, httpx.Response(200, content=endless()))
    monkeypatch.setattr(bounds, "MAX_S", -1.0)
    with pytest.raises(httpx.ReadError, match="longer"):
        ask(monkeypatch, httpx.Response(200, content=iter([b"x"])))


def test_a_packed_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = httpx.Response(
        200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(gzip.compress(b"x"))
    )
    with pytest.raises(httpx.ReadError, match="packed"):
        ask(monkeypatch, packed)


def test_nesting_beyond_reading_is_no_event() -> None:
    with pytest.raises(ValueError, match="deeply"):
        event_of("data: " + '{"a":' * 100_000)


@pytest.mark.parametrize("count", [-3, 10**30, True, "4", 1.5])
def test_a_count_that_is_none_is_not_kept(count: Any) -> None:
    reader = Reader()
    reader.read(json.loads(json.dumps({"usage": {"completion_tokens": count}})))
    reader.finish = "stop"
    assert reader.ending().tokens is None


@pytest.mark.parametrize("total", ["-1", "1e308", "NaN"])
def test_totals_that_are_none_are_not_read(total: str) -> None:
    names = ("drafts", "draft_tokens", "accepted_tokens")
    text = "".join(f"vllm:spec_decode_num_{name}_total {total}\n" for name in names)
    assert counters(text) is None
