"""Admits and retires sequences every step; each holds one slot while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.packing import BLOCK, Segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Tokens

    from gatekeeper.core.adaptive_window import RequestWindow
    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper_adapters.engines.reference.limits import Limits
    from gatekeeper_adapters.engines.reference.rules import Grammar
    from gatekeeper_adapters.engines.reference.stopping import StopTexts
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["Scheduler", "Sequence", "Work", "segments"]


@dataclass
class Sequence:
    """A live request. ``cached`` tokens have keys and values in the target's slot.

    ``tokens`` is prompt and output; while decoding ``cached`` is one less than its length, and
    rollback is nothing but not raising it. ``spent`` accrues the sequence's share of draft, verify,
    correction and transfer time until its next round reports it. ``stopped`` is the stop text that
    ended it. ``drafted`` tells whether its last step asked for a window.
    """

    request: DecodeRequest
    slot: int
    tokens: list[int]
    cached: int = 0
    rounds: int = 0
    spent: list[float] = field(default_factory=lambda: [0.0] * 4)
    grammar: Grammar | None = None
    windows: RequestWindow | None = None
    drafted: bool = False
    stop_texts: StopTexts | None = None
    stopped: str | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def produced(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)

    def append(self, tokens: Tokens[int]) -> None:
        """Commit tokens to the text."""
        self.tokens.extend(tokens)
        if self.grammar is not None:
            self.grammar.commit(tokens)

    def room(self, max_context: int) -> int:
        """Tokens that may still be appended."""
        return min(self.request.max_tokens - self.produced, max_context - len(self.tokens))

    def ended(self, max_context: int) -> str | None:
        """Why the sequence is complete, or None."""
        if self.stopped is not None:
            return "stop"
        if self.produced and self.tokens[-1] in self.request.end_tokens:
            return "stop"
        if self.grammar is not None and self.grammar.lost:
            return "constraint"
        if self.grammar is not None and self.grammar.complete and not self.request.end_tokens:
            return "stop"
        if self.produced >= self.request.max_tokens:
            return "length"
        return "context" if len(self.tokens) >= max_context else None


@dataclass(frozen=True)
class Work:
    """One sequence's part of a step: cache tokens up to ``until``; ``window`` draft tokens at most.

    ``window`` is None for a piece of a prompt that ends before the prompt does: it yields no token.
    """

    sequence: Sequence
    until: int
    window: int | None


class Scheduler:
    """First come, first served; a free slot is filled at the next step.

    ``most_candidates`` of a window's length bounds the rows that its tree takes in a slot.
    """

    def __init__(self, limits: Limits, most_candidates: Callable[[int], int]) -> None:
        self._max_context = limits.max_context
        self._positions = limits.max_batch * limits.max_context
        self._chunk = max(BLOCK, limits.prefill_chunk)
        self._most_candidates = most_candidates
        self._free = list(range(limits.max_batch - 1, -1, -1))
        self._waiting: dict[str, DecodeRequest] = {}
        self.active: dict[str, Sequence] = {}

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request."""
        self._waiting[request.request_id] = request

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.active or request_id in self._waiting

    def admit(self) -> list[Sequence]:
        """Give free slots to waiting requests; returns the newcomers."""
        new = []
        while self._waiting and self._free:
            request = self._waiting.pop(next(iter(self._waiting)))
            sequence = Sequence(request, self._free.pop(), list(request.prompt))
            self.active[request.request_id] = sequence
            new.append(sequence)
        return new

    def plan(self) -> list[Work]:
        """Work of one step: every decoding sequence, and prompts up to the chunk in all.

        A prompt's last piece is already a round of its own, so its first token costs no extra
        step. Pieces before the last are multiples of 16 tokens: kernels work in such blocks, and
        their results then do not depend on where other prompts ended. Work comes in slot order,
        because neighbouring slots attend in one call; the chunk is spent in order of arrival, so
        no stream of short prompts holds up a long one that came before them.
        """
        budget = self._chunk
        work = []
        for sequence in self.active.values():
            missing = len(sequence.tokens) - sequence.cached
            if missing > 1 and missing > budget:
                piece = budget - budget % BLOCK
                budget = 0
                if piece:
                    work.append(Work(sequence, sequence.cached + piece, None))
                continue
            if missing > 1:
                budget -= missing
            window = self._window(sequence)
            work.append(Work(sequence, len(sequence.tokens), window))
        return sorted(work, key=lambda each: each.sequence.slot)

    def _window(self, sequence: Sequence) -> int:
        """The request's gamma, as far as its text may grow and its slot has rows for the tree.

        An adaptive request chooses a shorter one by what earlier rounds told.
        """
        window = min(sequence.request.gamma, sequence.room(self._max_context) - 1)
        if sequence.windows is not None:
            window = sequence.windows.choose(len(self.active), window, self._free_share())
        rows = self._max_context - len(sequence.tokens)
        while window and self._most_candidates(window) > rows:
            window -= 1
        return window

    def _free_share(self) -> float:
        """The share of all slots' positions that holds no text."""
        held = sum(len(sequence.tokens) for sequence in self.active.values())
        return 1.0 - held / self._positions

    def retire(self, request_id: str) -> Sequence | None:
        """Free a live sequence's slot, or forget a waiting request (then None)."""
        sequence = self.active.pop(request_id, None)
        if sequence is not None:
            self._free.append(sequence.slot)
        else:
            self._waiting.pop(request_id, None)
        return sequence


def segments(works: Tokens[Work], trees: Tokens[CandidateTree]) -> list[Segment]:
    """The rows to run for each work: what is not cached yet, then the candidates."""
    out = []
    for work, tree in zip(works, trees, strict=True):
        sequence = work.sequence
        tokens = [*sequence.tokens[sequence.cached : work.until], *tree.tokens]
        wanted = 0 if work.window is None else len(tree.tokens) + 1
        parents = () if tree.is_chain else tree.parents
        out.append(Segment(sequence.slot, sequence.cached, tokens, wanted, parents))
    return out
