"""Where a corpus continues a given text: a suffix array read backwards.

Places are sorted by the tokens before them, the nearest first (Manber and Myers, 1993, of the
reversed corpus, cut after ``max_match`` tokens). Every longer match then lies inside the range of
the shorter ones, and one descent finds the longest: O(max_match · log n), whatever the prompt.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["MOST_TOKENS", "CorpusIndex"]

MOST_TOKENS = 1 << 26
"""Largest corpus: about 0.4 GB held and 1.6 GB while it is sorted."""

WITNESSES = 64
"""So many matches vote on the next token; a common short match may have a hundred thousand."""


class CorpusIndex:
    """``tokens`` [n] and ``order`` uint32 [n − max_match]: the places with ``max_match`` tokens before.

    ``highest`` is the largest token id. Held: 4 bytes a token and 2 more, or 4 where the vocabulary has over 65,536 ids. Sorting takes
    about 24 bytes a token for a moment.
    """

    def __init__(self, tokens: NDArray[Any], order: NDArray[Any], max_match: int) -> None:
        self.max_match = max_match
        self.bytes = int(tokens.nbytes + order.nbytes)
        self._tokens, self._order = tokens, order
        # a memoryview yields plain integers several times faster than an array does
        self._token, self._place = tokens.data, order.data
        before = tokens[max_match - 1 : len(tokens) - 1]
        self._starts: list[int] = np.concatenate(([0], np.bincount(before).cumsum())).tolist()
        self.highest = max(len(self._starts) - 2, int(tokens[-1]), int(tokens[:max_match].max()))

    @classmethod
    def build(cls, tokens: Sequence[int] | NDArray[Any], max_match: int) -> CorpusIndex:
        """Sort a corpus, least significant token first.

        Raises:
            InputError: the corpus is no longer than a match, or longer than ``MOST_TOKENS``.
        """
        wide = np.asarray(tokens)
        if not max_match < len(wide) <= MOST_TOKENS:
            raise InputError(
                f"has {len(wide)} tokens",
                field="proposer.source",
                value="corpus",
                remedy=f"give a corpus of {max_match + 1} to {MOST_TOKENS} tokens",
            )
        narrow = np.uint16 if int(wide.max()) <= np.iinfo(np.uint16).max else np.uint32
        kept = np.ascontiguousarray(wide, dtype=narrow)
        order = np.arange(max_match, len(kept), dtype=np.uint32)
        for back in range(max_match, 0, -1):
            order = order[np.argsort(kept[order - back], kind="stable")]
        return cls(kept, order, max_match)

    def save(self, folder: Path) -> None:
        """Write ``tokens.npy`` and ``order.npy``."""
        np.save(folder / "tokens.npy", self._tokens)
        np.save(folder / "order.npy", self._order)

    @classmethod
    def load(cls, folder: Path) -> CorpusIndex:
        """Map what ``save`` wrote; pages are read when a look-up reaches them."""
        tokens, order = (
            np.load(folder / name, mmap_mode="r", allow_pickle=False)
            for name in ("tokens.npy", "order.npy")
        )
        return cls(tokens, order, len(tokens) - len(order))

    def find(self, text: Sequence[int], at_least: int) -> tuple[int, int] | None:
        """Place after the longest match of the text's end, and its length; None below ``at_least``.

        Of equally long matches those vote whose next token is commonest among at most
        ``WITNESSES`` of them, evenly spaced; the first in the corpus of these is taken.
        """
        low, high, length = 0, len(self._order), 0
        for back in range(1, min(self.max_match, len(text)) + 1):
            token = text[-back]
            if back == 1:
                inside = token < len(self._starts) - 1
                first, last = self._starts[token : token + 2] if inside else (0, 0)
            else:
                first, last = self._narrow(token, back, low, high)
            if first == last:
                break
            low, high, length = first, last, back
        if length < max(1, at_least):
            return None
        return self._elected(low, high), length

    def following(self, place: int, count: int) -> list[int]:
        """At most ``count`` tokens from a place on."""
        found: list[int] = self._tokens[place : place + count].tolist()
        return found

    def _narrow(self, token: int, back: int, low: int, high: int) -> tuple[int, int]:
        """The part of a range whose token ``back`` places before is ``token``."""
        tokens = self._token

        def key(place: int) -> int:
            return tokens[place - back]

        first = bisect_left(self._place, token, low, high, key=key)
        return first, bisect_right(self._place, token, first, high, key=key)

    def _elected(self, low: int, high: int) -> int:
        step = -(-(high - low) // WITNESSES)
        places = np.sort(self._order[low:high:step])
        if len(places) == 1:
            return int(places[0])
        _, where, votes = np.unique(self._tokens[places], return_index=True, return_counts=True)
        # of equally common tokens the one met first in the corpus
        return int(places[min(where[votes == votes.max()])])
