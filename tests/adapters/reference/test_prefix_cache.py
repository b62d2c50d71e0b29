from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import Record, drive
from tiny_drafters import write_tiny_eagle

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BLOCK_BYTES = 2 * 2 * 16 * 2 * 8 * 4
"""Of the tiny target: layers, keys and values, tokens, heads, head size, float32."""

STATE_BYTES = 16 * 32 * 4


def text(size: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 97, size).tolist())


def families(count: int, **changes: Any) -> list[DecodeRequest]:
    """Prompts of two families: long common beginnings, ends of their own."""
    starts = [text(70, 1), text(41, 2)]
    return [
        DecodeRequest(
            f"r{i}", starts[i % 2] + text(1 + 5 * i, 10 + i), 10 + i, seed=i, gamma=i % 4, **changes
        )
        for i in range(count)
    ]


def keys(size: int) -> list[bytes]:
    from gatekeeper_adapters.engines.reference.prefix_cache import chain_keys

    return chain_keys(text(size, 0))


def test_a_key_stands_for_all_tokens_up_to_its_block() -> None:
    from gatekeeper_adapters.engines.reference.prefix_cache import chain_keys

    base = list(text(64, 0))
    chain = chain_keys(base)
    assert len(chain) == 3  # the last token is always computed, and its block with it
    assert len(chain_keys([*base, 1])) == 4
    assert chain_keys([*base, 1])[:3] == chain
    assert [len(chain_keys(base[:n])) for n in (1, 15, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]
    for place in (0, 15, 16, 47):
        changed = [*base]
        changed[place] += 1
        same = [a == b for a, b in zip(chain, chain_keys(changed), strict=True)]
        assert same == [i < place // 16 for i in range(3)]
    assert chain_keys(base[16:])[:2] != chain[1:]  # the same tokens elsewhere


def test_the_oldest_leaf_goes_first() -> None:
    from gatekeeper_adapters.engines.reference.prefix_cache import RecentChains

    recent = RecentChains(40)
    a, b, c, d, e = (bytes([i]) for i in range(5))
    assert recent.use({a: 10, b: 10, c: 10}) == []
    assert recent.use({a: 10, d: 10}) == []
    assert recent.use({e: 10}) == [c]  # never a block that another one needs
    assert recent.known([a, b, c]) == {a: 10, b: 10}
    assert recent.use(recent.known([a, b])) == []
    assert recent.use({c: 10}) == [d]
    assert recent.bytes == 40
    assert recent.use({a: 25, b: 10}) == [e, c]  # a block that grew
    assert recent.bytes == 35
    tight = RecentChains(25)
    assert tight.use({a: 10, b: 10, c: 10}) == [c]
    assert RecentChains(-5).use({a: 1}) == [a]


@pytest.mark.parametrize("kind", ["ngram", "draft_lm", "self"])
@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=1.0)])
def test_tokens_are_the_same_with_and_without(
    kind: str, sampling: SamplingSettings, open_tiny: Any
) -> None:
    requests = families(8, sampling=sampling)
    plain = drive(open_tiny(kind, max_batch=3), requests)
    engine = open_tiny(kind, max_batch=3, prefix_cache_bytes=1 << 24)
    first = drive(engine, requests)
    computed = engine.prefixes.counts.tokens
    again = drive(engine, requests)
    assert first.tokens == again.tokens == plain.tokens
    counts = engine.prefixes.counts
    assert counts.prompts == 16
    whole = sum((len(request.prompt) - 1) // 16 * 16 for request in requests)
    assert counts.tokens - computed == whole
    assert 0 < computed < whole
    assert counts.evictions == 0
    assert plain.rounds[0].memory_bytes < again.rounds[-1].memory_bytes


def test_copied_rows_are_the_same_bits(open_tiny: Any) -> None:
    engine = open_tiny("ngram", max_batch=3, prefix_cache_bytes=1 << 24)
    request = families(1)[0]
    drive(engine, [request])
    cache = engine._decoder.cache
    first = cache.buffer[:, :, 0, :64].clone()
    cache.buffer.zero_()
    for i in range(3):  # neighbouring slots, of different lengths
        engine.submit(DecodeRequest(f"x{i}", request.prompt[: 71 - 16 * i], 20, gamma=2))
    engine.step()
    lengths = [s.cached for s in engine._scheduler.active.values()]
    assert lengths == [71, 55, 39]
    for slot, count in enumerate((64, 48, 32)):
        assert torch.equal(cache.buffer[:, :, slot, :count], first[:, :, :count])
    assert float(cache.buffer[:, :, 0, 64:71].abs().min()) > 0


def test_a_prompt_of_known_blocks_alone_computes_only_what_is_left(open_tiny: Any) -> None:
    engine = open_tiny("ngram", prefix_cache_bytes=1 << 24)
    sizes = []
    forward = engine._decoder.forward

    def spy(batch: Any) -> Any:
        sizes.append(len(batch.tokens))
        return forward(batch)

    engine._decoder.forward = spy
    for size, left in ((64, 64), (65, 17), (65, 1), (64, 16), (80, 16)):
        drive(engine, [DecodeRequest("r", text(size, 0), 1)])
        assert sizes[-1] == left, size
    assert engine.prefixes.counts.hits == 4


def test_aligned_attention_keeps_its_promise(open_tiny: Any) -> None:
    """Blocks and pieces begin at multiples of 16 whether or not rows were copied in."""
    requests = families(6)
    plain = open_tiny("ngram", max_batch=3, prefill_chunk=48, invariant=True)
    engine = open_tiny(
        "ngram", max_batch=3, prefill_chunk=48, invariant=True, prefix_cache_bytes=1 << 24
    )
    alone = {}
    for request in requests:
        alone |= drive(plain, [request]).tokens
    drive(engine, requests)
    cache, reference = engine._decoder.cache, plain._decoder.cache
    for request in requests:
        assert drive(engine, [request]).tokens == {request.request_id: alone[request.request_id]}
        drive(plain, [request])
        count = len(request.prompt)
        same = torch.equal(cache.buffer[:, :, 0, :count], reference.buffer[:, :, 0, :count])
        assert same or plain.info.identity_rule != "bitwise"


def test_a_budget_evicts_and_never_changes_tokens(open_tiny: Any) -> None:
    requests = families(8)
    plain = drive(open_tiny("ngram", max_batch=2), requests)
    for blocks in (1, 5):
        engine = open_tiny("ngram", max_batch=2, prefix_cache_bytes=blocks * BLOCK_BYTES)
        for _ in range(2):
            assert drive(engine, requests).tokens == plain.tokens
        assert engine.prefixes.bytes == blocks * BLOCK_BYTES
        assert len(engine.prefixes._blocks) == blocks
        counts = engine.prefixes.counts
        assert counts.evictions > 0
        assert counts.displaced == 0  # look-up holds no memory
        assert engine.memory().target_kv == engine._decoder.cache.bytes + engine.prefixes.bytes


def test_evictions_that_the_draft_caused_are_told_apart(open_tiny: Any) -> None:
    draft = sum(open_tiny("draft_lm")._proposer.held())

    def counts(kind: str, blocks: int) -> Any:
        engine = open_tiny(kind, prefix_cache_bytes=draft + blocks * BLOCK_BYTES)
        for seed in range(6):
            drive(engine, [DecodeRequest("r", text(33, seed), 1)])
        return engine.prefixes.counts

    assert counts("draft_lm", 12).evictions == 0
    tight = counts("draft_lm", 4)  # 12 blocks, room for 4 beside the draft
    assert (tight.evictions, tight.displaced) == (8, 8)
    assert counts("ngram", 4).evictions == 0

    engine = open_tiny("draft_lm", prefix_cache_bytes=draft // 2)  # no room beside the draft
    for seed in range(2):
        drive(engine, [DecodeRequest("r", text(33, seed), 1)])
    assert engine.prefixes.bytes == 0
    assert engine.prefixes.counts.displaced == 4


def test_what_the_whole_budget_would_have_lost_too_is_not_the_drafts_doing() -> None:
    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.prefix_cache import PrefixCache
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

    cache = SlotCache(
        layers=2, slots=1, positions=64, kv_heads=2, head_dim=8, dtype=torch.float32, device="cpu"
    )
    prefixes = PrefixCache(cache, budget=4 * BLOCK_BYTES, draft=2 * BLOCK_BYTES)
    for seed, evicted, displaced in ((0, 0, 0), (1, 2, 2), (2, 4, 4), (0, 6, 6), (0, 6, 6)):
        prompt = text(33, seed)
        sequence = Sequence(DecodeRequest("r", prompt, 1), 0, list(prompt))
        prefixes.begin(sequence)
        prefixes.finish(sequence)
        found = prefixes.counts
        assert (found.evictions, found.displaced) == (evicted, displaced), seed
    sequence = Sequence(DecodeRequest("r", (*text(16, 0), *text(49, 5)), 1), 0, [])
    prefixes.finish(sequence)
    # Room for two: the second block of seed 0 goes, which room for four would not have kept either,
    # and the last two of these, which it would have.
    assert prefixes.counts.evictions == 6 + 3
    assert prefixes.counts.displaced == 6 + 2


@pytest.fixture(scope="module")
def eagle(tiny: Any) -> Any:
    return write_tiny_eagle(tiny.parent / "prefix-eagle", tiny)


def open_eagle(tiny: Any, eagle: Any, **options: Any) -> Any:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    return load_engine(
        tiny,
        {"kind": "eagle"},
        eagle,
        version="test",
        options=Options(**{"max_batch": 3, "max_context": 256, **options}),
    )


def test_a_proposer_that_reads_states_gets_those_of_the_prefix(tiny: Any, eagle: Any) -> None:
    requests = [
        DecodeRequest(f"r{i}", text(70, 1) + text(3 + i, 20 + i), 12, gamma=3) for i in range(4)
    ]
    plain = [drive(open_eagle(tiny, eagle), [request]) for request in requests]
    engine = open_eagle(tiny, eagle, prefix_cache_bytes=1 << 24, prefill_chunk=32)
    for request, alone in zip(requests, plain, strict=True):
        found = drive(engine, [request])
        assert found.tokens == alone.tokens
        # the same drafts too: the drafter knows what it would have learned
        assert [(e.drafted, e.accepted) for e in found.rounds] == [
            (e.drafted, e.accepted) for e in alone.rounds
        ]
    assert engine.prefixes.counts.tokens == 3 * 64
    assert engine.prefixes.bytes == 4 * (BLOCK_BYTES + STATE_BYTES)
    assert not engine.prefixes._read


def test_a_prefix_without_states_serves_ordinary_requests_until_they_are_known(
    tiny: Any, eagle: Any
) -> None:
    engine = open_eagle(tiny, eagle, prefix_cache_bytes=1 << 24)
    prompt = text(50, 3)
    plain = drive(engine, [DecodeRequest("a", prompt, 8)])
    counts = engine.prefixes.counts
    assert engine.prefixes.bytes == 3 * BLOCK_BYTES
    drive(engine, [DecodeRequest("b", prompt, 8)])
    assert counts.tokens == 48
    for tokens, size in ((48, BLOCK_BYTES + STATE_BYTES), (96, BLOCK_BYTES + STATE_BYTES)):
        record = drive(engine, [DecodeRequest("c", prompt, 8, gamma=2)])
        assert record.tokens["c"] == plain.tokens["a"]
        assert counts.tokens == tokens
        assert engine.prefixes.bytes == 3 * size


def test_cancelled_prompts_leave_nothing(tiny: Any, eagle: Any) -> None:
    engine = open_eagle(tiny, eagle, prefix_cache_bytes=1 << 24, prefill_chunk=16)
    engine.submit(DecodeRequest("r", text(100, 4), 8, gamma=2))
    record = Record()
    record.take(engine.step())
    assert engine.prefixes._read
    engine.cancel("r")
    assert not engine.prefixes._read
    assert engine.prefixes.bytes == 0


def test_there_is_none_unless_it_is_asked_for(open_tiny: Any) -> None:
    engine = open_tiny("ngram")
    assert engine.prefixes is None
    assert engine.memory().target_kv == engine._decoder.cache.bytes
