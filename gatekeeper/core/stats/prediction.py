"""Predicted against observed saving: paired tasks, one with and one without speculation.

Each task runs once in either arm. Observed saving: baseline wall time minus candidate wall time.
Predicted saving: from the baseline's trace alone, at the measured speed-up and at both ends of
its interval. They agree where the mean observed saving lies inside the predicted interval (the means
at both ends), widened on each side by the observation's own uncertainty: the half-width of the
paired t interval of observed minus predicted, task by task, so that tasks of different length do
not count as noise. Without evidence of the noise there is no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.core.claims import Claim, equation
from gatekeeper.core.stats.paired_blocks import PairedMean, compare_differences
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Comparison",
    "PairedTasks",
    "compare",
    "comparison_claims",
    "decode_ratio",
    "mean",
]


@dataclass(frozen=True)
class PairedTasks:
    """Seconds, one entry per task in each: wall times of both arms, and what was predicted."""

    baseline_s: tuple[float, ...]
    candidate_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    predicted_low_s: tuple[float, ...]
    predicted_high_s: tuple[float, ...]

    def __post_init__(self) -> None:
        columns = (
            *(self.baseline_s, self.candidate_s),
            *(self.predicted_s, self.predicted_low_s, self.predicted_high_s),
        )
        if len({len(column) for column in columns}) != 1 or not self.baseline_s:
            raise InputError(
                "must have one entry per task in every column",
                field="tasks",
                value=[len(column) for column in columns],
                remedy="give both arms and the prediction of at least one task",
            )
        if not np.isfinite(np.asarray(columns, dtype=float)).all():
            raise InputError(
                "must be finite seconds",
                field="tasks",
                remedy="leave out tasks whose time or prediction is unknown, and say so",
            )

    @property
    def observed_s(self) -> tuple[float, ...]:
        """Baseline minus candidate, task by task."""
        return tuple(b - c for b, c in zip(self.baseline_s, self.candidate_s, strict=True))


@dataclass(frozen=True)
class Comparison:
    """Mean saving per task, seconds.

    ``observed`` has one-sided bounds at its ``confidence`` each. ``widening`` and ``agrees`` are
    None where the pairs give no evidence of the noise.
    """

    predicted: float
    predicted_low: float
    predicted_high: float
    observed: PairedMean
    widening: float | None
    agrees: bool | None


def compare(tasks: PairedTasks, *, confidence: float = 0.95) -> Comparison:
    """Compare; ``confidence`` is one-sided, as the serving gate's bounds are.

    Raises:
        InputError: confidence outside (0.5, 1).
    """
    observed = compare_differences(tasks.baseline_s, tasks.candidate_s, confidence=confidence)
    low, high = mean(tasks.predicted_low_s), mean(tasks.predicted_high_s)
    wider = widening(tasks.observed_s, tasks.predicted_s, confidence=confidence)
    agrees = None
    if wider is not None and observed.mean is not None:
        agrees = low - wider <= observed.mean <= high + wider
    return Comparison(mean(tasks.predicted_s), low, high, observed, wider, agrees)


@equation("prediction.mean")
def mean(values: Sequence[float]) -> float:
    """Mean over tasks of seconds saved."""
    return float(np.mean(values))


@equation("prediction.decode_ratio")
def decode_ratio(baseline_s: Sequence[float], candidate_s: Sequence[float]) -> float | None:
    """Decode time of all baseline tasks over that of all candidate tasks; None without decode."""
    candidate = float(np.sum(candidate_s))
    return float(np.sum(baseline_s)) / candidate if candidate > 0 else None


@equation("prediction.observed")
def observed_end(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    *,
    confidence: float,
    end: str = "mean",
) -> float | None:
    """Paired mean saving as one figure: ``end`` is ``mean``, ``low`` or ``high`` (one-sided)."""
    found = compare_differences(baseline_s, candidate_s, confidence=confidence)
    return {"mean": found.mean, "low": found.low, "high": found.high}[end]


@equation("prediction.widening")
def widening(
    observed_s: Sequence[float], predicted_s: Sequence[float], *, confidence: float
) -> float | None:
    """Half-width of the paired t interval of observed minus predicted; None without evidence."""
    found = compare_differences(observed_s, predicted_s, confidence=confidence)
    return None if found.high is None or found.mean is None else found.high - found.mean


def comparison_claims(
    tasks: PairedTasks, compared: Comparison, *, prefix: str, source: str, confidence: float = 0.95
) -> tuple[Claim, ...]:
    """Make the claim of every figure of a comparison; figures that are unknown have none."""
    observed = compared.observed
    arms = {
        "baseline_s": list(tasks.baseline_s),
        "candidate_s": list(tasks.candidate_s),
        "confidence": confidence,
    }
    rest = {
        "observed_s": list(tasks.observed_s),
        "predicted_s": list(tasks.predicted_s),
        "confidence": confidence,
    }
    predictions = (
        ("value", tasks.predicted_s, compared.predicted),
        ("low", tasks.predicted_low_s, compared.predicted_low),
        ("high", tasks.predicted_high_s, compared.predicted_high),
    )
    rows: list[tuple[str, str, dict[str, object], float | None, str]] = [
        (f"predicted/{end}", "prediction.mean", {"values": list(values)}, value, "estimated")
        for end, values, value in predictions
    ]
    rows += [
        (f"observed/{end}", "prediction.observed", {**arms, "end": end}, value, "measured")
        for end, value in (("mean", observed.mean), ("low", observed.low), ("high", observed.high))
    ]
    rows.append(("widening", "prediction.widening", rest, compared.widening, "measured"))
    return tuple(
        Claim(f"{prefix}/{name}", formula, inputs, value, "s per task", status, source)
        for name, formula, inputs, value, status in rows
        if value is not None
    )
