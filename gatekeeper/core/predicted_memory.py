"""The memory ledger an engine will have, from configurations alone: before anything is loaded.

Counts what the ledger counts: matrices, keys and values, candidates and logits of a full step. Norms,
rotary tables and the activations inside a forward are below a hundredth of these and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.memory import MemoryLedger
from gatekeeper.core.proposer_parameters import (
    declared_paths,
    most_candidates,
    spare_rows,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ELEMENT_BYTES", "Capacity", "MatrixLayout", "predict_memory"]

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

_ROW, _ID, _CANDIDATE = 4, 8, 16  # float32 logits, int64 token ids, a candidate's token and parent
_KINDS = ("ngram", "self_speculation", "draft_lm", "medusa", "eagle", "eagle2")


@dataclass(frozen=True)
class MatrixLayout:
    """How a processor holds matrices: ``copies`` bytes for each byte of one.

    The given tensor is among them where it ``keeps_original``; then a head that is tied to the
    embedding shares it. Inputs are filled up to a multiple of ``inputs_block``.
    """

    copies: float = 1.0
    keeps_original: bool = True
    inputs_block: int = 1


@dataclass(frozen=True)
class Capacity:
    """What an engine makes room for: ``slots`` sequences of ``positions`` tokens, rounds of ``gamma``."""

    slots: int
    positions: int
    gamma: int


def predict_memory(
    target: Mapping[str, Any],
    proposer: Mapping[str, Any],
    draft: Mapping[str, Any] | None = None,
    *,
    dtype: str,
    capacity: Capacity,
    layout: MatrixLayout | None = None,
    lends: bool = True,
    sampled: bool = True,
    corpus_bytes: int = 0,
) -> MemoryLedger:
    """The ledger when every slot is in a round of ``gamma``.

    ``target`` and ``draft`` are ``config.json`` of a Llama-family model or of a drafter, ``proposer``
    the artifact's section (``kind``, ``parameters``). ``lends``: whether a drafter may use the
    target's embedding and whole head as they lie, on the same device and in the same dtype.
    ``sampled``: whether requests draw, so that candidates come with distributions. ``corpus_bytes``
    are those of a look-up's corpus with its index.

    Raises:
        InputError: an unknown dtype or kind, or a kind with weights and no configuration of them.
    """
    kind, parameters = str(proposer["kind"]), dict(proposer.get("parameters") or {})
    if dtype not in ELEMENT_BYTES:
        raise InputError(
            "has no known size",
            field="engine.dtype",
            value=dtype,
            remedy=f"use one of {', '.join(ELEMENT_BYTES)}",
        )
    if kind not in _KINDS or (draft is None and kind in _KINDS[2:]):
        raise InputError(
            "cannot be predicted"
            if kind not in _KINDS
            else "has weights whose shapes are not given",
            field="proposer.kind",
            value=kind,
            remedy=f"use one of {', '.join(_KINDS)}, with the drafter's config.json",
        )
    sizes = _Sizes(ELEMENT_BYTES[dtype], layout or MatrixLayout(), capacity, lends=lends)
    weights, kv = _draft(kind, parameters, draft or {}, sizes)
    nodes = most_candidates(kind, parameters, capacity.gamma)
    rows = _distributions(kind, parameters, capacity.gamma) if sampled else 0
    vocab = int(target["vocab_size"])
    return MemoryLedger(
        target_weights=sizes.model(target),
        target_kv=sizes.kv(target, int(target["num_hidden_layers"]), 0),
        draft_weights=weights + corpus_bytes,
        draft_kv=kv,
        candidates=capacity.slots * (_CANDIDATE * nodes + _ROW * vocab * rows),
        workspace=capacity.slots * (nodes + 1) * _ROW * vocab,
    )


@dataclass(frozen=True)
class _Sizes:
    element: int
    layout: MatrixLayout
    capacity: Capacity
    lends: bool

    def matrix(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix with all its copies."""
        block = self.layout.inputs_block
        filled = -(-inputs // block) * block
        return int(outputs * filled * self.element * self.layout.copies)

    def layer(self, config: Mapping[str, Any]) -> int:
        """The matrices of one Llama layer: q, k and v; o; gate and up; down."""
        hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        (heads, kv_heads), size = _heads(config)
        shapes = (
            ((heads + 2 * kv_heads) * size, hidden),
            (hidden, heads * size),
            (2 * inner, hidden),
            (hidden, inner),
        )
        return sum(self.matrix(*shape) for shape in shapes)

    def model(self, config: Mapping[str, Any]) -> int:
        """A whole model: layers, head and, where it does not lie in the head's copies, embedding."""
        hidden, vocab = int(config["hidden_size"]), int(config["vocab_size"])
        shared = bool(config.get("tie_word_embeddings", False)) and self.layout.keeps_original
        rows = int(config.get("draft_vocab_size") or vocab)
        embed = 0 if shared else vocab * hidden * self.element
        layers = int(config["num_hidden_layers"]) * self.layer(config)
        return layers + self.matrix(rows, hidden) + embed

    def borrowed(self, config: Mapping[str, Any], *, embedding: bool) -> int:
        """Head rows, and the embedding where the drafter reads tokens, beyond the target's own."""
        hidden, vocab = int(config["hidden_size"]), int(config["vocab_size"])
        rows = config.get("draft_vocab_size")
        embed = vocab * hidden * self.element if embedding and not self.lends else 0
        if rows is None and self.lends:
            return embed
        return embed + self.matrix(int(rows or vocab), hidden)

    def kv(self, config: Mapping[str, Any], layers: int, spare: int = 0) -> int:
        """Keys and values of all slots, with so many rows beyond the text."""
        heads, size = _heads(config)
        places = self.capacity.slots * (self.capacity.positions + spare)
        return layers * 2 * places * heads[1] * size * self.element

    def states(self, config: Mapping[str, Any], count: int) -> int:
        """Hidden states kept, so many of each slot."""
        return self.capacity.slots * count * int(config["hidden_size"]) * self.element


def _draft(
    kind: str, parameters: Mapping[str, Any], config: Mapping[str, Any], sizes: _Sizes
) -> tuple[int, int]:
    """Bytes of the drafter's weights, and of what it keeps for each sequence."""
    if kind == "draft_lm":
        layers = int(config["num_hidden_layers"])
        weights = (
            layers * sizes.layer(config) + sizes.borrowed(config, embedding=True)
            if config.get("shared_rows")
            else sizes.model(config)
        )
        return weights, sizes.kv(config, layers)
    if kind == "medusa":
        hidden = int(config["hidden_size"])
        heads = int(parameters.get("heads") or config["heads"])
        small = heads * hidden * sizes.element + _ID * int(config.get("draft_vocab_size") or 0)
        mix = sizes.matrix(heads * hidden, hidden)
        if config.get("outs"):
            mix += heads * sizes.matrix(hidden, hidden)
        return mix + small + sizes.borrowed(config, embedding=False), sizes.states(config, 1)
    if kind in {"eagle", "eagle2"}:
        hidden = int(config["hidden_size"])
        own = sizes.matrix(hidden, 2 * hidden) + sizes.layer(config)
        # a dynamic tree is drafted wider than it is proposed
        spare = spare_rows(kind, parameters) if kind == "eagle2" else 0
        waiting = sizes.states(config, sizes.capacity.gamma + 1)
        weights = own + sizes.borrowed(config, embedding=True)
        return weights, sizes.kv(config, 1, spare) + waiting
    return 0, 0


def _distributions(kind: str, parameters: Mapping[str, Any], gamma: int) -> int:
    """Distributions that come with a round's candidates: one for each place they are drawn at."""
    if kind in {"draft_lm", "self_speculation"}:
        return gamma
    paths = declared_paths(parameters) if kind == "eagle" else None
    if kind == "eagle":
        return gamma if paths is None else len({p[:-1] for p in paths if len(p) <= gamma})
    return 0  # deterministic candidates


def _heads(config: Mapping[str, Any]) -> tuple[tuple[int, int], int]:
    """Query heads and key-value heads, and the size of one."""
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return (heads, kv_heads), int(config.get("head_dim") or int(config["hidden_size"]) // heads)
