"""Static candidate trees: which ranks are proposed below which, as an artifact declares them.

A *path* lists ranks from the root down: ``(0,)`` is the likeliest first token, ``(0, 2)`` the third
likeliest after it. Such trees are Medusa's (Cai et al., arXiv:2401.10774).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_CANDIDATES", "Paths", "chain_paths", "tree_paths"]

MOST_CANDIDATES = 64
"""Largest tree: each candidate is a row of verification, in every round of every sequence."""

Paths: TypeAlias = tuple[tuple[int, ...], ...]
"""Paths of a tree's candidates, shallow ones first, siblings by rising rank."""


def tree_paths(value: object, *, field: str) -> Paths:
    """Paths of a declared tree.

    ``value`` lists the children of every candidate of a depth (``[3, 2, 1]``: 3, then 2 below each
    of them, then 1 below each of those), or paths (``[[0], [1], [0, 0]]``).

    Raises:
        InputError: another form, a path twice, one that hangs below nothing, or too many.
    """
    remedy = "use child counts per depth like [3, 2, 1], or paths like [[0], [1], [0, 0]]"
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError("is not a tree", field=field, value=value, remedy=remedy)
    if all(_whole(count) and count >= 1 for count in value):
        _refuse_many(_size(value), field, value)
        paths = [
            path
            for depth in range(1, len(value) + 1)
            for path in product(*(range(count) for count in value[:depth]))
        ]
    elif all(map(_is_path, value)):
        _refuse_many(len(value), field, value)
        paths = [tuple(path) for path in value]
    else:
        raise InputError("is not a tree", field=field, value=value, remedy=remedy)
    known = {(), *paths}
    hanging = [path for path in paths if path[:-1] not in known]
    if len(known) != len(paths) + 1 or hanging:
        raise InputError(
            "names a path below one that is missing" if hanging else "names a path twice",
            field=field,
            value=list(hanging[0]) if hanging else value,
            remedy="name each path once, and every path above it",
        )
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


def chain_paths(depth: int) -> Paths:
    """The likeliest token at each depth, and nothing beside."""
    return tuple((0,) * length for length in range(1, depth + 1))


def _size(counts: Sequence[int]) -> int:
    size, level = 0, 1
    for count in counts:
        level *= count
        size += level
        if size > MOST_CANDIDATES:
            break
    return size


def _refuse_many(size: int, field: str, value: object) -> None:
    if size > MOST_CANDIDATES:
        raise InputError(
            f"has more than {MOST_CANDIDATES} candidates",
            field=field,
            value=value,
            remedy="use a smaller tree: every candidate is verified in every round",
        )


def _is_path(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(_whole(rank) and rank >= 0 for rank in value)
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
