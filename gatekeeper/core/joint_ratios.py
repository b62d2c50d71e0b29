"""What a serving gate measured of first token and decoding together, drawn call by call.

Speculation that decodes faster can make the first token later, and a block in which it does one may
well be a block in which it does the other. So the two ratios of a block pair are drawn together,
for every call anew: the makespan is convex in them, and the saving at their means would overstate
the mean saving.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core.claims import equation
from gatekeeper.core.critical_path import saving_draws
from gatekeeper.core.stats.serving_blocks import SPECULATIVE, ratio
from gatekeeper.core.task_assignment import owners
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.traces import Span

__all__ = ["JointRatio", "JointSaving", "joint_saving", "measured_ratios", "ttft_correlation"]

_GRAIN = 2**20
"""Ratios are multiples of 1/_GRAIN, a millionth: exact sums stay small whole numbers."""

_FEWEST = 2

_UNUSED = 0.95
"""Confidence of bounds that nobody reads here."""


@dataclass(frozen=True)
class JointRatio:
    """How many times as long one block pair took with speculation.

    ``prefill`` is the ratio of the times to the first token, which is what a call queues and
    prefills; ``decode`` that of the times per output token after it.

    Raises:
        InputError: one of them is not positive and finite.
    """

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        for name, value in (("prefill", self.prefill), ("decode", self.decode)):
            if not (0 < value < float("inf")):
                raise InputError(
                    "is not a ratio of times",
                    field=f"ratio.{name}",
                    value=value,
                    remedy="use a number above 0",
                )

    @property
    def factors(self) -> dict[str, Fraction]:
        """Duration factor of each kind of a call's phases."""
        first, rest = (Fraction(round(x * _GRAIN), _GRAIN) for x in (self.prefill, self.decode))
        return {"queue": first, "prefill": first, "decode": rest}


@dataclass(frozen=True)
class JointSaving:
    """Saving over the draws, nanoseconds: mean and two quantiles; negative for a slowdown.

    ``at_mean_ns`` is what the mean ratios would have promised: never less than the mean.
    """

    mean_ns: float
    low_ns: float
    high_ns: float
    at_mean_ns: float


def measured_ratios(confirm: pd.DataFrame, *, concurrency: int) -> tuple[JointRatio, ...]:
    """Both ratios of every block pair at one concurrency of a serving gate's ``confirm`` table.

    Raises:
        InputError: a pair lacks an arm or a statistic, or there are fewer than two pairs.
    """
    shared: dict[str, Any] = {
        "concurrency": concurrency,
        "numerator": SPECULATIVE,
        "confidence": _UNUSED,
    }
    first = ratio(confirm, statistic="ttft_p50", **shared)
    rest = ratio(confirm, statistic="tpot_mean", **shared)
    logs = (first.values, rest.values)  # noqa: PD011 - no table but one log ratio for each pair
    if len(logs[0]) != len(logs[1]) or len(logs[0]) < _FEWEST:
        raise InputError(
            f"has {min(map(len, logs))} usable block pairs",
            field="concurrency",
            value=concurrency,
            remedy="name a level that the serving gate confirmed",
        )
    return tuple(
        JointRatio(float(np.exp(one)), float(np.exp(other)))
        for one, other in zip(*logs, strict=True)
    )


@equation("serving.ttft_correlation", table=True)
def ttft_correlation(confirm: pd.DataFrame, *, concurrency: int) -> float | None:
    """Correlation over block pairs of the log speed-up with the log ratio of times to first token.

    With the mean and sd of each (``serving.log_ratio``) both can be drawn together. None where a
    pair lacks one of them, there are fewer than two pairs, or one of them does not vary.
    """
    try:
        found = measured_ratios(confirm, concurrency=concurrency)
    except InputError:
        return None
    faster = -np.log([one.decode for one in found])
    later = np.log([one.prefill for one in found])
    if not (faster.std() > 0 and later.std() > 0):
        return None
    return float(np.clip(np.corrcoef(faster, later)[0, 1], -1.0, 1.0))


def joint_saving(
    profile: TaskProfile,
    ratios: Sequence[JointRatio],
    *,
    draws: int,
    rng: np.random.Generator,
    confidence: float = 0.9,
    only: Callable[[Span], bool] = lambda _: True,
) -> JointSaving:
    """Draw what a task saves when each of its calls takes the ratios of some block pair.

    Each draw resamples the pairs, which is what is not known of their distribution, and then gives
    every call one of them: its prefill and its decode together.

    Args:
        profile: a task that is reconciled, trusted and of no grade below C.
        ratios: the block pairs, at least two.
        draws: how many; at least one.
        rng: source of the draws.
        confidence: of the interval, two-sided.
        only: which calls change, such as those of one route.

    Raises:
        InputError: the task is not one that is priced, or there is nothing to draw from.
    """
    if len(ratios) < _FEWEST or draws < 1:
        raise InputError(
            "has no spread",
            field="ratios",
            value=len(ratios),
            remedy="give at least two block pairs and one draw",
        )
    if not (profile.reconciled and profile.trusted) or profile.evidence_grade == "D":
        raise InputError(
            "is not priced: " + ("; ".join(profile.repairs) or "evidence grade D"),
            field="task",
            value=profile.task.task_id,
            remedy="see its repairs",
        )
    calls = _phases(profile, only)
    factors = [one.factors for one in ratios]
    drawn = list(_drawn(calls, factors, draws, rng))
    saved = saving_draws(profile.graph, profile.task, drawn)
    (at_mean,) = saving_draws(profile.graph, profile.task, [_mean(drawn)])
    values = np.array([float(value) for value in saved])
    ends = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    mean = float(sum(saved, Fraction(0)) / len(saved))
    return JointSaving(mean, float(ends[0]), float(ends[1]), float(at_mean))


def _phases(profile: TaskProfile, only: Callable[[Span], bool]) -> list[list[int]]:
    """Spans that hold the phases of each call: its own, and a server's below it."""
    works = profile.task.works
    wanted: dict[int, list[int]] = {i: [] for i, _ in profile.task.calls if only(works[i].span)}
    for i, owner in enumerate(owners(profile.task)):
        if owner in wanted:
            wanted[owner].append(i)
    return list(wanted.values())


def _drawn(
    calls: Sequence[Sequence[int]],
    factors: Sequence[Mapping[str, Fraction]],
    draws: int,
    rng: np.random.Generator,
) -> Iterator[dict[int, Mapping[str, Fraction]]]:
    n = len(factors)
    for _ in range(draws):
        known = rng.integers(0, n, n)
        picked = known[rng.integers(0, n, len(calls))].tolist()
        yield {i: factors[k] for call, k in zip(calls, picked, strict=True) for i in call}


def _mean(drawn: Sequence[Mapping[int, Mapping[str, Fraction]]]) -> dict[int, dict[str, Fraction]]:
    """Mean factor of every span and kind over the draws, exact."""
    return {
        i: {
            kind: sum((draw[i][kind] for draw in drawn), Fraction(0)) / len(drawn)
            for kind in drawn[0][i]
        }
        for i in drawn[0]
    }
