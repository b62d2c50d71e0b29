"""The shape of a static candidate tree, cut to a window."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.core.candidate_trees import Paths

__all__ = ["Shape", "StaticTree"]


@dataclass(frozen=True)
class Shape:
    """Candidates in the order of ``CandidateTree``; candidate i is its context's ``ranks[i]``-th best.

    ``depths[i]`` is 0 directly below the last committed token.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    depths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Candidates below each context (0 the root, i + 1 candidate i), by rising rank."""
        below: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for index, parent in enumerate(self.parents):
            below[parent + 1].append(index)
        return tuple(map(tuple, below))


class StaticTree:
    """A declared tree, ``depth`` deep; its ranks are below ``width``.

    ``paths`` are as ``candidate_trees.tree_paths`` gives them, ``shape(gamma)`` is what is left of
    them in branches of at most ``gamma``.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.depth = len(paths[-1])
        self.width = 1 + max(path[-1] for path in paths)
        self.shape = lru_cache(maxsize=None)(self._shape)

    def most_candidates(self, gamma: int) -> int:
        """Candidates whose depth is within ``gamma``."""
        return len(self.shape(min(gamma, self.depth)))

    def _shape(self, gamma: int) -> Shape:
        """The tree cut to branches of at most ``gamma``."""
        kept = [path for path in self.paths if len(path) <= gamma]
        place = {path: index for index, path in enumerate(kept)}
        return Shape(
            parents=tuple(place.get(path[:-1], -1) for path in kept),
            ranks=tuple(path[-1] for path in kept),
            depths=tuple(len(path) - 1 for path in kept),
        )
