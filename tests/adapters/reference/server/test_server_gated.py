"""Two of these servers as the pair of a gate: what the adapter for running servers finds there."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from byte_models import write_byte_llama
from engine_server import serving_model
from gated_servers import gated
from gatekeeper_adapters.engines.openai_http.provider import PROVIDER

from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.running_pair import pair_document
from gatekeeper.protocols import Delta, Ending, ServerPair, ServerRequest
from gatekeeper.workloads.chat import chat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live import LiveServer

    from gatekeeper.protocols import Server

pytestmark = pytest.mark.torch

TEXT = chat([("user", "Say one two one two one two.")])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPair]:
    folder = write_byte_llama(tmp_path_factory.mktemp("gated") / "target")
    with (
        serving_model(folder, gamma=0, context=2048) as (baseline, _),
        serving_model(folder, context=2048) as (candidate, _),
    ):
        document = pair_document(
            baseline, candidate, model=None, gamma=4, version=PROVIDER.version()
        )
        found = PROVIDER.open(document, cache=Path(), max_batch=1, device="cpu")
        assert isinstance(found, ServerPair)
        yield found


def test_it_offers_all_that_the_gate_asks_for(pair: ServerPair) -> None:
    for server in (pair.baseline, pair.candidate):
        info = server.info
        assert (info.api, info.model) == ("chat", "target")
        assert (info.logprobs, info.retokenises, info.counters) == (True, True, True)
        assert info.readings["owned_by"] == "gatekeeper"
        assert "model.safetensors" in info.readings["weights"]
    for name in ("fingerprint", "version", "weights"):
        assert pair.baseline.info.readings[name] == pair.candidate.info.readings[name]


def test_texts_are_equal_and_drafts_are_counted(pair: ServerPair) -> None:
    async def ask(server: Server) -> tuple[list[Any], Any, Any]:
        request = ServerRequest("r", TEXT, 24, GREEDY, top=3)
        async with server.connect(1) as connection:
            before = await connection.counters()
            async with aclosing(connection.stream(request)) as stream:
                pieces = [piece async for piece in stream]
            return pieces, before, await connection.counters()

    texts = []
    for server, speculates in ((pair.baseline, False), (pair.candidate, True)):
        (*deltas, ending), before, after = asyncio.run(ask(server))
        assert isinstance(ending, Ending)
        assert (ending.reason, ending.tokens) == ("length", 24)
        texts.append("".join(delta.text for delta in deltas if isinstance(delta, Delta)))
        assert sum(len(delta.tokens) for delta in deltas) == 24
        assert (after.drafted - before.drafted, after.accepted - before.accepted) == (
            ending.drafted,
            ending.accepted,
        )
        assert bool(ending.drafted) is speculates
    assert texts[0] == texts[1]


@pytest.mark.model  # a tiny one, but the whole gate: not among the fast tests
@pytest.mark.timeout(600)
@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_both_are_gated_by_one_command(
    live_server: LiveServer, pair: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = ("--baseline-url", pair.baseline.info.url, "--candidate-url", pair.candidate.info.url)
    done = gated(live_server, monkeypatch, "--route", "ours", *urls, "--gamma", "4", "--wait")
    assert done.exit_code == 1, done.output
    assert "ours: bypass" in done.output
    with live_server.client("reader") as reader:
        views = {
            run["gate"]: reader.get(f"/v1/gate-runs/{run['id']}").json()["result"]
            for run in reader.get("/v1/gate-runs").json()["items"]
        }
    (greedy,) = [p for p in views["equivalence"]["parts"] if p["name"] == "greedy text"]
    assert greedy["outcome"] == "PASS", greedy
    (row,) = views["serving"]["summary"]["acceptance_matrix"]
    assert 0 < row["acceptance_rate"] <= 1
