"""Structured output: which tokens keep an answer on its way to a whole one.

llguidance parses the bytes of the answer (Earley over derivatives of regular expressions) and walks
the trie of all token texts: its mask holds the tokens after which some answer is still possible;
where grammar leaves no choice of the next bytes, only the tokenizer's own spelling of them. A mask
depends on the text alone, so drafting, verification and ordinary decoding see the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher
    from torch import Tensor

__all__ = ["TokenGrammar"]


class _Place(NamedTuple):
    """A place in an answer. ``whole``: nothing but an end can follow. ``lost``: nothing is known to."""

    allowed: Tensor
    whole: bool = False
    lost: bool = False


class TokenGrammar:
    """Implements ``rules.Grammar`` for one request.

    ``text`` bool [V] are the tokens that stand for text: neither special nor padding. The matcher
    stays where the last question left it, so another path costs a rollback and the tokens after
    their common beginning. Places are remembered until the next commit, because the draft and the
    verifier ask about the same ones.
    """

    def __init__(self, matcher: LLMatcher, text: Tensor, end_tokens: Sequence[int]) -> None:
        self._matcher = matcher
        self._anything = torch.ones_like(text)
        self._ends = list(dict.fromkeys(end_tokens))
        kept = text.numpy().copy()
        kept[self._ends] = False
        self._text = np.packbits(kept, bitorder="little")  # as the library's masks: cheap to meet
        self._ahead: list[int] = []  # what the matcher has beyond the committed text
        self._known: dict[tuple[int, ...], _Place] = {}

    def allowed(self, path: Sequence[int]) -> Tensor:
        """Bool [V] for the token after the committed text and ``path``.

        End tokens are allowed exactly where the answer may end. What is drawn past the end is cut
        off, so there everything is allowed; after a path that no answer begins with nothing is.
        """
        return self._at(tuple(path)).allowed

    def permitted(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, one after the other, some answer begins with."""
        for place, token in enumerate(tokens):
            if not bool(self.allowed(tokens[:place])[token]):
                return place
        return len(tokens)

    def length(self, tokens: Sequence[int]) -> int:
        """How many of the tokens that follow the text belong to the answer."""
        for place, token in enumerate(tokens):
            at = self._at(tuple(tokens[: place + 1]))
            if token in self._ends or at.lost or (at.whole and not self._ends):
                return place + 1
        return len(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens were appended."""
        path = tuple(tokens)
        after = self._at(path)
        if not (self._advance(path) or self._ended(path) or after.whole):
            after = _Place(self._anything, lost=True)
        self._ahead.clear()
        self._known = {(): after}

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole answer that nothing can follow but an end token."""
        return self._at(()).whole

    @property
    def lost(self) -> bool:
        """Whether the text can be followed no further: the grammar grew too complex, or it never could."""
        return self._at(()).lost

    def _at(self, path: tuple[int, ...]) -> _Place:
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: tuple[int, ...]) -> _Place:
        if self._ended(path):
            return _Place(self._anything)
        if self._advance(path):
            return self._ask()
        if self._matcher.is_error():
            return _Place(self._anything, lost=True)
        before = self._at(path[:-1])
        # past a whole answer that no end token follows it is as there; else no answer begins so
        return before if before.whole else _Place(~self._anything)

    def _ask(self) -> _Place:
        """The place where the matcher is."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            return _Place(self._anything, lost=True)
        packed = np.frombuffer(mask, dtype=np.uint8)[: len(self._text)] & self._text
        goes_on, may_end = bool(packed.any()), self._matcher.is_accepting()
        if not goes_on and not may_end:
            return _Place(self._anything, lost=True)
        if not goes_on and not self._ends:
            return _Place(self._anything, whole=True)
        bits = np.unpackbits(packed, count=len(self._anything), bitorder="little")
        bits[self._ends] = may_end
        return _Place(torch.from_numpy(bits).view(torch.bool), whole=not goes_on)

    def _ended(self, path: Sequence[int]) -> bool:
        return any(token in self._ends for token in path)

    def _advance(self, path: tuple[int, ...]) -> bool:
        """Bring the matcher to the end of ``path``; False where no answer begins so."""
        if self._matcher.is_error():
            return False
        same = 0
        while same < min(len(path), len(self._ahead)) and path[same] == self._ahead[same]:
            same += 1
        if same < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - same)
            del self._ahead[same:]
        taken: int = self._matcher.try_consume_tokens(list(path[same:]))
        self._ahead.extend(path[same : same + taken])
        return same + taken == len(path)
