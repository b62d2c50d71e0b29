"""Refusals: artifacts whose parts do not fit, or whose contract cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core import kept_layers
from gatekeeper.core.documents import refuse_unknown
from gatekeeper.core.running_pair import UNDISCLOSED, refuse_half_disclosed
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from gatekeeper.core.artifacts import Artifact, Proposer

__all__ = ["EXACT_METHODS", "LOSSY_METHODS", "PROPOSERS", "refuse_incompatible"]

PROPOSERS = {
    "ngram": ("max_match", "min_match"),
    "draft_lm": (),
    "medusa": ("heads", "tree"),
    "eagle": ("layers", "tree"),
    "eagle2": ("layers", "depth", "top_k", "nodes"),
    "self_speculation": kept_layers.PARAMETERS,
    UNDISCLOSED: ("model",),
}
"""Kinds of proposer and the parameters that each reads."""

SEPARATE = ("draft_lm", "medusa", "eagle", "eagle2")
"""Kinds that bring weights of their own."""

CONTRACTS = ("exact", "approximate")
EXACT_METHODS = ("standard",)
"""Accept with min(1, p/q), correct from the residual: Leviathan et al. 2023, Chen et al. 2023."""

LOSSY_METHODS = {
    "typical": "it accepts whatever the target finds typical (Medusa)",
    "threshold": "it accepts by a hand-chosen probability",
    "tolerant": "it accepts near misses or lower ranks of the target",
    "synthetic": "it accepts at a chosen rate, without looking at the target",
}
"""Methods that change the distribution, and how."""


def refuse_incompatible(artifact: Artifact) -> None:
    """Refuse what can be known to be wrong before anything runs.

    Raises:
        Incompatible: vocabularies, head, map or contract do not fit.
        UnknownKey: a parameter that this kind of proposer does not read.
        InputError: an unknown kind, method or contract, or a parameter out of range.
    """
    _refuse_contract(artifact)
    _refuse_proposer(artifact)
    refuse_half_disclosed(artifact)
    if artifact.proposer.kind in SEPARATE:
        _refuse_vocabulary(artifact)


def _refuse_contract(artifact: Artifact) -> None:
    method, contract = artifact.acceptance.method, artifact.acceptance.contract
    if contract not in CONTRACTS:
        raise InputError(
            "is not a contract",
            field="acceptance.contract",
            value=contract,
            remedy=f"use {' or '.join(CONTRACTS)}",
        )
    if method in LOSSY_METHODS and contract == "exact":
        raise Incompatible(
            f"cannot be declared exact: {LOSSY_METHODS[method]}",
            field="acceptance.method",
            value=method,
            remedy="declare the contract approximate, or use method standard",
        )
    hidden = method == UNDISCLOSED and artifact.proposer.kind == UNDISCLOSED
    if method not in {*EXACT_METHODS, *LOSSY_METHODS} and not hidden:
        raise InputError(
            "is not a known acceptance method, so nothing can be said of its exactness",
            field="acceptance.method",
            value=method,
            remedy=f"use {', '.join([*EXACT_METHODS, *LOSSY_METHODS])}",
        )


def _refuse_proposer(artifact: Artifact) -> None:
    proposer = artifact.proposer
    if proposer.kind not in PROPOSERS:
        raise InputError(
            "is not a kind of proposer",
            field="proposer.kind",
            value=proposer.kind,
            remedy=f"use {', '.join(PROPOSERS)}",
        )
    refuse_unknown(proposer.parameters, PROPOSERS[proposer.kind], field="proposer.parameters")
    if proposer.kind == "ngram":
        _refuse_model(proposer, "a look-up in the prompt")
        _refuse_ngram(proposer)
    elif proposer.kind == "self_speculation":
        _refuse_model(proposer, "self-speculation: the target's own weights draft")
        kept_layers.refuse_parameters(proposer.parameters)
    elif proposer.kind in SEPARATE and not (proposer.source and proposer.files):
        raise InputError(
            f"is needed: a {proposer.kind} proposer has weights",
            field="proposer.source" if not proposer.source else "proposer.files",
            value=proposer.source,
            remedy="give its source and the sha256 of its files",
        )


def _refuse_model(proposer: Proposer, kind: str) -> None:
    for name in ("source", "files", "tokenizer", "vocab_size", "token_map"):
        if getattr(proposer, name):
            raise InputError(
                f"has no meaning for {kind}",
                field=f"proposer.{name}",
                value=getattr(proposer, name),
                remedy="leave it null",
            )


def _refuse_ngram(proposer: Proposer) -> None:
    longest = proposer.parameters.get("max_match", 1)
    shortest = proposer.parameters.get("min_match", 1)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (longest, shortest))
    if not whole or not 1 <= shortest <= longest:
        raise InputError(
            "is not a match length",
            field="proposer.parameters",
            value=dict(proposer.parameters),
            remedy="use whole numbers with 1 <= min_match <= max_match",
        )


def _refuse_vocabulary(artifact: Artifact) -> None:
    """Without a map, a draft id must mean the same token to the target, padding ids aside."""
    target, proposer = artifact.target, artifact.proposer
    if proposer.vocab_size is None or proposer.vocab_size < 1:
        raise InputError(
            "is needed: the proposer emits token ids",
            field="proposer.vocab_size",
            value=proposer.vocab_size,
            remedy="give the size of the proposer's output vocabulary",
        )
    if proposer.token_map is not None:
        return
    if proposer.tokenizer != target.tokenizer:
        raise Incompatible(
            "differs from the target's tokenizer and no token map is given",
            field="proposer.tokenizer",
            value=proposer.tokenizer,
            remedy="give proposer.token_map, the sha256 of the draft-to-target map",
        )
    if target.vocab_size is None:
        return  # refused before: only a pair of running servers may leave it open
    low, high = sorted((proposer.vocab_size, target.vocab_size))
    emitted = set(range(low, high)) - set(target.padding_ids)
    if emitted:
        head = "the draft" if proposer.kind == "draft_lm" else "the head"
        raise Incompatible(
            f"does not fit: {head} has {proposer.vocab_size} ids, the target {target.vocab_size}, "
            f"and {len(emitted)} of those between can be emitted (the first is {min(emitted)})",
            field="proposer.vocab_size",
            value=proposer.vocab_size,
            remedy="give proposer.token_map, or name padding in target.padding_ids",
        )
