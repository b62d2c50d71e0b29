"""Sampled texts of two servers, compared by two-sample tests: where nothing better is at hand.

Table ``samples``, one row for each sampled answer: ``arm`` (``baseline`` or ``candidate``),
``prompt``, ``replicate``, ``text``, ``reason``, ``tokens`` (usage). A text is compared piece by piece,
of up to six letters, a digit or a sign each: the servers' tokens are not known, and such pieces do
not depend on how a stream was cut, nor on a script that has spaces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.claims import equation
from gatekeeper.core.stats import two_sample
from gatekeeper.core.stats.server_texts import BASELINE, CANDIDATE

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

__all__ = ["PERMUTATIONS", "TESTS", "compared", "p_value", "tokens"]

PERMUTATIONS = 9999
"""Enough that the smallest p-value lies well below half of any usual alpha."""

TESTS = {"mmd": two_sample.mmd, "repeats": two_sample.repeats}
_PIECE = re.compile(r"\s*(?:[^\W\d_]{1,6}|\S)|\s+")
_LEAST = 2


@equation("servers.two_sample", table=True)
def p_value(samples: pd.DataFrame, *, test: str, pieces: int, seed: int) -> float | None:
    """p-value of a test of ``TESTS`` on the first ``pieces`` pieces; None with too few answers.

    None too where an answer broke off: which ones do may differ between servers, and to leave them
    out would leave other texts to compare.
    """
    arms = _arms(samples, pieces)
    if arms is None:
        return None
    rng = np.random.default_rng(seed)
    return TESTS[test](*arms, permutations=PERMUTATIONS, rng=rng).p_value


@equation("servers.samples", table=True)
def compared(samples: pd.DataFrame) -> int:
    """Complete sampled answers of both servers."""
    return int(samples["reason"].isin(["stop", "length"]).sum())


@equation("servers.sampled_tokens", table=True)
def tokens(samples: pd.DataFrame) -> float | None:
    """Tokens of the complete sampled answers, from usage; None where one is unknown."""
    rows = samples.loc[samples["reason"].isin(["stop", "length"]), "tokens"]
    return float(rows.sum()) if len(rows) and rows.notna().all() else None


def _arms(
    samples: pd.DataFrame, pieces: int
) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]] | None:
    """Numbers [n, pieces] of the pieces, for each prompt, candidate first; None where no test can be made."""
    numbers: dict[str, int] = {}
    found: dict[str, dict[str, list[list[int]]]] = {CANDIDATE: {}, BASELINE: {}}
    if not samples["reason"].isin(["stop", "length"]).all():
        return None
    for arm, prompt, text in samples[["arm", "prompt", "text"]].itertuples(index=False):
        said = [numbers.setdefault(piece, len(numbers)) for piece in _PIECE.findall(str(text))]
        found[str(arm)].setdefault(str(prompt), []).append(said)
    ours, theirs = found[CANDIDATE], found[BASELINE]
    both = [p for p in ours if min(len(ours[p]), len(theirs.get(p, ()))) >= _LEAST]
    arms = tuple({p: two_sample.padded(one[p], pieces) for p in both} for one in (ours, theirs))
    labellings = sum(two_sample.log_labellings(len(ours[p]), len(theirs[p])) for p in both)
    if not both or labellings < np.log(PERMUTATIONS + 1):
        return None
    return arms[0], arms[1]
