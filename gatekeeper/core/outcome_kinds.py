"""How many of an outcome gate's pairs are of one kind of task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.core.stats.outcome_pairs import check_pairs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["pairs_of_kind"]


@equation("outcome.pairs_of_kind", table=True)
def pairs_of_kind(table: pd.DataFrame, *, kind: str) -> float:
    """Count the pairs of one kind; the rates of that kind rest on so many and no more.

    Raises:
        InputError: the table is not one of pairs.
    """
    check_pairs(table)
    return float((table["kind"] == kind).sum())
