"""What each kind of proposer reads from an artifact's ``proposer.parameters``, and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core import kept_layers
from gatekeeper.core.candidate_trees import MOST_CANDIDATES, chain_paths, tree_paths
from gatekeeper.core.documents import refuse_unknown
from gatekeeper.core.running_pair import UNDISCLOSED
from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gatekeeper.core.candidate_trees import Paths

__all__ = [
    "EAGLE2",
    "MATCH",
    "PROPOSERS",
    "declared_depth",
    "declared_paths",
    "dynamic_tree",
    "match_lengths",
    "most_candidates",
    "refuse_parameters",
    "spare_rows",
]

FIELD = "proposer.parameters"

MATCH = {"min_match": 1, "max_match": 3, "corpus_min_match": 2}
"""Look-up: suffix lengths tried, the shortest of them in a corpus, and their defaults."""

EAGLE2 = {"depth": 4, "top_k": 4, "nodes": 10}
"""Dynamic tree: its depth, the candidates expanded at each, those kept; and their defaults."""

PROPOSERS: Mapping[str, tuple[str, ...]] = {
    "ngram": tuple(MATCH),
    "draft_lm": (),
    "medusa": ("heads", "tree"),
    "eagle": ("tree",),
    "eagle2": tuple(EAGLE2),
    "self_speculation": kept_layers.PARAMETERS,
    UNDISCLOSED: ("model",),
}
"""Kinds of proposer and the parameters that each reads."""


def refuse_parameters(kind: str, parameters: Mapping[str, Any]) -> None:
    """Refuse what no target and no draft could fit.

    Raises:
        UnknownKey: a parameter that this kind does not read.
        InputError: a parameter has the wrong form or is out of range.
        Incompatible: two parameters do not fit each other.
    """
    refuse_unknown(parameters, PROPOSERS[kind], field=FIELD)
    check = _CHECKS.get(kind)
    if check is not None:
        check(parameters)


def declared_paths(parameters: Mapping[str, Any]) -> Paths | None:
    """The static tree of a ``medusa`` or ``eagle`` proposer; None for a chain of any length."""
    if parameters.get("tree") is not None:
        return tree_paths(parameters["tree"], field=f"{FIELD}.tree")
    heads = parameters.get("heads")
    return None if heads is None else chain_paths(heads)


def dynamic_tree(parameters: Mapping[str, Any]) -> dict[str, int]:
    """``depth``, ``top_k`` and ``nodes`` of an ``eagle2`` proposer."""
    return {name: int(parameters.get(name, default)) for name, default in EAGLE2.items()}


def declared_depth(kind: str, parameters: Mapping[str, Any]) -> int | None:
    """Longest branch that the parameters allow; None where the window alone limits it."""
    if kind == "eagle2":
        return dynamic_tree(parameters)["depth"]
    paths = declared_paths(parameters) if kind in {"medusa", "eagle"} else None
    return None if paths is None else len(paths[-1])


def most_candidates(kind: str, parameters: Mapping[str, Any], gamma: int) -> int:
    """Most candidates of a round whose branches are at most ``gamma`` long."""
    if kind == "eagle2":
        tree = dynamic_tree(parameters)
        return min(tree["nodes"], _expanded(tree["top_k"], min(gamma, tree["depth"])))
    paths = declared_paths(parameters) if kind in {"medusa", "eagle"} else None
    return gamma if paths is None else sum(len(path) <= gamma for path in paths)


def spare_rows(kind: str, parameters: Mapping[str, Any]) -> int:
    """Rows of a drafter's cache beyond the context: of candidates it reads and does not propose.

    The target's cache needs none: windows shorten until their candidates fit.
    """
    if kind != "eagle2":
        return 0
    tree = dynamic_tree(parameters)
    return tree["depth"] * tree["top_k"]


def _expanded(top_k: int, depth: int) -> int:
    """Candidates drafted: ``top_k`` at first, then as many below each of the best ``top_k``."""
    return top_k + (depth - 1) * top_k**2 if depth else 0


def match_lengths(parameters: Mapping[str, Any]) -> dict[str, int]:
    """``min_match``, ``max_match`` and ``corpus_min_match`` of an ``ngram`` proposer.

    A corpus match is never shorter than a prompt's may be, nor by default longer than the longest.
    """
    sizes = {name: int(parameters.get(name, default)) for name, default in MATCH.items()}
    if "corpus_min_match" not in parameters:
        sizes["corpus_min_match"] = min(sizes["corpus_min_match"], sizes["max_match"])
    sizes["corpus_min_match"] = max(sizes["corpus_min_match"], sizes["min_match"])
    return sizes


def _ngram(parameters: Mapping[str, Any]) -> None:
    sizes = [parameters.get(name, default) for name, default in MATCH.items()]
    if all(map(_count, sizes)):
        sizes = list(match_lengths(parameters).values())
    if not all(map(_count, sizes)) or max(sizes[0], sizes[2]) > sizes[1]:
        raise InputError(
            "is not a match length",
            field=FIELD,
            value=dict(parameters),
            remedy="use whole numbers with 1 <= min_match, corpus_min_match <= max_match",
        )


def _medusa(parameters: Mapping[str, Any]) -> None:
    heads = parameters.get("heads")
    if heads is not None:
        _refuse_no_count("heads", heads, "use the number of heads, 1 or more")
    paths = declared_paths(parameters)
    if paths is not None and heads is not None and len(paths[-1]) > heads:
        raise Incompatible(
            f"is {len(paths[-1])} deep: each depth takes a head, and there are {heads}",
            field=f"{FIELD}.tree",
            value=parameters["tree"],
            remedy="use a shallower tree, or more heads",
        )


def _eagle(parameters: Mapping[str, Any]) -> None:
    declared_paths(parameters)


def _eagle2(parameters: Mapping[str, Any]) -> None:
    for name in EAGLE2:
        if name in parameters:
            _refuse_no_count(name, parameters[name], "use a whole number from 1")
    tree = dynamic_tree(parameters)
    most = min(MOST_CANDIDATES, _expanded(tree["top_k"], tree["depth"]))
    if not tree["depth"] <= tree["nodes"] <= most:
        raise Incompatible(
            f"does not fit a tree {tree['depth']} deep that expands {tree['top_k']} at each depth",
            field=f"{FIELD}.nodes",
            value=tree["nodes"],
            remedy=f"keep {tree['depth']} to {most} candidates"
            if tree["depth"] <= most
            else "use a smaller depth",
        )


def _refuse_no_count(name: str, value: object, remedy: str) -> None:
    if not _count(value):
        raise InputError("is not a count", field=f"{FIELD}.{name}", value=value, remedy=remedy)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "ngram": _ngram,
    "medusa": _medusa,
    "eagle": _eagle,
    "eagle2": _eagle2,
    "self_speculation": kept_layers.refuse_parameters,
}
