from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.proposers.ngram import SuffixIndex  # noqa: E402 - as above


def brute_force(tokens: list[int], low: int, high: int) -> int | None:
    """Continuation of the most recent earlier occurrence of the longest suffix, by definition."""
    for size in range(min(high, len(tokens) - 1), low - 1, -1):
        suffix = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == suffix:
                return start + size
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
