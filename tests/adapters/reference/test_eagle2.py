"""A tree that follows the draft's confidence: exact text, and the tree the rule asks for."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from proposer_cases import CASES, open_case, write_files
from tiny_drafters import write_relay

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from dense_eagle import DenseEagle  # noqa: E402 - after the skip

HOT = SamplingSettings(temperature=1.0)
SETTINGS = {
    "greedy": GREEDY,
    "greedy penalties": SamplingSettings(repetition_penalty=1.2, presence_penalty=0.4),
    "greedy bias": SamplingSettings(logit_bias=((5, 4.0), (9, -4.0)), forbidden_tokens=(3, 7)),
    "sampled": HOT,
    "sampled filters": SamplingSettings(temperature=0.9, top_k=3, top_p=0.9, min_p=0.02),
    "sampled penalties": SamplingSettings(
        temperature=0.8, repetition_penalty=1.2, logit_bias=((3, 2.0),)
    ),
}
TREE = CASES["eagle2"].parameters


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("eagle2")
    return {"faint": write_files("eagle2", root), "relay": write_relay(root / "relay")}


@pytest.fixture(scope="module")
def build(folders: dict[str, tuple[Path, Path]]) -> Callable[..., Any]:
    def make(name: str = "faint", **options: Any) -> Any:
        return open_case(CASES["eagle2"], folders[name], **options)

    return make


def proposed(engine: Any) -> list[Any]:
    """A list that fills with every tree that the engine's proposer gives, and its window."""
    found: list[Any] = []
    propose = engine._proposer.propose

    def recording(windows: Any) -> Any:
        trees = propose(windows)
        found.extend((gamma, tree) for (_, gamma), tree in zip(windows, trees, strict=True))
        return trees

    engine._proposer.propose = recording
    return found


def test_a_tree_has_at_most_so_many_candidates_and_depths(build: Any) -> None:
    engine = build()
    trees = proposed(engine)
    for gamma in (1, 2, 4, 9):
        drive(engine, ragged(8, gamma=gamma))
    grown = [(gamma, tree) for gamma, tree in trees if tree.tokens]
    assert len(grown) > 100
    for gamma, tree in grown:
        assert len(tree.tokens) <= engine._proposer.most_candidates(gamma) <= 9
        assert tree.depth <= min(gamma, 4)
        assert not tree.q
        assert all(parent < node for node, parent in enumerate(tree.parents))
        for below in tree.children:
            assert len({tree.tokens[child] for child in below}) == len(below)
    assert {gamma: engine._proposer.most_candidates(gamma) for gamma in (0, 1, 2, 3)} == {
        0: 0,
        1: 3,
        2: 9,
        3: 9,
    }


def test_the_shape_changes_with_confidence(build: Any) -> None:
    engine = build()
    trees = proposed(engine)
    drive(engine, ragged(8, gamma=4))
    shapes = {tree.parents for _, tree in trees if tree.tokens}
    assert len(shapes) > 20
    assert {tree.depth for _, tree in trees if tree.tokens} >= {3, 4}
    # a hotter request is less sure of every token: wider and shallower trees
    depths = []
    for temperature in (0.3, 3.0):
        trees.clear()
        hot = SamplingSettings(temperature=temperature)
        drive(engine, ragged(8, gamma=4, sampling=hot))
        depths.append(np.mean([tree.depth for _, tree in trees if tree.tokens]))
    assert depths[0] > depths[1] + 0.5


def expected(dense: Any, text: list[int], states: Any, sampling: Any, tree: Any) -> list[Any]:
    """(path, confidence) of the kept candidates: every expansion by the paper's rule, none skipped."""
    from gatekeeper_adapters.engines.reference.sampling import adjust, distribution

    def likely(path: tuple[int, ...]) -> list[tuple[int, float]]:
        wide = torch.full((1, 97), float("-inf"))
        wide[0, dense.ids] = dense.after(text, states, path)
        logits = adjust(wide, sampling, [*text, *path])
        p = logits.softmax(-1) if sampling.greedy else distribution(logits, sampling)
        order = p[0].argsort(descending=True, stable=True)[: tree["top_k"]].tolist()
        return [(token, float(p[0, token])) for token in order if float(p[0, token]) > 0]

    beam: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    everything = []
    for _ in range(tree["depth"]):
        level = [((*path, token), value * p) for path, value in beam for token, p in likely(path)]
        everything += level
        beam = sorted(level, key=lambda each: -each[1])[: tree["top_k"]]
    return sorted(everything, key=lambda each: -each[1])[: tree["nodes"]]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_tree_is_the_one_the_rule_asks_for(setting: str, build: Any, folders: Any) -> None:
    """Though candidates below which nothing can be kept are never read."""
    from gatekeeper_adapters.engines.reference.packing import Segment, pack
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

    target, draft = folders["faint"]
    dense, engine, rng = DenseEagle(draft, target), build(), np.random.default_rng(2)
    decoder, proposer = engine._decoder, engine._proposer
    sequences, known = [], {}
    with torch.inference_mode():
        for slot in range(4):
            prompt = rng.integers(0, 97, 5 + 4 * slot).tolist()
            segments = [Segment(7, 0, prompt, 0)]
            states = decoder.forward_with_states(pack(segments, decoder.cache))[1]
            request = DecodeRequest(f"s{slot}", tuple(prompt), 9, SETTINGS[setting], gamma=4)
            sequence = Sequence(request, slot, prompt)
            proposer.admit(sequence)
            proposer.learn(sequence, 0, states)
            sequence.append([8 + slot])
            sequences.append(sequence)
            known[slot] = states
        trees = proposer.propose([(sequence, 4) for sequence in sequences])
    for sequence, tree in zip(sequences, trees, strict=True):
        wanted = expected(dense, sequence.tokens, known[sequence.slot], SETTINGS[setting], TREE)
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        assert set(paths[1:]) == {path for path, _ in wanted}
        confidence = dict(wanted)
        for above, below in pairwise(paths[1:]):
            assert confidence[above] >= confidence[below] * (1 - 1e-4)


def test_candidates_that_cannot_matter_are_not_read(build: Any) -> None:
    engine = build()
    net = engine._proposer._net
    forward, sizes = net.forward, []

    def counting(batch: Any, states: Any) -> Any:
        sizes.append(len(batch.rows))
        return forward(batch, states)

    net.forward = counting
    drive(engine, [DecodeRequest("a", (4, 5, 6), 60, gamma=4)])
    assert max(sizes) == 3
    assert np.mean(sizes) < 2.5  # the whole beam would be 1, 3, 3 and 3 rows


def test_the_right_features_make_the_longest_branches(build: Any) -> None:
    engine = build("relay")
    means = []
    learn = engine._proposer.learn
    for by in (0, 1):
        engine._proposer.learn = lambda s, start, states, by=by: learn(
            s, start, states.roll(by, dims=0) if len(states) > 1 or not by else states * 0
        )
        record = drive(engine, ragged(8, gamma=4))
        means.append(np.mean([r.accepted for r in record.rounds if r.index]))
    assert means[0] > 3
    assert means[1] < 0.6 * means[0]


def test_confidence_is_a_product_of_probabilities(build: Any) -> None:
    """Of a grove's values: a child is never worth more than its parent, whatever was rounded."""
    from gatekeeper_adapters.engines.reference.proposers import eagle2

    groves = []
    begin = eagle2._Grove.best

    def keeping(grove: Any, nodes: int) -> Any:
        groves.append(grove)
        return begin(grove, nodes)

    engine = build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eagle2._Grove, "best", keeping)
        drive(engine, ragged(4, gamma=4, sampling=SETTINGS["sampled filters"]))
    assert len(groves) > 20
    for grove in groves:
        for value, parent in zip(grove.values, grove.parents, strict=True):
            assert value <= (grove.values[parent] if parent >= 0 else 0.0)
            assert math.isfinite(value)
