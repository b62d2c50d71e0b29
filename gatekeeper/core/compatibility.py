"""Refusals: artifacts whose parts do not fit, or whose contract cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.proposer_parameters import PROPOSERS, declared_depth, refuse_parameters
from gatekeeper.core.running_pair import UNDISCLOSED, refuse_half_disclosed
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from gatekeeper.core.artifacts import Artifact, Proposer

__all__ = ["EXACT_METHODS", "LOSSY_METHODS", "PROPOSERS", "refuse_incompatible"]

SEPARATE = ("draft_lm", "medusa", "eagle", "eagle2")
"""Kinds that bring weights of their own."""

WITHOUT_MODEL = {
    "ngram": "a look-up",
    "self_speculation": "self-speculation: the target's own weights draft",
}
"""Kinds that bring none, and why."""

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
        Incompatible: vocabularies, head, map, window or contract do not fit.
        UnknownKey: a parameter that this kind of proposer does not read.
        InputError: an unknown kind, method or contract, or a parameter out of range.
    """
    _refuse_contract(artifact)
    _refuse_proposer(artifact)
    _refuse_window(artifact)
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
    deviation = artifact.acceptance.deviation
    if deviation is not None and contract == "exact":
        raise Incompatible(
            "cannot be admitted by an exact contract",
            field="acceptance.deviation",
            value=deviation,
            remedy="leave it out, or declare the contract approximate",
        )
    if deviation is not None and not 0 < deviation < 1:
        raise InputError(
            "is no mean deviation of an event",
            field="acceptance.deviation",
            value=deviation,
            remedy="use a value in (0, 1)",
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
    if proposer.kind in WITHOUT_MODEL:
        _refuse_model(proposer, WITHOUT_MODEL[proposer.kind])
    if proposer.kind == "ngram":
        _refuse_corpus(proposer)
    refuse_parameters(proposer.kind, proposer.parameters)
    if proposer.kind in SEPARATE and not (proposer.source and proposer.files):
        raise InputError(
            f"is needed: a {proposer.kind} proposer has weights",
            field="proposer.source" if not proposer.source else "proposer.files",
            value=proposer.source,
            remedy="give its source and the sha256 of its files",
        )


def _refuse_window(artifact: Artifact) -> None:
    """Refuse windows that the proposer's tree can never fill."""
    depth = declared_depth(artifact.proposer.kind, artifact.proposer.parameters)
    scheduled = (gamma for _, _, gamma in artifact.gamma_schedule or ())
    longest = max(artifact.gamma or 0, *scheduled, 0)
    if depth is not None and longest > depth:
        raise Incompatible(
            f"is longer than the proposer's tree is deep ({depth})",
            field="gamma",
            value=longest,
            remedy=f"use at most {depth}, or a deeper tree",
        )


def _refuse_model(proposer: Proposer, kind: str) -> None:
    model = ("tokenizer", "vocab_size", "token_map")
    # a look-up may name a corpus
    for name in model if proposer.kind == "ngram" else ("source", "files", *model):
        if getattr(proposer, name):
            raise InputError(
                f"has no meaning for {kind}",
                field=f"proposer.{name}",
                value=getattr(proposer, name),
                remedy="leave it null",
            )


def _refuse_corpus(proposer: Proposer) -> None:
    """A corpus is one local file; without one nothing is said about matches in it."""
    source, files = proposer.source, proposer.files or {}
    if source is None and (files or "corpus_min_match" in proposer.parameters):
        raise InputError(
            "has no meaning without a corpus",
            field="proposer.files" if files else "proposer.parameters.corpus_min_match",
            value=sorted(files) or proposer.parameters.get("corpus_min_match"),
            remedy="name the corpus in proposer.source, or leave it out",
        )
    if source is not None and not (source.startswith("file:") and len(files) == 1):
        raise InputError(
            "is not a corpus: one local file with its sha256",
            field="proposer.source",
            value=source,
            remedy="use file:PATH, and in proposer.files the file's name and sha256",
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
