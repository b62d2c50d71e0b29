from __future__ import annotations

from typing import Any

import pytest

from gatekeeper.core.candidate_trees import MOST_CANDIDATES, chain_paths, tree_paths
from gatekeeper.errors import InputError

FIELD = "proposer.parameters.tree"


def test_child_counts_give_every_combination_of_ranks() -> None:
    paths = tree_paths([2, 2, 1], field=FIELD)
    assert paths[:2] == ((0,), (1,))
    assert paths[2:6] == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert paths[6:] == ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0))


def test_paths_are_sorted_so_that_parents_come_first_and_siblings_by_rank() -> None:
    paths = tree_paths([[1, 0], [4], [0, 2, 1], [1], [0], [0, 2]], field=FIELD)
    assert paths == ((0,), (1,), (4,), (0, 2), (1, 0), (0, 2, 1))


def test_a_chain_is_a_tree_of_one_child_each() -> None:
    assert chain_paths(3) == tree_paths([1, 1, 1], field=FIELD) == ((0,), (0, 0), (0, 0, 0))


@pytest.mark.parametrize(
    "tree",
    [
        *([], {}, "3,2,1", None, 3, [0], [2, -1], [2.0], [True], [[0], 1], [[]], [[-1]]),
        *([[0.0]], [[0], [True]], [[0], [0]], [[0, 0]], [[0], [1, 0]], [["a"]], [[0], []]),
    ],
)
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    with pytest.raises(InputError) as refused:
        tree_paths(tree, field=FIELD)
    assert refused.value.field == FIELD
    assert refused.value.remedy


@pytest.mark.parametrize("tree", [[8, 8], [65], [2] * 40, [[i] for i in range(65)]])
def test_a_tree_of_too_many_candidates_is_refused(tree: Any) -> None:
    with pytest.raises(InputError, match=f"more than {MOST_CANDIDATES}"):
        tree_paths(tree, field=FIELD)
    assert len(tree_paths([64], field=FIELD)) == MOST_CANDIDATES
