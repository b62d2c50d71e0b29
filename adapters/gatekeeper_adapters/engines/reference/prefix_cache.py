"""Keys and values of prompts already read, given to later prompts that begin alike.

Blocks of 16 tokens, each keyed by a hash of its own tokens and of the block before it, so that a key
stands for a whole prefix. Rows are copied out when a prompt was cached and copied in on admission:
the same bits, at the same positions. A prompt's last token is always computed, and so is its block:
in aligned attention that row goes alone, and the block's bits are not those of a whole one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.packing import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.cache import SlotCache
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scheduler import Sequence

__all__ = ["PrefixCache", "PrefixCounts", "RecentChains", "chain_keys"]


@dataclass
class PrefixCounts:
    """What a prefix cache did so far.

    Of ``prompts`` admitted, ``hits`` began with a known block; ``tokens`` were copied in instead of
    computed. Of ``evictions`` (a new block that found no room is one) ``displaced`` are due to the
    draft's memory: with the whole budget the same prompts would have kept these blocks.
    """

    prompts: int = 0
    hits: int = 0
    tokens: int = 0
    evictions: int = 0
    displaced: int = 0


class RecentChains:
    """Which keys fit a budget of bytes, the most recently used kept.

    Chains are used from their end to their start, so a block is never older than one that builds on
    it: what goes first is always a leaf.
    """

    def __init__(self, budget: int) -> None:
        self._budget = max(0, budget)
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def known(self, keys: Tokens[bytes]) -> dict[bytes, int]:
        """The leading keys that are here, with their bytes."""
        found = {}
        for key in keys:
            if key not in self._sizes:
                break
            found[key] = self._sizes[key]
        return found

    def use(self, chain: dict[bytes, int]) -> list[bytes]:
        """Make a chain, keys in order with their bytes, the latest; returns what had to go."""
        for key, size in reversed(chain.items()):
            self.bytes += size - self._sizes.get(key, 0)
            self._sizes[key] = size
            self._sizes.move_to_end(key)
        gone = []
        while self.bytes > self._budget:
            key, freed = self._sizes.popitem(last=False)
            self.bytes -= freed
            gone.append(key)
        return gone


@dataclass(frozen=True)
class _Block:
    """Rows [layers, 2, 16, kv heads, head size], and the target's states [16, H] where kept."""

    rows: Tensor
    states: Tensor | None


class PrefixCache:
    """``budget`` bytes, of which the ``draft`` bytes that speculation holds are not to be had.

    ``keeps_states`` where a proposer reads the target's hidden states: for a speculative request a
    prefix then counts as known only where its states are kept too.
    """

    def __init__(
        self, cache: SlotCache, *, budget: int, draft: int = 0, keeps_states: bool = False
    ) -> None:
        self._cache = cache
        self._keeps_states = keeps_states
        self._recent = RecentChains(budget - draft)
        self._undisplaced = RecentChains(budget)
        self._blocks: dict[bytes, _Block] = {}
        self._read: dict[str, list[Tensor]] = {}
        self.counts = PrefixCounts()

    @classmethod
    def within(cls, budget: int, cache: SlotCache, proposer: Proposer) -> PrefixCache | None:
        """One for an engine's cache and proposer, or None without a budget."""
        if not budget:
            return None
        draft = proposer.beside_target()
        return cls(cache, budget=budget, draft=draft, keeps_states=proposer.reads_states)

    @property
    def bytes(self) -> int:
        """Bytes of the blocks held."""
        return self._recent.bytes

    def begin(self, sequence: Sequence) -> Tensor | None:
        """Copy the known blocks of a newcomer's prompt into its slot, and raise its ``cached``.

        Returns their states [cached, H] where its proposer may want them, and there are any.
        """
        keys = chain_keys(sequence.request.prompt)
        reads = self._reads(sequence)
        found = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or (reads and block.states is None):
                break
            found.append(block)
        for place, block in enumerate(found):
            self._cache.restore(sequence.slot, place * BLOCK, block.rows)
        sequence.cached = len(found) * BLOCK
        self.counts.prompts += 1
        self.counts.hits += bool(found)
        self.counts.tokens += sequence.cached
        self._undisplaced.use(self._undisplaced.known(keys))
        self._recent.use(self._recent.known(keys[: len(found)]))
        kept = [block.states for block in found if block.states is not None]
        return torch.cat(kept) if reads and kept else None

    def read(self, sequence: Sequence, states: Tensor) -> None:
        """Hold states [n, H] of the next positions of a prompt until all of it is cached."""
        if self._reads(sequence) and sequence.rounds == 0:
            self._read.setdefault(sequence.id, []).append(states)

    def finish(self, sequence: Sequence) -> None:
        """The prompt is cached: copy out its blocks that are not here yet."""
        keys = chain_keys(sequence.request.prompt)
        pieces = self._read.pop(sequence.id, None)
        states = torch.cat(pieces) if pieces else None
        new = {}
        for place, key in enumerate(keys):
            own = None if states is None else states[place * BLOCK : (place + 1) * BLOCK]
            known = self._blocks.get(key)
            new[key] = own if known is None or known.states is None else known.states
        rows = BLOCK * self._cache.bytes_per_token
        chain = {key: rows + _bytes(own) for key, own in new.items()}
        self._undisplaced.use(chain)
        for key in self._recent.use(chain):
            self._blocks.pop(key, None)
            self.counts.evictions += 1
            self.counts.displaced += key in self._undisplaced
        for place, (key, own) in enumerate(new.items()):
            known = self._blocks.get(key)
            if key in self._recent and (known is None or known.states is not own):
                saved = self._cache.saved(sequence.slot, place * BLOCK, BLOCK)
                self._blocks[key] = _Block(saved, None if own is None else own.clone())

    def forget(self, request_id: str) -> None:
        """The request is gone, perhaps before its prompt was cached."""
        self._read.pop(request_id, None)

    def _reads(self, sequence: Sequence) -> bool:
        return self._keeps_states and sequence.request.gamma > 0


def chain_keys(prompt: Tokens[int]) -> list[bytes]:
    """A key for each whole block of a prompt before its last token."""
    keys = []
    key = b""
    for start in range(0, len(prompt) - BLOCK, BLOCK):
        text = array("q", prompt[start : start + BLOCK]).tobytes()
        key = blake2b(key + text, digest_size=16).digest()
        keys.append(key)
    return keys


def _bytes(states: Tensor | None) -> int:
    return 0 if states is None else int(states.numel() * states.element_size())
