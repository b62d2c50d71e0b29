"""Equations over the ``rounds`` table of a serving run: acceptance, step times, predicted speed-up.

Columns: those of :class:`gatekeeper.core.acceptance.Round` and ``phase`` (``sweep`` | ``confirm``),
``pair``, ``arm``, ``concurrency``, ``step`` (unique per block), ``step_s`` (its wall time) and
``steady`` (no prefill mixed into the step).

A round's times are a request's share of its step, so the step's own time is share × batch. T1, Td,
Tv and To are means over steady steps; To is the rest of the step's wall time, hence orchestration,
correction, transfer and sampling together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.claims import equation
from gatekeeper.core.progress import speedup
from gatekeeper.core.stats.serving_blocks import ORDINARY, SPECULATIVE
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "acceptance_figure",
    "conditional_acceptance",
    "counts",
    "predicted_speedup",
    "step_time",
]

_PARTS = ("draft", "verify", "overhead", "step")


def counts(
    rounds: pd.DataFrame, *, concurrency: int, gamma: int, phase: str = "confirm"
) -> AcceptanceCounts:
    """Acceptance counts of the speculative arm at one concurrency and gamma.

    Equal to ``AcceptanceCounts.from_frame`` of the rows, but columnar: a full-size run has millions
    of rounds, and every figure counts them again.
    """
    chosen = _select(rounds, concurrency, gamma, SPECULATIVE, phase)
    drafted, accepted = chosen["drafted"].to_numpy(int), chosen["accepted"].to_numpy(int)
    positions = range(int(drafted.max(initial=0)))
    sums = chosen.groupby("request_id")[["accepted", "drafted"]].sum()
    a, d = sums["accepted"].to_numpy(int), sums["drafted"].to_numpy(int)
    n = chosen.groupby("request_id").size().to_numpy(int)
    return AcceptanceCounts(
        rounds=len(chosen),
        drafted=int(drafted.sum()),
        accepted=int(accepted.sum()),
        committed=int(chosen["committed"].sum()),
        reached=tuple(int(((drafted > k) & (accepted >= k)).sum()) for k in positions),
        accepted_at=tuple(int((accepted > k).sum()) for k in positions),
        draft_s=math.fsum(chosen["draft_s"]),
        verify_s=math.fsum(chosen["verify_s"]),
        correction_s=math.fsum(chosen["correction_s"]),
        transfer_s=math.fsum(chosen["transfer_s"]),
        requests=len(sums),
        accepted_sq=int((a * a).sum()),
        drafted_sq=int((d * d).sum()),
        rounds_sq=int((n * n).sum()),
        accepted_drafted=int((a * d).sum()),
        accepted_rounds=int((a * n).sum()),
    )


@equation("serving.acceptance", table=True)
def acceptance_figure(
    rounds: pd.DataFrame, *, figure: str, concurrency: int, gamma: int, phase: str = "confirm"
) -> float | None:
    """One figure of the acceptance matrix.

    ``drafted_per_round``, ``accepted_per_round``, ``acceptance_rate`` or ``mean_accepted_length``.

    Raises:
        InputError: no such figure.
    """
    found = counts(rounds, concurrency=concurrency, gamma=gamma, phase=phase)
    n = found.rounds
    figures = {
        "drafted_per_round": found.drafted / n if n else None,
        "accepted_per_round": found.accepted / n if n else None,
        "acceptance_rate": found.acceptance_rate,
        "mean_accepted_length": found.mean_accepted_length,
    }
    if figure not in figures:
        raise InputError(
            "is not a figure of acceptance",
            field="figure",
            value=figure,
            remedy=f"use one of {', '.join(figures)}",
        )
    return figures[figure]


@equation("serving.conditional_acceptance", table=True)
def conditional_acceptance(
    rounds: pd.DataFrame, *, position: int, concurrency: int, gamma: int, phase: str = "confirm"
) -> float | None:
    """P(draft position ``position`` (from 0) accepted | those before it accepted)."""
    curve = counts(rounds, concurrency=concurrency, gamma=gamma, phase=phase).conditional_acceptance
    return curve[position] if position < len(curve) else None


@equation("serving.step_time", table=True)
def step_time(
    rounds: pd.DataFrame, *, part: str, concurrency: int, gamma: int, phase: str = "confirm"
) -> float | None:
    """Mean seconds of a steady step: ``step`` in all, or its ``draft``, ``verify``, ``overhead``.

    ``gamma=0`` reads the ordinary arm: T1 is its ``step``.

    Raises:
        InputError: no such part.
    """
    if part not in _PARTS:
        raise InputError(
            "is not a part of a step", field="part", value=part, remedy=f"use one of {_PARTS}"
        )
    arm = SPECULATIVE if gamma else ORDINARY
    chosen = _select(rounds, concurrency, gamma, arm, phase)
    chosen = chosen[chosen["steady"].astype(bool)]
    if chosen.empty:
        return None
    steps = chosen.groupby(["pair", "step"], sort=False).agg(
        draft=("draft_s", "sum"), verify=("verify_s", "sum"), step=("step_s", "first")
    )
    if part == "overhead":
        # clocks of engine and driver differ by their resolution, which must not turn negative
        rest = steps["step"] - steps["draft"] - steps["verify"]
        return max(0.0, float(rest.mean()))
    return float(steps[part].mean())


@equation("serving.predicted_speedup", table=True)
def predicted_speedup(
    rounds: pd.DataFrame, *, concurrency: int, gamma: int, phase: str = "confirm"
) -> float | None:
    """E[P]·T1 / (Td + Tv + To) from measured parts; E[P] is the mean accepted length.

    Independent of the measured speed-up: progress and step times come from rounds, TPOT from
    request times. None where a part was not measured.
    """
    progress = acceptance_figure(
        rounds, figure="mean_accepted_length", concurrency=concurrency, gamma=gamma, phase=phase
    )
    ordinary = step_time(rounds, part="step", concurrency=concurrency, gamma=0, phase=phase)
    draft, verify, overhead = (
        step_time(rounds, part=part, concurrency=concurrency, gamma=gamma, phase=phase)
        for part in ("draft", "verify", "overhead")
    )
    if progress is None or not ordinary or draft is None or verify is None or overhead is None:
        return None
    if draft + verify + overhead <= 0:
        return None
    return speedup(progress, ordinary, draft, verify, overhead)


def _select(
    rounds: pd.DataFrame, concurrency: int, gamma: int, arm: str, phase: str
) -> pd.DataFrame:
    return rounds[
        (rounds["phase"] == phase)
        & (rounds["arm"] == arm)
        & (rounds["concurrency"] == concurrency)
        & (rounds["gamma"] == gamma)
    ]
