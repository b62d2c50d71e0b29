"""The account of an engine's memory: who holds which bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatekeeper.core.memory import MemoryLedger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.prefix_cache import PrefixCache
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

__all__ = ["Account"]


@dataclass
class Account:
    """Weights and caches stand in their owners; candidates and workspace are those of the last step."""

    decoder: Decoder
    proposer: Proposer
    prefixes: PrefixCache | None
    candidates: int = 0
    workspace: int = 0

    def note(self, trees: Iterable[CandidateTree], logits: Tensor) -> None:
        """A step judged these candidates by these logits."""
        self.candidates = sum(tree.bytes for tree in trees)
        self.workspace = logits.numel() * logits.element_size()

    def ledger(self) -> MemoryLedger:
        """Bytes held; on CUDA the workspace is what the allocator peaked at beyond the rest.

        Shared prefixes are keys and values of the target.
        """
        decoder, (draft_weights, draft_kv) = self.decoder, self.proposer.held()
        target_kv = decoder.cache.bytes + (self.prefixes.bytes if self.prefixes else 0)
        workspace = self.workspace
        if decoder.device.startswith("cuda"):
            drafter = self.proposer.beside_target()
            known = decoder.weight_bytes + target_kv + drafter + self.candidates
            workspace = max(0, torch.cuda.max_memory_allocated(decoder.device) - known)
        return MemoryLedger(
            target_weights=decoder.weight_bytes,
            target_kv=target_kv,
            draft_weights=draft_weights,
            draft_kv=draft_kv,
            candidates=self.candidates,
            workspace=workspace,
        )
