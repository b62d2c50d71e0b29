from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.proposers.corpus_index import (  # noqa: E402 - after the skip
    CorpusIndex,
)
from gatekeeper_adapters.engines.reference.proposers.ngram import (  # noqa: E402 - as above
    NgramProposer,
    SuffixIndex,
)


def occurrences(tokens: list[int], size: int) -> list[int]:
    """Places after every earlier occurrence of the last ``size`` tokens."""
    found = range(size, len(tokens))
    return [place for place in found if tokens[place - size : place] == tokens[-size:]]


def brute_force(tokens: list[int], low: int, high: int) -> tuple[int, int] | None:
    """Continuation of the most recent earlier occurrence of the longest suffix, by definition."""
    for size in range(min(high, len(tokens) - 1), low - 1, -1):
        if places := occurrences(tokens, size):
            return places[-1], size
    return None


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 3),
    st.data(),
)
def test_the_index_finds_what_a_search_would(
    tokens: list[int], low: int, more: int, data: st.DataObject
) -> None:
    index = SuffixIndex(low, low + more)
    length = 0
    while length < len(tokens):
        length = min(len(tokens), length + data.draw(st.integers(1, 5)))
        seen = tokens[:length]
        index.extend(seen)
        assert index.find(seen) == brute_force(seen, low, low + more)


def test_a_lookup_does_not_scan_the_text() -> None:
    index = SuffixIndex(1, 3)
    text = [i % 50 for i in range(20_000)]
    index.extend(text)

    class Counting(list):  # type: ignore[type-arg]
        reads = 0

        def __getitem__(self, key: object) -> object:
            Counting.reads += 1
            return super().__getitem__(key)  # type: ignore[index]

    counting = Counting([*text, 0])
    index.extend(counting)
    assert index.find(counting) is not None
    assert Counting.reads < 10


@dataclass
class Live:
    """What a proposer reads of a sequence."""

    id: str
    tokens: list[int]


def proposed(proposer: NgramProposer, tokens: list[int], gamma: int) -> Any:
    sequence: Any = Live("a", tokens)
    proposer.admit(sequence)
    (tree,) = proposer.propose([(sequence, gamma)])
    return sequence, tree


@settings(deadline=None)  # the first example imports transformers
@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.integers(1, 4))
def test_transformers_takes_the_first_of_the_matches_and_we_the_latest(
    tokens: list[int], gamma: int
) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    theirs, _ = PromptLookupCandidateGenerator(
        num_output_tokens=gamma, max_matching_ngram_size=3, max_length=10_000
    ).get_candidates(torch.tensor([tokens]))
    their_tokens = theirs[0, len(tokens) :].tolist()
    _, tree = proposed(NgramProposer(min_match=1, max_match=3), tokens, gamma)
    found = brute_force(tokens, 1, 3)
    if found is None:
        assert their_tokens == list(tree.tokens) == []
        return
    places = occurrences(tokens, found[1])
    # the same match length; of several places theirs is the first and ours the last
    assert their_tokens == tokens[places[0] : places[0] + gamma]
    assert list(tree.tokens) == tokens[places[-1] : places[-1] + gamma]


CORPUS = [9, 9, 9, 1, 2, 3, 7, 8, 6, 2, 3, 5, 5, 5]


@pytest.mark.parametrize(
    ("prompt", "wanted", "origin", "length"),
    [
        ([4, 1, 2, 3], [7, 8], "corpus", 3),  # the prompt has no match at all
        ([3, 6, 1, 2, 3], [7, 8], "corpus", 3),  # the prompt's is shorter: 3
        ([1, 2, 3, 6, 1, 2, 3], [6, 1], "prompt", 3),  # a tie
        ([8, 3, 4, 3], [4, 3], "prompt", 1),  # in a corpus one token is too few
        ([4, 3], [], None, 0),
    ],
)
def test_the_longest_match_wins_and_the_prompt_on_ties(
    prompt: list[int], wanted: list[int], origin: str | None, length: int
) -> None:
    proposer = NgramProposer(max_match=3, corpus=CorpusIndex.build(CORPUS, 3))
    sequence, tree = proposed(proposer, prompt, 2)
    assert (list(tree.tokens), dict(tree.q)) == (wanted, {})
    match = proposer.match(sequence)
    assert (None if match is None else match.origin) == origin
    assert (0 if match is None else match.length) == length


def test_a_corpus_proposes_the_bonus_position_for_evidence_too() -> None:
    proposer = NgramProposer(max_match=3, corpus=CorpusIndex.build(CORPUS, 3))
    _, tree = proposed(proposer, [4, 1, 2, 3], 1)
    assert (tree.tokens, tree.following) == ((7,), 8)


def test_matches_are_counted_by_origin_and_length() -> None:
    proposer = NgramProposer(max_match=3, corpus=CorpusIndex.build(CORPUS, 3))
    for prompt, accepted in (([4, 1, 2, 3], 2), ([4, 6, 1, 2, 3], 1), ([8, 3, 4, 3], 0)):
        sequence, _ = proposed(proposer, prompt, 2)
        proposer.settle(sequence, len(prompt), accepted)
        proposer.settle(sequence, len(prompt), 0)  # a round without a proposal counts nothing
        proposer.release(sequence)
    assert proposer.statistics() == [
        {"origin": "corpus", "length": 3, "proposals": 2, "drafted": 4, "accepted": 3},
        {"origin": "prompt", "length": 1, "proposals": 1, "drafted": 2, "accepted": 0},
    ]


def test_asking_for_evidence_alone_is_no_proposal() -> None:
    proposer = NgramProposer(max_match=3)
    sequence, tree = proposed(proposer, [1, 2, 1], 0)
    assert (tree.tokens, tree.following) == ((), 2)
    proposer.settle(sequence, 3, 0)
    assert proposer.statistics() == []


def test_memory_is_the_corpus_and_its_index() -> None:
    index = CorpusIndex.build(CORPUS, 3)
    assert NgramProposer(max_match=3, corpus=index).held() == (14 * 2 + 11 * 4, 0)
    assert NgramProposer().held() == (0, 0)
