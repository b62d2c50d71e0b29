"""The law of tree verification, computed: every accept number is decided both ways, nothing is drawn.

``verify`` compares each accept number with an acceptance probability once. A scripted number answers
that comparison as told and notes the probability, so walking all scripts gives the exact law of the
path; the weights of the correction or bonus are noted in place of a draw.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from gatekeeper_adapters.engines.reference import verify as verifying
from gatekeeper_adapters.engines.reference.uniforms import Uniforms
from gatekeeper_adapters.engines.reference.verify import EXACT, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gatekeeper_adapters.engines.reference.tree import CandidateTree

    Rows = Callable[[tuple[int, ...]], Any]
    Law = dict[tuple[int, ...], float]


class _Scripted(float):
    """An accept number that is below what it is compared with, or not, by a script."""

    script: Iterator[bool]
    chances: list[float]

    def __lt__(self, chance: float) -> bool:
        accepted = next(self.script, True)
        self.chances.append(chance if accepted else 1.0 - chance)
        return accepted


def law_of_tree(p: Rows, tree: CandidateTree, depth: int, verifier: Any = EXACT) -> Law:
    """Law of the first ``depth`` emitted tokens of one round, continued by p where it ends sooner.

    ``p(tokens)`` is the target's row after the tokens.
    """
    law: Law = defaultdict(float)
    scripts: list[tuple[bool, ...]] = [()]
    while scripts:
        script = scripts.pop()
        chances, path, weights = _run(p, tree, script, verifier)
        # undecided comparisons were accepted: each of them may be refused instead
        scripts += [
            (*script, *[True] * (place - len(script)), False)
            for place in range(len(script), len(chances))
        ]
        chance = float(np.prod(chances))
        if chance <= 0.0:
            continue
        ended = weights / weights.sum()
        for token in np.flatnonzero(ended):
            _continue(p, law, (*path, int(token)), chance * float(ended[token]), depth)
    return law


def law_of_target(p: Rows, vocabulary: int, depth: int) -> Law:
    """What it must be: p, token by token."""
    law: Law = defaultdict(float)
    for text in product(range(vocabulary), repeat=depth):
        law[text] = float(np.prod([float(p(text[:i])[text[i]]) for i in range(depth)]))
    return law


def distance(one: Law, other: Law) -> float:
    """Total variation."""
    return sum(abs(one[text] - other[text]) for text in {*one, *other}) / 2


def _run(
    p: Rows, tree: CandidateTree, script: tuple[bool, ...], verifier: Any
) -> tuple[list[float], tuple[int, ...], Any]:
    number = _Scripted(0.5)
    number.script, number.chances = iter(script), []
    noted: list[Any] = []

    def note(weights: Any, _: float) -> int:
        noted.append(weights.double().numpy())
        return 0

    draw = verifying.draw
    verifying.draw = note
    try:
        verdict = verify(
            lambda _, tokens: p(tuple(tokens)),
            tree,
            lambda *_: Uniforms(0.5, number, 0.5),
            verifier,
        )
    finally:
        verifying.draw = draw
    path = tuple(tree.tokens[node] for node in verdict.path)
    return number.chances, path, noted[0]


def _continue(p: Rows, law: Law, text: tuple[int, ...], chance: float, depth: int) -> None:
    if len(text) >= depth:
        law[text[:depth]] += chance
        return
    for token, share in enumerate(p(text).tolist()):
        if share > 0.0:
            _continue(p, law, (*text, token), chance * share, depth)


def drawn_trees(
    parents: tuple[int, ...],
    q: Rows,
    fixed: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None,
) -> Iterator[tuple[float, CandidateTree]]:
    """Every tree of a shape with its probability, siblings drawn from q without replacement.

    ``fixed(path)`` gives the deterministic candidates below a path, in order; empty where they are
    drawn.
    """
    from gatekeeper_adapters.engines.reference.tree import CandidateTree

    todo: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    while todo:
        chance, tokens = todo.pop()
        if len(tokens) == len(parents):
            contexts = {parent + 1 for parent in parents}
            rows = {
                context: q(_path(parents, tokens, context - 1))
                for context in contexts
                if fixed is None or not fixed(_path(parents, tokens, context - 1))
            }
            yield chance, CandidateTree(tokens, parents, rows)
            continue
        parent = parents[len(tokens)]
        above = _path(parents, tokens, parent)
        taken = [tokens[i] for i in range(len(tokens)) if parents[i] == parent]
        given = () if fixed is None else fixed(above)
        if given:
            todo.append((chance, (*tokens, given[len(taken)])))
            continue
        row = q(above).clone()
        row[taken] = 0.0
        row = row / row.sum()
        for token, share in enumerate(row.tolist()):
            if share > 0.0:
                todo.append((chance * share, (*tokens, token)))


def _path(parents: tuple[int, ...], tokens: tuple[int, ...], node: int) -> tuple[int, ...]:
    return () if node < 0 else (*_path(parents, tokens, parents[node]), tokens[node])
