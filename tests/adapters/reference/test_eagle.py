"""A drafter over the target's features: exact text, and a cache that follows what was committed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from proposer_cases import CASES, open_case, write_files
from tiny_drafters import write_relay

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from dense_eagle import DenseEagle  # noqa: E402 - after the skip

HOT = SamplingSettings(temperature=1.0)
SHAPES = ["chain", "tree", "paths"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A target and its drafter, by name: often right, and exactly right."""
    root = tmp_path_factory.mktemp("eagle")
    return {"faint": write_files("eagle", root), "relay": write_relay(root / "relay")}


@pytest.fixture(scope="module")
def build(folders: dict[str, tuple[Path, Path]]) -> Callable[..., Any]:
    def make(shape: str = "chain", name: str = "faint", **options: Any) -> Any:
        return open_case(CASES[f"eagle {shape}"], folders[name], **options)

    return make


def rate(record: Any) -> float:
    return sum(r.accepted for r in record.rounds) / sum(r.drafted for r in record.rounds)


# --- features and tokens belong together ---------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_right_features_predict_a_target_of_two_words_exactly(shape: str, build: Any) -> None:
    engine = build(shape, "relay")
    assert rate(drive(engine, ragged(8, gamma=4))) == 1.0
    record = drive(engine, ragged(8, gamma=4, sampling=HOT, evidence=True))
    assert rate(record) > 0.99  # q = p up to rounding: a rejection is possible but rare
    for request in ragged(8, gamma=4, sampling=HOT):
        tokens = record.tokens[request.request_id]
        q = np.concatenate([e.q for e in record.emissions if e.request_id == request.request_id])
        known = ~np.isnan(q).any(axis=1)
        p = engine.score(request.prompt, tokens, HOT).p
        np.testing.assert_allclose(q[known], p[known], atol=1e-4)
        assert known.sum() > 0.9 * len(tokens)


@pytest.mark.parametrize("by", [-1, 1])
def test_features_of_a_neighbouring_position_do_not(by: int, build: Any) -> None:
    engine = build("chain", "relay")
    learn = engine._proposer.learn

    def shifted(sequence: Any, start: int, states: Any) -> None:
        learn(sequence, start, states.roll(by, dims=0) if len(states) > 1 else states * 0)

    engine._proposer.learn = shifted
    assert rate(drive(engine, ragged(8, gamma=4))) < 0.5


# --- the draft cache follows the text ------------------------------------------------------------


def states_of(engine: Any, tokens: list[int]) -> Any:
    """The target's states of a text, all at once, in a fresh engine's last slot."""
    from gatekeeper_adapters.engines.reference.packing import Segment, pack

    decoder = engine._decoder
    slot = decoder.cache.slots - 1
    with torch.inference_mode():
        return decoder.forward_with_states(pack([Segment(slot, 0, tokens, 0)], decoder.cache))[1]


class Skipping:
    """Asks the proposer in some rounds only, as an adaptive window does."""

    def __init__(self, inner: Any, share: float) -> None:
        self._inner = inner
        self._rng = np.random.default_rng(5)
        self._share = share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, windows: Any) -> Any:
        from gatekeeper_adapters.engines.reference.tree import NOTHING

        asked = [self._rng.random() < self._share for _ in windows]
        chosen = [each for each, ask in zip(windows, asked, strict=True) if ask]
        found = iter(self._inner.propose(chosen) if chosen else ())
        return [next(found) if ask else NOTHING for ask in asked]


def watched(engine: Any) -> Iterator[tuple[list[int], Any, Any]]:
    """After each step: a live sequence's text, its rows of the draft cache, its first draft logits."""
    proposer = engine._proposer
    begin = proposer._begin
    seen: dict[str, tuple[list[int], Any]] = {}

    def begun(windows: Any) -> Any:
        branches, logits = begin(windows)
        for each, row in zip(branches, logits, strict=True):
            seen[each.sequence.id] = (list(each.sequence.tokens), row.clone())
        return branches, logits

    inner = getattr(proposer, "_inner", proposer)
    inner._begin = begun
    while engine._scheduler.active or engine._scheduler._waiting:
        engine.step()
        for sequence in engine._scheduler.active.values():
            if sequence.id in seen:
                tokens, row = seen.pop(sequence.id)
                rows = inner._followed[sequence.id].true
                assert rows == len(tokens) - 1
                yield tokens, inner._net.cache.buffer[:, :, sequence.slot, :rows].clone(), row


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("shape", ["chain", "paths"])
def test_the_cache_equals_one_computed_from_scratch(
    shape: str, share: float, build: Any, folders: Any
) -> None:
    """Whatever was accepted, rejected or not asked, and whoever had the slot before."""
    from gatekeeper_adapters.engines.reference.loader import Switches
    from gatekeeper_adapters.engines.reference.packing import Segment

    engine = build(
        shape,
        max_batch=3,
        prefill_chunk=32,
        switches=Switches(wrap=lambda inner: Skipping(inner, share)),
    )
    fresh = build(shape)
    target, draft = folders["faint"]
    dense, net = DenseEagle(draft, target), fresh._proposer._net
    for request in ragged(8, gamma=4, tokens=9, sampling=HOT):
        engine.submit(request)
    checked = 0
    for tokens, rows, row in watched(engine):
        states = states_of(fresh, tokens[:-1])
        with torch.inference_mode():
            net.forward(net.pack([Segment(0, 0, tokens[1:], 0)]), states)
        wanted = net.cache.buffer[:, :, 0, : len(tokens) - 1]
        torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-3)
        if checked % 25 == 0:
            expected = dense.after(tokens, states, [])
            torch.testing.assert_close(row, expected, atol=1e-3, rtol=1e-3)
        checked += 1
    assert checked > 15


def test_a_round_reads_only_what_is_new(build: Any) -> None:
    """Once the prompt is read a round costs its window and what the last rounds committed."""
    engine = build(max_batch=1)
    net = engine._proposer._net
    forward, sizes = net.forward, []

    def counting(batch: Any, states: Any) -> Any:
        sizes.append(len(batch.tokens))
        return forward(batch, states)

    net.forward = counting
    record = drive(engine, [DecodeRequest("a", tuple(range(50)), 60, gamma=3)])
    first, *later = [size for size in sizes if size]
    assert first == 50  # the prompt's pairs and the first token's, in one forward
    assert max(later) <= 4
    committed = sum(r.committed for r in record.rounds)
    catching_up = sum(later) - sum(r.drafted for r in record.rounds)
    assert catching_up <= committed


def test_a_prefix_from_elsewhere_is_learnt_like_any_other(build: Any, folders: Any) -> None:
    """Its states come at once, before the target has cached the rest of the prompt."""
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

    fresh = build()
    prompt = tuple(range(3, 60, 2))
    states = states_of(fresh, list(prompt))
    drafts = []
    for cuts in ((0, 29), (0, 16, 29), (0, 16, 17, 29)):
        proposer = build()._proposer
        sequence = Sequence(DecodeRequest("a", prompt, 9, gamma=3), 2, list(prompt))
        with torch.inference_mode():
            proposer.admit(sequence)
            proposer.learn(sequence, 0, states[: cuts[1]])
            for first, last in pairwise(cuts[1:]):
                proposer.prefill([(sequence, last)])
                proposer.learn(sequence, first, states[first:last])
            sequence.append([8])
            (tree,) = proposer.propose([(sequence, 3)])
        drafts.append(tree.tokens)
        assert len(tree.tokens) == 3
    assert drafts[0] == drafts[1] == drafts[2]


def test_a_gap_in_the_states_ends_drafting_and_nothing_else(build: Any) -> None:
    engine = build()
    plain = drive(engine, ragged(3, gamma=0)).tokens
    learn, calls = engine._proposer.learn, []

    def forgetful(sequence: Any, start: int, states: Any) -> None:
        calls.append(start)
        if len(calls) != 9:
            learn(sequence, start, states)

    engine._proposer.learn = forgetful
    record = drive(engine, ragged(3, gamma=3))
    assert record.tokens == plain
    drafted = {
        f"r{i}": [r.drafted for r in record.rounds if r.request_id == f"r{i}"] for i in range(3)
    }
    ended = [name for name, counts in drafted.items() if counts[-4:] == [0] * 4]
    assert len(ended) == 1


def test_nothing_is_drafted_where_the_target_has_no_state_yet(build: Any) -> None:
    record = drive(build(), ragged(3, gamma=3))
    assert {r.drafted for r in record.rounds if r.index == 0} == {0}
    assert all(r.drafted == 3 and r.draft_s > 0 for r in record.rounds if r.index == 1)


# --- sampling ------------------------------------------------------------------------------------


def test_siblings_are_drawn_from_the_drafts_row_of_their_context(build: Any, folders: Any) -> None:
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

    target, draft = folders["faint"]
    dense, engine = DenseEagle(draft, target), build("paths")
    prompt = list(range(3, 60, 2))
    states = states_of(engine, prompt)
    shapes = set()
    for seed in range(3):
        request = DecodeRequest("a", tuple(prompt), 9, HOT, seed, gamma=4, evidence=True)
        sequence = Sequence(request, 2, list(prompt))
        with torch.inference_mode():
            engine._proposer.admit(sequence)
            engine._proposer.learn(sequence, 0, states)
            sequence.append([8])
            (tree,) = engine._proposer.propose([(sequence, 4)])
        assert len(tree.tokens) == 8
        assert sorted(tree.q) == list(range(9))  # leaves too: evidence
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        for context, path in enumerate(paths):
            wide = torch.full((97,), float("-inf"))
            wide[dense.ids] = dense.after([*prompt, 8], states, path)
            torch.testing.assert_close(tree.q[context], wide.softmax(0), atol=1e-4, rtol=1e-3)
        for below in tree.children:
            siblings = [tree.tokens[child] for child in below]
            assert len(set(siblings)) == len(siblings)
        shapes.add(tree.tokens)
    assert len(shapes) == 3


# --- memory --------------------------------------------------------------------------------------


def test_the_ledger_counts_the_draft_cache_and_states_that_wait(build: Any) -> None:
    engine = build()
    net = engine._proposer._net
    for request in ragged(4, gamma=3, sampling=HOT):
        engine.submit(request)
    engine.step()
    waiting = sum(len(r.prompt) for r in ragged(4, gamma=3)) * 32 * 4
    ledger = engine.memory()
    assert ledger.draft_weights == net.weight_bytes > 0
    assert net.cache.bytes == 2 * 8 * 256 * 2 * 8 * 4
    assert ledger.draft_kv == net.cache.bytes + waiting
    assert net.weights.embed is engine._decoder.weights.embed
    assert ledger.complete
