"""What each kind of proposer may be given, and what follows from it before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from gatekeeper.core.proposer_parameters import (
    PROPOSERS,
    declared_depth,
    declared_paths,
    dynamic_tree,
    most_candidates,
    refuse_parameters,
    spare_rows,
)
from gatekeeper.errors import InputError, UnknownKey

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("ngram", {"min_match": 2, "max_match": 4}),
    ("draft_lm", {}),
    ("medusa", {}),
    ("medusa", {"heads": 3}),
    ("medusa", {"heads": 4, "tree": [3, 2, 1, 1]}),
    ("medusa", {"tree": [[0], [1], [0, 0]]}),
    ("eagle", {}),
    ("eagle", {"tree": [2, 2]}),
    ("eagle2", {}),
    ("eagle2", {"depth": 5, "top_k": 3, "nodes": 20}),
    ("self_speculation", {"exit_after": 3}),
]
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("ngram", {"min_match": 4, "max_match": 3}, ""),
    ("ngram", {"max_match": "3"}, ""),
    ("medusa", {"heads": 0}, ".heads"),
    ("medusa", {"heads": 2.5}, ".heads"),
    ("medusa", {"heads": True}, ".heads"),
    ("medusa", {"heads": 2, "tree": [3, 2, 1]}, ".tree"),
    ("medusa", {"tree": [0]}, ".tree"),
    ("eagle", {"tree": [[1, 1]]}, ".tree"),
    ("eagle2", {"depth": 0}, ".depth"),
    ("eagle2", {"top_k": "4"}, ".top_k"),
    ("eagle2", {"depth": 3, "top_k": 1, "nodes": 4}, ".nodes"),
    ("eagle2", {"depth": 5, "top_k": 4, "nodes": 4}, ".nodes"),
    ("eagle2", {"depth": 80, "top_k": 4, "nodes": 100}, ".nodes"),
    ("self_speculation", {}, ""),
]


@pytest.mark.parametrize(("kind", "parameters"), GOOD)
def test_what_fits_is_taken(kind: str, parameters: dict[str, Any]) -> None:
    refuse_parameters(kind, parameters)


@pytest.mark.parametrize(("kind", "parameters", "field"), BAD)
def test_what_does_not_is_refused_by_name(
    kind: str, parameters: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        refuse_parameters(kind, parameters)
    assert refused.value.field == f"proposer.parameters{field}"
    assert refused.value.remedy


@pytest.mark.parametrize("kind", PROPOSERS)
def test_a_parameter_that_a_kind_does_not_read_is_named(kind: str) -> None:
    with pytest.raises(UnknownKey) as refused:
        refuse_parameters(kind, {"temperature": 1})
    assert refused.value.field == "proposer.parameters.temperature"


def test_depth_and_candidates_of_each_kind() -> None:
    tree = {"tree": [3, 2, 1]}
    assert declared_paths({"heads": 2}) == ((0,), (0, 0))
    assert declared_paths({}) is None
    assert [declared_depth(kind, {}) for kind in ("draft_lm", "medusa", "eagle")] == [None] * 3
    assert [declared_depth(kind, tree) for kind in ("medusa", "eagle")] == [3, 3]
    assert [most_candidates("medusa", tree, g) for g in (0, 1, 2, 3, 8)] == [0, 3, 9, 15, 15]
    assert [most_candidates("draft_lm", {}, g) for g in (0, 3)] == [0, 3]
    assert spare_rows("medusa", tree) == 0


def test_a_dynamic_tree_keeps_what_it_drafted_at_most() -> None:
    parameters = {"depth": 3, "top_k": 2, "nodes": 7}
    assert dynamic_tree(parameters) == parameters
    assert dynamic_tree({"nodes": 8})["nodes"] == 8
    assert declared_depth("eagle2", parameters) == 3
    # two at first, then two below each of the best two
    assert [most_candidates("eagle2", parameters, g) for g in (0, 1, 2, 3, 9)] == [0, 2, 6, 7, 7]
    assert spare_rows("eagle2", parameters) == 6
