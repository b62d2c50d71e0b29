"""How routes are priced: kept apart from the pricing, so that knowing it needs no arithmetic library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["METHOD", "REPLICATES", "SEED"]

REPLICATES = 2000
"""Bootstrap replicates: the Monte Carlo error of a 5 % quantile is then about 0.05 sd."""

SEED = 20240229
"""Fixed and written into every claim, so that an interval's ends recompute to the same digit."""

METHOD: Mapping[str, int] = {"version": 4, "replicates": REPLICATES, "seed": SEED}
"""What a stored pricing was made by; one made otherwise is made anew."""
