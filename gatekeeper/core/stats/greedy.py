"""Greedy identity: every emitted token must be the target's arg max, up to numeric ties.

The emitted text is scored by an independent forward: deficit = max logit − logit(token). <= 0 is a
match, up to τ a numeric tie, above τ a fault. τ = 10σ, or 1.5 times the largest deficit of ordinary
decoding if that is larger; σ is the per-logit standard deviation between two baseline batch shapes.
Where the engine proved at start that its logits do not depend on the batch (rule ``bitwise``),
speculative text must equal ordinary text token for token and no tie is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from gatekeeper.core.claims import equation
from gatekeeper.core.verdicts import Outcome

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

__all__ = [
    "BASELINE_LIMIT",
    "COLUMNS",
    "DEFAULT_SIGMA",
    "NO_TOKEN",
    "GreedyVerdict",
    "judge",
    "logit_sigma",
    "mismatches",
    "ordinary_token",
    "threshold",
]

COLUMNS = {
    "arm": "str",
    "prompt": "str",
    "position": "int64",
    "token": "int64",
    "deficit": "float64",
}
"""One row per emitted token; ``arm`` is ``ordinary`` or ``speculative``."""

DEFAULT_SIGMA = {"float32": 2e-5, "bfloat16": 0.02, "float16": 0.003}
"""Per-logit sd between batch shapes to assume by dtype until it is measured: fp32 forwards agreed
to 1e-4 at most, bf16 logits of size 8 to 16 are rounded to 1/16 (sd 0.018)."""

BASELINE_LIMIT = 1.0
"""Ordinary decoding that is this far from the independent forward is not the same model: then a τ
derived from it would excuse anything, and the comparison has no baseline."""

NO_TOKEN = -1
"""Stands for the token of a text that ended before the other did."""

_TIE_ALPHA = 0.001


@dataclass(frozen=True)
class GreedyVerdict:
    """What the greedy rows say.

    Rates are shares of positions; ``first`` is the first fault as (prompt, position, token,
    deficit), None without one.
    """

    outcome: Outcome
    rule: str
    tau: float
    positions: int
    mismatches: int
    ties: int
    tie_rate: float | None
    baseline_tie_rate: float | None
    baseline_max_deficit: float | None
    first: tuple[str, int, int, float] | None
    detail: str


def logit_sigma(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Per-logit sd between two forwards of the same text, from their distributions [n, V].

    Differences of log p are differences of logits up to one constant a row, which is removed;
    tokens below 1e-6 are left out. Two runs differ by sqrt(2) σ if each has noise σ: the value
    returned is that of the difference, which is what ``threshold`` takes.
    """
    both = (a > 1e-6) & (b > 1e-6)  # noqa: PLR2004 - see above
    difference = np.where(both, np.log(np.where(both, a, 1)) - np.log(np.where(both, b, 1)), np.nan)
    centred = difference - np.nanmedian(difference, axis=1, keepdims=True)
    return float(np.sqrt(np.nanmean(centred.astype(np.float64) ** 2)))


@equation("equivalence.greedy.tau", table=True)
def threshold(table: pd.DataFrame, *, sigma: float, tau_sigma: float, rule: str) -> float:
    """τ of the deficit rule; 0 under the bitwise rule."""
    if rule == "bitwise":
        return 0.0
    baseline = table.loc[table["arm"] == "ordinary", "deficit"]
    largest = float(baseline.max()) if len(baseline) else 0.0
    return max(tau_sigma * sigma, 1.5 * largest)


@equation("equivalence.greedy.mismatches", table=True)
def mismatches(table: pd.DataFrame, *, tau: float, rule: str) -> int:
    """Faulty positions of the speculative arm.

    Deficit rule: deficit > τ. Bitwise rule: the first position where a prompt's speculative text
    departs from its ordinary text (or ends too early or too late); later ones have another prefix.
    """
    return len(_faults(table, tau=tau, rule=rule))


def _faults(table: pd.DataFrame, *, tau: float, rule: str) -> list[tuple[str, int, int, float]]:
    speculative = table[table["arm"] == "speculative"]
    if rule != "bitwise":
        bad = speculative[speculative["deficit"] > tau]
        columns = (bad[c].tolist() for c in ("prompt", "position", "token", "deficit"))
        return list(zip(*columns, strict=True))
    ordinary = {
        prompt: rows.sort_values("position")["token"].to_numpy()
        for prompt, rows in table[table["arm"] == "ordinary"].groupby("prompt")
    }
    found = []
    for prompt, rows in speculative.groupby("prompt", sort=False):
        if prompt not in ordinary:
            continue
        mine = rows.sort_values("position")
        tokens, other = mine["token"].to_numpy(), ordinary[prompt]
        m = min(len(tokens), len(other))
        differ = np.flatnonzero(tokens[:m] != other[:m])
        if len(differ) or len(tokens) != len(other):
            at = int(differ[0]) if len(differ) else m
            token, deficit = (
                (int(tokens[at]), float(mine["deficit"].iloc[at]))
                if at < len(tokens)
                else (NO_TOKEN, math.nan)
            )
            found.append((str(prompt), at, token, deficit))
    return found


def ordinary_token(table: pd.DataFrame, prompt: str, position: int) -> int | None:
    """The ordinary text's token at a position, ``NO_TOKEN`` past its end; None where the texts differ before."""
    rows = table[table["prompt"] == prompt].sort_values("position")
    ordinary, speculative = (
        rows.loc[rows["arm"] == arm, "token"].tolist() for arm in ("ordinary", "speculative")
    )
    if ordinary[:position] != speculative[:position] or not ordinary:
        return None
    return int(ordinary[position]) if position < len(ordinary) else NO_TOKEN


def judge(
    table: pd.DataFrame, *, rule: str, sigma: float, tau_sigma: float, prompts: int
) -> GreedyVerdict:
    """Judge greedy identity; PASS needs ``prompts`` prompts in both arms.

    ``table`` has ``COLUMNS``. A tie rate of the speculative arm that is significantly above the
    baseline's (Fisher's exact test, one-sided .001) prevents PASS: ties should be as rare.
    """
    tau = threshold(table, sigma=sigma, tau_sigma=tau_sigma, rule=rule)
    faults = _faults(table, tau=tau, rule=rule)
    speculative = table[table["arm"] == "speculative"]
    ordinary = table[table["arm"] == "ordinary"]
    ties = int(((speculative["deficit"] > 0) & (speculative["deficit"] <= tau)).sum())
    base_ties = int((ordinary["deficit"] > 0).sum())
    largest = float(ordinary["deficit"].max()) if len(ordinary) else None
    done = min(speculative["prompt"].nunique(), ordinary["prompt"].nunique())
    outcome, detail = _conclude(
        rule=rule,
        faults=faults,
        largest=largest,
        prompts=(done, prompts),
        ties=(ties, len(speculative)),
        base=(base_ties, len(ordinary)),
    )
    return GreedyVerdict(
        outcome=outcome,
        rule=rule,
        tau=tau,
        positions=len(speculative),
        mismatches=len(faults),
        ties=ties,
        tie_rate=ties / len(speculative) if len(speculative) else None,
        baseline_tie_rate=base_ties / len(ordinary) if len(ordinary) else None,
        baseline_max_deficit=largest,
        first=faults[0] if faults else None,
        detail=detail,
    )


def _conclude(
    *,
    rule: str,
    faults: list[tuple[str, int, int, float]],
    largest: float | None,
    prompts: tuple[int, int],
    ties: tuple[int, int],
    base: tuple[int, int],
) -> tuple[Outcome, str]:
    done, wanted = prompts
    if largest is not None and largest > BASELINE_LIMIT:
        return (
            Outcome.ERROR,
            (
                f"ordinary decoding is up to {largest:.3g} below the independent forward's arg max: "
                "there is no baseline to compare with"
            ),
        )
    if faults:
        prompt, position, token, deficit = faults[0]
        return (
            Outcome.FAIL,
            (
                f"{len(faults)} positions fail the {rule} rule; the first is prompt {prompt}, position "
                f"{position}, token {token}, deficit {deficit:.4g}"
            ),
        )
    if done < wanted:
        return Outcome.INCONCLUSIVE, f"{done} of {wanted} prompts decoded in both arms"
    if rule != "bitwise" and ties[0] > 0:
        counts = np.array([[ties[0], ties[1] - ties[0]], [base[0], base[1] - base[0]]])
        p = float(stats.fisher_exact(counts, alternative="greater").pvalue)
        if p < _TIE_ALPHA:
            return (
                Outcome.INCONCLUSIVE,
                (
                    f"{ties[0]} numeric ties in {ties[1]} positions against {base[0]} in {base[1]} of "
                    "ordinary decoding: more than numerics explain"
                ),
            )
    return Outcome.PASS, f"{ties[1]} positions in {done} prompts, {ties[0]} numeric ties, no fault"
