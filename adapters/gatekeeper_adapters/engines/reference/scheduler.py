"""Admits and retires sequences every step; each holds one slot while it lives."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper_adapters.engines.reference.packing import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper_adapters.engines.reference.rules import Grammar

__all__ = ["Scheduler", "Sequence", "Work"]


@dataclass
class Sequence:
    """A live request. ``cached`` tokens have keys and values in the target's slot.

    ``tokens`` is prompt and output; while decoding ``cached`` is one less than its length, and
    rollback is nothing but not raising it. ``spent`` accrues the sequence's share of draft, verify,
    correction and transfer time until its next round reports it.
    """

    request: DecodeRequest
    slot: int
    tokens: list[int]
    cached: int = 0
    rounds: int = 0
    spent: list[float] = field(default_factory=lambda: [0.0] * 4)
    grammar: Grammar | None = None

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
        if self.produced and self.tokens[-1] in self.request.end_tokens:
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
    """First come, first served; a free slot is filled at the next step."""

    def __init__(self, *, slots: int, max_context: int, prefill_chunk: int) -> None:
        self.max_context = max_context
        self._chunk = prefill_chunk
        self._free = list(range(slots - 1, -1, -1))
        self._waiting: deque[DecodeRequest] = deque()
        self.active: dict[str, Sequence] = {}

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.active or any(r.request_id == request_id for r in self._waiting)

    def admit(self) -> list[Sequence]:
        """Give free slots to waiting requests; returns the newcomers."""
        new = []
        while self._waiting and self._free:
            request = self._waiting.popleft()
            sequence = Sequence(request, self._free.pop(), list(request.prompt))
            self.active[request.request_id] = sequence
            new.append(sequence)
        return new

    def plan(self) -> list[Work]:
        """Work of one step: every decoding sequence, and prompts up to the chunk in all.

        A prompt's last piece is already a round of its own, so its first token costs no extra
        step. Pieces before the last are multiples of 16 tokens: kernels work in such blocks, and
        their results then do not depend on where other prompts ended. Work comes in slot order,
        because neighbouring slots attend in one call; the chunk is spent in order of arrival.
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
            window = min(sequence.request.gamma, sequence.room(self.max_context) - 1)
            work.append(Work(sequence, len(sequence.tokens), window))
        return sorted(work, key=lambda each: each.sequence.slot)

    def retire(self, request_id: str) -> Sequence | None:
        """Free a live sequence's slot, or forget a waiting request (then None)."""
        sequence = self.active.pop(request_id, None)
        if sequence is not None:
            self._free.append(sequence.slot)
        else:
            self._waiting = deque(r for r in self._waiting if r.request_id != request_id)
        return sequence
