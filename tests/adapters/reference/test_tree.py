"""Candidate trees: the verifier's law, the forward under a tree mask, the accepted branch's cache."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.model import (  # noqa: E402 - after the skip
    LlamaDecoder,
    load_llama,
)
from gatekeeper_adapters.engines.reference.packing import Segment, pack  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.tree import (  # noqa: E402 - as above
    NOTHING,
    CandidateTree,
    ancestry,
    depths,
)
from gatekeeper_adapters.engines.reference.uniforms import Numbers, uniforms  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.verify import (  # noqa: E402 - as above
    BONUS,
    CORRECTION,
    Verifier,
    verify,
    verify_greedy,
    without,
)
from tree_laws import distance, drawn_trees, law_of_target, law_of_tree  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

V = 4
PAIR, FORK, FULL = (-1, -1), (-1, -1, 0, 0), (-1, -1, 0, 1)
EXACTLY = 2e-6
"""Rounding of float32 rows."""


def rows(seed: int, size: int = V, spread: float = 1.0, never: float = 0.0) -> Callable[..., Any]:
    """A distribution for every text, the same each time it is asked for."""
    known: dict[tuple[int, ...], Any] = {}

    def row(text: tuple[int, ...]) -> Any:
        if text not in known:
            rng = np.random.default_rng([seed, len(text), *text])
            weights = rng.dirichlet(np.full(size, spread)) * (rng.random(size) >= never)
            if weights.sum() == 0.0:
                weights[int(rng.integers(size))] = 1.0
            known[text] = torch.tensor(weights / weights.sum(), dtype=torch.float32)
        return known[text]

    return row


def best(q: Callable[..., Any], parents: tuple[int, ...]) -> Callable[..., tuple[int, ...]]:
    """As many of the draft's best tokens below a path as any context of the shape has."""
    return lambda path: tuple(q(path).argsort(descending=True)[: len(parents)].tolist())


def law(p: Any, trees: Any, depth: int = 2, verifier: Verifier | None = None) -> Any:
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for chance, tree in trees:
        args = (p, tree, depth) if verifier is None else (p, tree, depth, verifier)
        for text, share in law_of_tree(*args).items():
            total[text] += chance * share
    assert sum(total.values()) == pytest.approx(1.0, abs=1e-5)
    return total


@pytest.mark.parametrize("parents", [(-1,), (-1, 0), PAIR, (-1, -1, -1), FORK, FULL])
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_siblings_without_replacement_give_the_targets_law(
    parents: tuple[int, ...], seed: int
) -> None:
    p, q = rows(seed, 3), rows(seed + 50, 3)
    found = law(p, drawn_trees(parents, q))
    assert distance(found, law_of_target(p, 3, 2)) < EXACTLY
    first = defaultdict(float)
    for text, share in found.items():
        first[text[:1]] += share
    assert distance(first, law_of_target(p, 3, 1)) < EXACTLY


@pytest.mark.parametrize("parents", [PAIR, (-1, -1, -1), FORK, FULL])
def test_deterministic_candidates_are_point_masses(parents: tuple[int, ...]) -> None:
    p, q = rows(3), rows(4)
    found = law(p, drawn_trees(parents, q, best(q, parents)))
    assert distance(found, law_of_target(p, V, 2)) < EXACTLY


def test_drawn_and_deterministic_contexts_may_mix() -> None:
    p, q = rows(5, 3), rows(6, 3)
    ranked = best(q, FORK)
    for fixed in (lambda path: () if path else ranked(path), lambda path: path and ranked(path)):
        found = law(p, drawn_trees(FORK, q, fixed))
        assert distance(found, law_of_target(p, 3, 2)) < EXACTLY


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    size = draw(st.integers(1, 4))
    parents: list[int] = []
    for index in range(size):
        free = [at for at in range(-1, index) if parents.count(at) < 3]
        parents.append(draw(st.sampled_from(free)))
    return tuple(parents)


@settings(max_examples=40, deadline=None)
@given(
    parents=shapes(),
    seed=st.integers(0, 10_000),
    fixed=st.sets(st.integers(0, 2)),
    spread=st.sampled_from([0.2, 1.0, 5.0]),
    never=st.sampled_from([0.0, 0.3]),
)
def test_any_shape_any_rows(
    parents: tuple[int, ...], seed: int, fixed: set[int], spread: float, never: float
) -> None:
    """``fixed`` depths have deterministic candidates; p may forbid tokens that q draws."""
    p, q = rows(seed, 3, spread, never), rows(seed + 1, 3, spread)
    ranked = best(q, parents)
    trees = drawn_trees(parents, q, lambda path: ranked(path) if len(path) in fixed else ())
    assert distance(law(p, trees), law_of_target(p, 3, 2)) < EXACTLY


def kept(tree: CandidateTree, count: int) -> CandidateTree:
    """The siblings that the draft is surest of, in the order of their draws."""
    q = tree.q[0]
    sure = sorted(tree.tokens, key=lambda token: -float(q[token]))[:count]
    tokens = tuple(token for token in tree.tokens if token in sure)
    return CandidateTree(tokens, (-1,) * count, tree.q)


def test_pruning_sampled_siblings_by_confidence_is_not_exact() -> None:
    """Three draws of which the two likeliest stay: what is judged was no longer drawn from q."""
    p, q = rows(13), rows(14)
    three = list(drawn_trees((-1, -1, -1), q))
    whole = law(p, three, 1)
    pruned = law(p, [(chance, kept(tree, 2)) for chance, tree in three], 1)
    wanted = law_of_target(p, V, 1)
    assert distance(whole, wanted) < EXACTLY
    assert distance(pruned, wanted) > 0.1
    same_shape = law(p, drawn_trees(PAIR, q, best(q, PAIR)), 1)
    assert distance(same_shape, wanted) < EXACTLY


def test_ordering_drawn_siblings_by_confidence_is_not_exact_either() -> None:
    p, q = rows(13), rows(14)
    ordered = [
        (chance, CandidateTree(tuple(sorted(t.tokens, key=lambda d: -float(q(())[d]))), PAIR, t.q))
        for chance, t in drawn_trees(PAIR, q)
    ]
    assert distance(law(p, ordered, 1), law_of_target(p, V, 1)) > 0.1


FAULTS = {
    "residual not subtracted": Verifier(correction=lambda p, _: p),
    "correction from q": Verifier(correction=lambda _, q: q),
    "lenient": Verifier(accept=lambda p, q: min(1.0, 1.3 * p / q)),
    "bonus from q": Verifier(bonus=lambda p, q: p if q is None else q),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_the_law_of_a_tree(name: str) -> None:
    p, q = rows(21, 3), rows(22, 3)
    trees = [
        (chance, CandidateTree(t.tokens, t.parents, {**t.q, **{n + 1: q((9, n)) for n in (2, 3)}}))
        for chance, t in drawn_trees(FORK, q)
    ]
    assert distance(law(p, trees, 3), law_of_target(p, 3, 3)) < EXACTLY
    assert distance(law(p, trees, 3, FAULTS[name]), law_of_target(p, 3, 3)) > 0.02


def test_a_draw_leaves_the_others_in_proportion() -> None:
    q = torch.tensor([0.5, 0.3, 0.2, 0.0])
    torch.testing.assert_close(without(q, 0), torch.tensor([0.0, 0.6, 0.4, 0.0]))
    assert without(torch.tensor([0.0, 1.0]), 1).tolist() == [0.0, 0.0]
    assert float(q[0]) == 0.5


def test_siblings_have_numbers_of_their_own() -> None:
    """Else the second would be judged by the number that the first was refused with."""
    values = np.concatenate([uniforms(3, 0, 20_000, rank=rank) for rank in (0, 1, 2)], axis=1)
    assert np.abs(np.corrcoef(values.T) - np.eye(9)).max() < 0.03
    numbers = Numbers(3, 5, 4)
    assert numbers(2, 1) == uniforms(3, 7, 1, rank=1)[0]
    assert numbers(2) == uniforms(3, 7, 1)[0]


def test_the_greedy_limit_follows_the_best_branch() -> None:
    tree = CandidateTree((7, 3, 5, 1), (-1, -1, 1, 1))
    bests = {0: 3, 1: 0, 2: 1, 3: 0, 4: 8}
    verdict = verify_greedy(lambda context, _: bests[context], tree)
    assert (verdict.path, verdict.token, verdict.kind) == ((1, 3), 8, BONUS)
    missed = verify_greedy(lambda context, _: {**bests, 2: 4}[context], tree)
    assert (missed.path, missed.token, missed.kind) == ((1,), 4, CORRECTION)
    eye = torch.eye(9)
    general = verify(lambda context, _: eye[bests[context]], tree, Numbers(3, 0, 3))
    assert general == verdict


def test_the_rows_asked_for_are_those_of_the_path() -> None:
    asked = []
    tree = CandidateTree((0, 1, 2, 0), (-1, -1, 0, 2))

    def row(context: int, tokens: Any) -> Any:
        asked.append((context, tuple(tokens)))
        return torch.eye(3)[[0, 0, 2, 0, 1][context] if context != 1 else 2]

    verify(row, tree, Numbers(0, 0, 4))
    assert asked == [(0, ()), (1, (0,)), (3, (0, 2)), (4, (0, 2, 0))]


def test_depth_children_and_sight_of_a_tree() -> None:
    parents = (-1, -1, 0, 0, 2)
    tree = CandidateTree((5, 6, 7, 8, 9), parents)
    assert depths(parents) == [0, 0, 1, 1, 2]
    assert (tree.depth, tree.is_chain) == (3, False)
    assert tree.children == ((0, 1), (2, 3), (), (4,), (), ())
    assert ancestry(parents).int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    chain = CandidateTree.chain([4, 5], [torch.ones(3)])
    assert (chain.depth, chain.is_chain, chain.bytes) == (2, True, 2 * 16 + 12)
    assert (NOTHING.depth, NOTHING.is_chain, NOTHING.children) == (0, True, ((),))


TEXTS = ([5, 9, 3, 44, 7, 12], [8, 2, 61, 4], [1, 90, 33, 7, 7])
TREES = {
    "fork": (-1, -1, 0, 0, 1),
    "deep": (-1, 0, 0, 1, 3),
    "wide": (-1, -1, -1, 1, 1),
}


@pytest.fixture(scope="module")
def decoder(tiny: Path) -> Any:
    weights = load_llama(tiny, dtype=torch.float32, device="cpu")
    return lambda **more: LlamaDecoder(weights, slots=4, positions=64, **more)


def branch(parents: tuple[int, ...], node: int) -> list[int]:
    return [] if node < 0 else [*branch(parents, parents[node]), node]


def plain(decoder: Any, text: list[int], count: int) -> Any:
    """Logits of the last rows of an ordinary forward of the whole text."""
    with torch.inference_mode():
        return decoder.forward(pack([Segment(3, 0, text, count)], decoder.cache))


@pytest.mark.parametrize("aligned", [False, True])
def test_every_node_has_the_logits_of_its_path(aligned: Any, decoder: Any) -> None:
    """Also where neighbouring slots, of other lengths and other trees, attend in one call."""
    batched, single = decoder(aligned=aligned), decoder(aligned=aligned)
    tokens = [[11, 12, 13, 14, 15], [20, 21, 22, 23, 24], [31, 32, 33, 34, 35]]
    segments = []
    for slot, (text, branches, parents) in enumerate(
        zip(TEXTS, tokens, TREES.values(), strict=True)
    ):
        with torch.inference_mode():
            batched.forward(pack([Segment(slot, 0, text[:-1], 0)], batched.cache))
        segments.append(Segment(slot, len(text) - 1, [text[-1], *branches], 6, parents))
    batch = pack(segments, batched.cache)
    assert aligned or [span.sequences for span in batch.spans] == [3]
    with torch.inference_mode():
        logits = batched.forward(batch).view(3, 6, -1)
    for slot, (text, branches, parents) in enumerate(
        zip(TEXTS, tokens, TREES.values(), strict=True)
    ):
        for node in range(-1, len(parents)):
            path = [branches[at] for at in branch(parents, node)]
            wanted = plain(single, [*text, *path], 1)[0]
            torch.testing.assert_close(logits[slot, node + 1], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", [(), (0,), (1,), (0, 3), (1, 4), (0, 2)])
def test_the_accepted_branch_leaves_the_cache_of_ordinary_decoding(
    path: tuple[int, ...], decoder: Any
) -> None:
    treed, single = decoder(), decoder()
    text, tokens, parents = TEXTS[0], [11, 12, 13, 14, 15], TREES["fork"]
    with torch.inference_mode():
        treed.forward(pack([Segment(1, 0, text[:-1], 0)], treed.cache))
        segment = Segment(1, len(text) - 1, [text[-1], *tokens], 6, parents)
        treed.forward(pack([segment], treed.cache))
        treed.cache.keep_path(1, len(text), path)
        accepted = [*text, *(tokens[node] for node in path)]
        later = treed.forward(pack([Segment(1, len(accepted), [50, 51], 2)], treed.cache))
    wanted = plain(single, [*accepted, 50, 51], 2)
    torch.testing.assert_close(later, wanted, atol=1e-4, rtol=1e-4)
    count = len(accepted) + 2
    torch.testing.assert_close(
        treed.cache.buffer[:, :, 1, :count],
        single.cache.buffer[:, :, 3, :count],
        atol=1e-4,
        rtol=1e-4,
    )
