"""What the equivalence gate costs beside the decoding that it judges, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BANK", "COLUMNS", "GENERATION", "PARTS", "PROPOSAL", "SCORING", "ms_per_token"]

GENERATION, SCORING, PROPOSAL, BANK = "generation", "scoring", "q at the bonus", "bank"

PARTS = (GENERATION, SCORING, PROPOSAL, BANK)
"""``generation`` decodes all requests; a part of it is ``q at the bonus``, the draft step that only the
gate reads. ``scoring`` is the independent forward, ``bank`` the strict bank and the tolerance sums."""

COLUMNS = {"part": "str", "seconds": "float64", "tokens": "int64"}
"""One row a part: seconds by the clock of whoever measured, and the tokens that they were spent on."""


@equation("equivalence.cost", table=True)
def ms_per_token(table: pd.DataFrame, *, part: str) -> float:
    """Milliseconds a token that one part took.

    Raises:
        EvidenceError: the part is not there, or no token passed through it.
    """
    rows = table[table["part"] == part]
    tokens = int(rows["tokens"].sum())
    if tokens == 0:
        raise EvidenceError("was spent on no token", field="cost", value=part)
    return 1e3 * float(rows["seconds"].sum()) / tokens
