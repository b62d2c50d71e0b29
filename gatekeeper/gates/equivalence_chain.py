"""A run that goes on where an inconclusive one stopped: one e-process over several runs.

Starting anew after an undecided run would be a lottery: whoever repeats often enough sees a PASS, or
an alarm, by luck. So a repeated run takes the evidence of the one before, draws new requests with a
seed of its own, and is judged on all rows together. Its tables begin with the earlier rows, and its
``context`` names every earlier run with the digests of its evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.errors import EvidenceError
from gatekeeper.gates.equivalence_context import NOT_CONTINUED, difference, links, pairs_of
from gatekeeper.gates.equivalence_record import Before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

__all__ = ["Earlier", "check_continued", "continued_seed"]

_ROWS = ("requests", "strict", "tolerance", "greedy")
"""Tables that begin with the rows of the earlier run."""


@dataclass(frozen=True)
class Earlier:
    """An inconclusive run: its id, the sha256 of its tables by name, and the tables."""

    run: str
    evidence: Mapping[str, str]
    tables: Mapping[str, pd.DataFrame]

    @property
    def link(self) -> dict[str, Any]:
        """JSON-able: how a run that continues this one names it."""
        tokens = int(self.tables["requests"]["tokens"].sum())
        return {"run": self.run, "evidence": dict(self.evidence), "tokens": tokens}

    @property
    def links(self) -> tuple[dict[str, Any], ...]:
        """All runs of the chain so far, oldest first."""
        return (*links(self.tables["context"]), self.link)

    @property
    def before(self) -> Before:
        """What the next plan has to know."""
        greedy, requests = self.tables["greedy"], self.tables["requests"]
        arms = greedy.groupby("prompt")["arm"].nunique()
        return Before(
            runs=len(self.links),
            tokens=int(requests["tokens"].sum()),
            compared=frozenset(str(p) for p in arms.index[arms == 2]),  # noqa: PLR2004 - both arms
            turns={str(p): int(n) for p, n in requests["prompt"].value_counts().items()},
        )


def continued_seed(seed: int, runs: int) -> int:
    """Seed of the run after ``runs`` others that were planned with ``seed``: never theirs again."""
    if runs == 0:
        return seed
    drawn = np.random.SeedSequence(seed, spawn_key=(runs,)).generate_state(1, np.uint64)
    return int(drawn[0] >> np.uint64(1))


def check_continued(
    continues: Mapping[str, Any] | None,
    tables: Mapping[str, pd.DataFrame],
    load: Callable[[str, str], pd.DataFrame],
) -> None:
    """Check that a run's tables really go on from ``continues`` (id and digests), or from nothing.

    ``load`` gives a table by name and sha256. A run may say that the earlier one was another test;
    then it was one.

    Raises:
        EvidenceError: the run names other evidence, lacks rows of it, or changed one.
    """
    context = tables["context"]
    if continues is None:
        if links(context):
            raise EvidenceError(
                "names a run that this one was not to go on from",
                field="context.continues",
                value=links(context)[-1].get("run"),
                remedy="run the gate again",
            )
        return
    run, evidence = str(continues["run"]), continues["evidence"]
    refused = bool((context["name"] == NOT_CONTINUED).any())
    if refused and difference(load("context", evidence["context"]), pairs_of(context)):
        return
    earlier = {name: load(name, sha256) for name, sha256 in evidence.items()}
    _check_chain(Earlier(run, evidence, earlier), tables)


def _check_chain(earlier: Earlier, tables: Mapping[str, pd.DataFrame]) -> None:
    named = links(tables["context"])
    if named != earlier.links:
        raise EvidenceError(
            f"does not name run {earlier.run} and its evidence",
            field="context.continues",
            value=[link.get("run") for link in named],
            remedy="run the gate again",
        )
    for name in _ROWS:
        old, new = earlier.tables[name], tables[name].head(len(earlier.tables[name]))
        for column in old.columns:
            if column not in new or not _same(old[column], new[column]):
                raise EvidenceError(
                    f"does not begin with the rows of run {earlier.run}",
                    field=f"{name}.{column}",
                    value=earlier.evidence.get(name),
                    remedy="run the gate again",
                )


def _same(old: pd.Series[Any], new: pd.Series[Any]) -> bool:
    one, other = old.to_numpy(), new.to_numpy()
    return len(one) == len(other) and bool((one == other).all())
