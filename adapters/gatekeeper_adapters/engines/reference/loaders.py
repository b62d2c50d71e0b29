"""Loads the proposer of each kind from an artifact's section and the folder of its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core import kept_layers
from gatekeeper.core.candidate_trees import chain_paths
from gatekeeper.core.proposer_parameters import (
    declared_paths,
    dynamic_tree,
    refuse_parameters,
    spare_rows,
)
from gatekeeper.errors import Incompatible, InputError
from gatekeeper_adapters.engines.reference.devices import Transfers, are_one, lies_on
from gatekeeper_adapters.engines.reference.drafter import Lender
from gatekeeper_adapters.engines.reference.eagle_net import load_eagle
from gatekeeper_adapters.engines.reference.medusa_heads import load_medusa
from gatekeeper_adapters.engines.reference.model import LlamaDecoder, load_llama
from gatekeeper_adapters.engines.reference.proposers.draft_lm import DraftLmProposer
from gatekeeper_adapters.engines.reference.proposers.eagle import EagleProposer
from gatekeeper_adapters.engines.reference.proposers.eagle2 import Eagle2Proposer
from gatekeeper_adapters.engines.reference.proposers.elsewhere import Elsewhere
from gatekeeper_adapters.engines.reference.proposers.medusa import MedusaProposer
from gatekeeper_adapters.engines.reference.proposers.ngram import NgramProposer
from gatekeeper_adapters.engines.reference.proposers.self_speculation import (
    SelfSpeculationProposer,
)
from gatekeeper_adapters.engines.reference.proposers.static_tree import StaticTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.eagle_net import EagleNet
    from gatekeeper_adapters.engines.reference.loader import Options
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer

    Loader = Callable[[Mapping[str, Any], Path | None, "Place"], Proposer]

__all__ = ["LOADERS", "Place", "load_proposer"]


@dataclass(frozen=True)
class Place:
    """Where a proposer will work: its target, and what it computes with.

    ``folder`` is the target's, ``device`` the drafter's own, ``limit`` the longest text in tokens.
    ``transfers`` moves what crosses between the two devices, and keeps the time.
    """

    target: Decoder
    folder: Path
    dtype: torch.dtype
    device: str
    limit: int
    options: Options
    transfers: Transfers = field(default_factory=Transfers)

    @property
    def lender(self) -> Lender:
        """The target's tables: its own tensors where the drafter is on the same device."""
        target = self.target
        if isinstance(target, LlamaDecoder) and lies_on(target.weights.embed, self.device):
            w = target.weights
            return Lender(self.folder, target.vocab_size, w.embed, w.head)
        return Lender(self.folder, target.vocab_size)


def load_proposer(section: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    """The proposer of a section (``kind`` and ``parameters``); ``folder`` holds its files.

    Raises:
        Incompatible: an unknown kind, or files that do not fit the target.
        InputError: a parameter of the wrong form, or no files where the kind has some.
    """
    kind, parameters = section["kind"], dict(section.get("parameters") or {})
    if kind not in LOADERS:
        raise Incompatible(
            "is not supported by the reference engine",
            field="proposer.kind",
            value=kind,
            remedy=f"use one of {', '.join(LOADERS)}",
        )
    refuse_parameters(kind, parameters)
    found = LOADERS[kind](parameters, folder, place)
    if kind == "ngram" or are_one(place.target.device, place.device):
        return found  # a look-up is on no device
    return Elsewhere(
        found,
        device=place.target.device,
        draft_device=place.device,
        transfers=place.transfers,
    )


def _ngram(parameters: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    return NgramProposer.declared(parameters, folder, vocab_size=place.target.vocab_size)


def _self_speculation(parameters: Mapping[str, Any], _: Path | None, place: Place) -> Proposer:
    kept = kept_layers.kept_layers(parameters, place.target.layers)
    if not are_one(place.target.device, place.device):
        raise Incompatible(
            "is not the target's, whose layers draft",
            field="engine.draft_device",
            value=place.device,
            remedy=f"use {place.target.device}",
        )
    return SelfSpeculationProposer(place.target, kept=kept, drawing=place.options.switches.drawing)


def _draft_lm(_: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    where, options = _given(folder), place.options
    weights = load_llama(
        where,
        dtype=place.dtype,
        device=place.device,
        invariant=options.invariant,
        lender=place.lender,
    )
    if weights is None or weights.config.max_positions < place.limit:
        raise Incompatible(
            "is not a Llama-family model with at least the target's context",
            field="proposer.source",
            value=str(where),
            remedy="use a draft of the Llama family, or a smaller max_context",
        )
    emits, token_map, vocab = (
        weights.config.head_rows,
        weights.token_map,
        place.target.vocab_size,
    )
    fits = (
        emits == vocab
        if token_map is None
        else (token_map.shape[0] == emits and int(token_map.max()) < vocab)
    )
    if not fits or weights.config.vocab_size != vocab:
        raise Incompatible(
            f"does not fit the target's {vocab} ids",
            field="proposer.vocab_size",
            value=emits,
            remedy="give a draft-to-target token map (tensor d2t), or a draft of the same vocabulary",
        )
    decoder = LlamaDecoder(
        weights, slots=options.max_batch, positions=place.limit, aligned=options.invariant
    )
    return DraftLmProposer(
        decoder, vocab_size=vocab, token_map=token_map, drawing=options.switches.drawing
    )


def _medusa(parameters: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    heads = load_medusa(
        _given(folder),
        place.lender,
        heads=parameters.get("heads"),
        dtype=place.dtype,
        device=place.device,
        invariant=place.options.invariant,
    )
    tree = StaticTree(declared_paths(parameters) or chain_paths(heads.count))
    if tree.depth > heads.count or tree.width > heads.rows.out_features:
        raise Incompatible(
            f"does not fit {heads.count} heads of {heads.rows.out_features} tokens",
            field="proposer.parameters.tree",
            value=parameters.get("tree"),
            remedy="use one depth per head at most, and ranks below the size of its vocabulary",
        )
    return MedusaProposer(heads, tree, vocab_size=place.target.vocab_size)


def _eagle(parameters: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    paths = declared_paths(parameters)
    tree = None if paths is None else StaticTree(paths)
    return EagleProposer(_eagle_net(folder, place), tree, drawing=place.options.switches.drawing)


def _eagle2(parameters: Mapping[str, Any], folder: Path | None, place: Place) -> Proposer:
    net = _eagle_net(folder, place, spare=spare_rows("eagle2", parameters))
    return Eagle2Proposer(net, **dynamic_tree(parameters))


def _eagle_net(folder: Path | None, place: Place, *, spare: int = 0) -> EagleNet:
    options = place.options
    return load_eagle(
        _given(folder),
        place.lender,
        dtype=place.dtype,
        device=place.device,
        slots=options.max_batch,
        positions=place.limit + spare,
        invariant=options.invariant,
    )


def _given(folder: Path | None) -> Path:
    if folder is None:
        raise InputError(
            "is missing", field="proposer.source", remedy="name the folder of the draft's files"
        )
    return folder


LOADERS: Mapping[str, Loader] = {
    "ngram": _ngram,
    "draft_lm": _draft_lm,
    "self_speculation": _self_speculation,
    "medusa": _medusa,
    "eagle": _eagle,
    "eagle2": _eagle2,
}
"""One loading function for each kind."""
