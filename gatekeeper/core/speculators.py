"""Reading vLLM ``speculators`` config.json, the de-facto format of published drafters.

The format pins neither the verifier's revision nor its tokenizer, so a registry has to add both.
Names as of speculators 0.9; the JSON is parsed, the package is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import mapping
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SpeculatorsDraft", "from_speculators_config"]

KINDS = {"eagle": "eagle", "eagle3": "eagle", "peagle": "eagle"}
"""speculators_model_type to proposer kind; the others have no kind here yet."""

REGISTRY_ADDS = (
    "target.revision",
    "target.files",
    "target.tokenizer",
    "target.vocab_size",
    "proposer.source",
    "proposer.files",
    "proposer.tokenizer",
    "sampling",
    "engine",
)
"""What an artifact needs and such a config.json does not hold."""


@dataclass(frozen=True)
class SpeculatorsDraft:
    """The part of an artifact that a config.json supplies.

    ``fields`` are dotted fields of the artifact document with their values; ``missing`` the
    dotted fields that the registry must add.
    """

    fields: Mapping[str, Any]
    missing: tuple[str, ...]


def from_speculators_config(
    config: Mapping[str, Any], *, contract: str = "exact"
) -> SpeculatorsDraft:
    """Read a ``speculators`` config.json.

    ``verifier_accept_k`` above 1 accepts lower ranks of the target and ``accept_tolerance`` above
    0 accepts near misses: both are lossy, and the declared contract must say so.

    Raises:
        InputError: a key is missing or of the wrong type, or a type of drafter without a kind here.
        Incompatible: a lossy acceptance under contract ``exact``.
    """
    kind = _text(config, "speculators_model_type", "")
    if kind not in KINDS:
        raise InputError(
            "is a drafter that no proposer kind covers",
            field="speculators_model_type",
            value=kind,
            remedy=f"use one of {', '.join(KINDS)}",
        )
    at = "speculators_config"
    inner = mapping(config.get(at), field=at)
    method = _default_method(inner)
    lossy = _lossy(method)
    if lossy and contract == "exact":
        raise Incompatible(
            "accepts tokens that the target would not, so it cannot be declared exact",
            field=f"{at}.proposal_methods.{lossy[0]}",
            value=lossy[1],
            remedy="declare the contract approximate, or restore the default",
        )
    verifier = mapping(inner.get("verifier"), field=f"{at}.verifier")
    gamma = method.get("speculative_tokens")
    if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1:
        raise InputError(
            "is not a window",
            field=f"{at}.proposal_methods.speculative_tokens",
            value=gamma,
            remedy="use a whole number from 1",
        )
    architectures = verifier.get("architectures") or []
    supplied = {
        "target.source": f"hf:{_text(verifier, 'name_or_path', f'{at}.verifier.')}",
        "proposer.kind": KINDS[kind],
        "gamma": gamma,
        "acceptance.method": "tolerant" if lossy else "standard",
        "acceptance.contract": contract,
    }
    if len(architectures) == 1:
        supplied["target.architecture"] = architectures[0]
    missing = [*REGISTRY_ADDS]
    if "target.architecture" not in supplied:
        missing.append("target.architecture")
    if config.get("draft_vocab_size") is not None:
        # a trimmed head: its ids are rows of a map that the config does not hold
        supplied["proposer.vocab_size"] = config["draft_vocab_size"]
        missing.append("proposer.token_map")
    else:
        missing.append("proposer.vocab_size")
    return SpeculatorsDraft(supplied, tuple(missing))


def _default_method(inner: Mapping[str, Any]) -> dict[str, Any]:
    at = "speculators_config.proposal_methods"
    methods = inner.get("proposal_methods")
    if not isinstance(methods, list) or not methods:
        raise InputError("lists no method", field=at, value=methods, remedy="give at least one")
    wanted = inner.get("default_proposal_method")
    for index, raw in enumerate(methods):
        method = mapping(raw, field=f"{at}[{index}]")
        if wanted is None or method.get("proposal_type") == wanted:
            return method
    raise InputError(
        "is not among the proposal methods",
        field="speculators_config.default_proposal_method",
        value=wanted,
        remedy="name the proposal_type of one of them",
    )


def _lossy(method: Mapping[str, Any]) -> tuple[str, object] | None:
    """The first setting that departs from its exact default; an unreadable one counts too."""
    for name, exact in (("verifier_accept_k", 1), ("accept_tolerance", 0.0)):
        value = method.get(name)
        if value is not None and value != exact:
            return name, value
    return None


def _text(document: Mapping[str, Any], key: str, at: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise InputError("is missing", field=f"{at}{key}", value=value, remedy="give its name")
    return value
