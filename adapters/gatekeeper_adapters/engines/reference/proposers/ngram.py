"""Look-up: propose what followed an earlier occurrence of the current suffix.

In the prompt and the output so far: Prompt Lookup Decoding (Saxena, 2023), which needs no model and
pays where output repeats its context. In a corpus too, where one is named. The longest match wins,
the prompt on ties. Candidates are deterministic, so verification treats them as point masses.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.proposer_parameters import match_lengths, refuse_parameters
from gatekeeper.errors import Incompatible
from gatekeeper_adapters.engines.reference.proposers.base import Proposer
from gatekeeper_adapters.engines.reference.proposers.corpus_index import CorpusIndex
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["CORPUS", "PROMPT", "Match", "MatchCount", "NgramProposer", "SuffixIndex"]

PROMPT, CORPUS = "prompt", "corpus"
"""Where a match was found."""


@dataclass(frozen=True)
class Match:
    """A matched span: ``length`` tokens before ``place`` in its ``origin`` equal the text's end."""

    origin: str
    place: int
    length: int


@dataclass
class MatchCount:
    """What matches of one origin and length led to: proposals, tokens drafted and accepted."""

    origin: str
    length: int
    proposals: int = 0
    drafted: int = 0
    accepted: int = 0


class SuffixIndex:
    """Where each n-gram of a growing text was last continued; a constant cost per token."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._sizes = tuple(range(max_match, min_match - 1, -1))
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the text up to its last token but one: the last has no continuation yet."""
        for place in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= place:
                    self._next[tuple(tokens[place - size : place])] = place
        self._indexed = max(self._indexed, len(tokens) - 1)

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Place after the most recent earlier occurrence of the longest suffix, and its length."""
        length = len(tokens)
        for size in self._sizes:
            if size <= length:
                place = self._next.get(tuple(tokens[length - size :]))
                if place is not None:
                    return place, size
        return None


class NgramProposer(Proposer):
    """Look up the longest suffix of ``max_match`` down to ``min_match`` tokens.

    Only committed tokens are ever indexed: nothing to roll back. A corpus is asked only for what is
    longer than the prompt's own match, and for ``corpus_min_match`` tokens at least.
    """

    name = "ngram"

    def __init__(
        self,
        *,
        min_match: int = 1,
        max_match: int = 3,
        corpus: CorpusIndex | None = None,
        corpus_min_match: int = 2,
    ) -> None:
        self._sizes = (min_match, max_match)
        self._corpus = corpus
        self._corpus_least = max(min_match, corpus_min_match)
        self._indices: dict[str, SuffixIndex] = {}
        self._pending: dict[str, tuple[Match, int]] = {}
        self._counts: dict[tuple[str, int], MatchCount] = {}

    @classmethod
    def declared(
        cls, parameters: Mapping[str, Any], corpus: Path | None, *, vocab_size: int
    ) -> NgramProposer:
        """The proposer of an artifact; ``corpus`` is an index's folder.

        Raises:
            InputError: a match length is no such thing.
            Incompatible: the corpus has tokens that the target does not, or is sorted otherwise.
        """
        refuse_parameters("ngram", parameters)
        sizes = match_lengths(parameters)
        index = None if corpus is None else CorpusIndex.load(corpus)
        if index is not None and not (
            index.highest < vocab_size and index.max_match == sizes["max_match"]
        ):
            raise Incompatible(
                f"is not in the target's {vocab_size} ids, sorted by {sizes['max_match']} of them",
                field="proposer.source",
                value=str(corpus),
                remedy="index the corpus for this target and these parameters",
            )
        return cls(**sizes, corpus=index)

    def admit(self, sequence: Seq) -> None:
        """Start an index; the prompt is indexed at the first proposal."""
        self._indices[sequence.id] = SuffixIndex(*self._sizes)

    def propose(self, windows: Sequence[tuple[Seq, int]]) -> list[CandidateTree]:
        """Copy what followed; an empty proposal where the suffix is new."""
        out = []
        for sequence, gamma in windows:
            match = self.match(sequence)
            if match is None:
                out.append(NOTHING)
                continue
            copied = self._following(sequence, match, gamma + 1)
            following = copied[gamma] if len(copied) > gamma else None
            out.append(CandidateTree.chain(copied[:gamma], following=following))
            if gamma:
                self._pending[sequence.id] = (match, len(copied[:gamma]))
        return out

    def match(self, sequence: Seq) -> Match | None:
        """The matched span that the next proposal of a sequence copies from."""
        index = self._indices[sequence.id]
        index.extend(sequence.tokens)
        found = index.find(sequence.tokens)
        if self._corpus is not None:
            least = max(self._corpus_least, 0 if found is None else found[1] + 1)
            other = self._corpus.find(sequence.tokens, least)
            if other is not None:
                return Match(CORPUS, *other)
        return None if found is None else Match(PROMPT, *found)

    def settle(self, sequence: Seq, before: int, accepted: int) -> None:
        """Count what the matched span was worth."""
        del before
        match, drafted = self._pending.pop(sequence.id, (None, 0))
        if match is None:
            return
        key = (match.origin, match.length)
        count = self._counts.setdefault(key, MatchCount(*key))
        count.proposals += 1
        count.drafted += drafted
        count.accepted += accepted

    def release(self, sequence: Seq) -> None:
        """Drop the index."""
        self._indices.pop(sequence.id, None)
        self._pending.pop(sequence.id, None)

    def statistics(self) -> list[dict[str, Any]]:
        """A row for each origin and length of matches, as ``MatchCount``, since the start."""
        return [asdict(self._counts[key]) for key in sorted(self._counts)]

    def held(self) -> tuple[int, int]:
        """Bytes of the corpus and its index, mapped from their files; a prompt's index is a dict."""
        return (0 if self._corpus is None else self._corpus.bytes, 0)

    def beside_target(self) -> int:
        """Nothing unless the target runs on the host too, where nobody asks."""
        return 0

    def _following(self, sequence: Seq, match: Match, count: int) -> list[int]:
        if match.origin == CORPUS and self._corpus is not None:
            return self._corpus.following(match.place, count)
        return sequence.tokens[match.place : match.place + count]
