from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gatekeeper_adapters.engines.reference.proposers import corpus_index
from gatekeeper_adapters.engines.reference.proposers.corpus_index import CorpusIndex
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = st.lists(st.integers(0, 3), min_size=5, max_size=60)
TEXT = st.lists(st.integers(0, 4), min_size=1, max_size=12)


def places(corpus: list[int], text: list[int], size: int, most: int) -> list[int]:
    """Places after each match of ``size`` tokens, by definition, with ``most`` tokens before."""
    return [p for p in range(most, len(corpus)) if corpus[p - size : p] == text[-size:]]


def brute_force(corpus: list[int], text: list[int], most: int) -> tuple[int, int] | None:
    for size in range(min(most, len(text)), 0, -1):
        found = places(corpus, text, size, most)
        if found:
            votes = Counter(corpus[p] for p in found)
            return next(p for p in found if votes[corpus[p]] == max(votes.values())), size
    return None


@given(CORPUS, TEXT, st.integers(1, 4))
def test_the_longest_match_is_found_and_its_commonest_continuation(
    corpus: list[int], text: list[int], most: int
) -> None:
    assert CorpusIndex.build(corpus, most).find(text, 1) == brute_force(corpus, text, most)


@given(CORPUS, TEXT, st.integers(1, 4), st.integers(2, 4))
def test_a_match_below_the_least_length_is_none(
    corpus: list[int], text: list[int], most: int, least: int
) -> None:
    found = brute_force(corpus, text, most)
    wanted = None if found is None or found[1] < least else found
    assert CorpusIndex.build(corpus, most).find(text, least) == wanted


def test_many_matches_are_sampled_and_one_of_them_is_taken() -> None:
    rng = np.random.default_rng(0)
    corpus = rng.integers(0, 3, 20_000)
    index = CorpusIndex.build(corpus, 3)
    found = index.find([9, 1], 1)
    assert found is not None
    place, length = found
    assert (length, int(corpus[place - 1])) == (1, 1)
    rare = np.where(corpus == 1)[0][:200] + 1
    corpus[rare] = 7  # a sixtieth of what follows a 1: never the commonest
    place, _ = CorpusIndex.build(corpus, 3).find([9, 1], 1) or (0, 0)
    assert int(corpus[place]) != 7


@pytest.mark.parametrize("step", [1, 3000])
def test_what_was_saved_finds_the_same(step: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    corpus = rng.integers(0, 30, 2000) * step
    index = CorpusIndex.build(corpus, 4)
    index.save(tmp_path)
    again = CorpusIndex.load(tmp_path)
    assert again.max_match == 4
    assert again.bytes == index.bytes == 2000 * (2 if step == 1 else 4) + 1996 * 4
    assert again.highest == corpus.max()
    for end in range(10, 200):
        text = corpus[:end].tolist()
        assert again.find(text, 1) == index.find(text, 1)
    assert again.following(1998, 5) == corpus[1998:].tolist()


def test_a_look_up_reads_a_logarithm_of_the_corpus() -> None:
    reads = 0

    class Counting:
        def __init__(self, values: memoryview) -> None:
            self._values = values

        def __len__(self) -> int:
            return len(self._values)

        def __getitem__(self, place: int) -> int:
            nonlocal reads
            reads += 1
            return int(self._values[place])

    corpus = np.random.default_rng(2).integers(0, 8, 100_000)
    index = CorpusIndex.build(corpus, 4)
    index._place = Counting(index._place)  # type: ignore[assignment]
    assert index.find(corpus[-40:].tolist(), 4) is not None
    assert 0 < reads <= 3 * 2 * 17  # three narrowings, two ends each, log2 of 100,000 steps


@pytest.mark.parametrize("count", [3, 0])
def test_a_corpus_shorter_than_a_match_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="4 to"):
        CorpusIndex.build(np.zeros(count, dtype=np.int64), 3)


def test_a_corpus_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_index, "MOST_TOKENS", 10)
    with pytest.raises(InputError) as caught:
        CorpusIndex.build(list(range(11)), 3)
    assert caught.value.field == "proposer.source"
