"""Choice of the draft window from measured curves, concurrency by concurrency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.documents import check
from gatekeeper.core.progress import marginal_from_curve, progress_from_curve, speedup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["StepCosts", "WindowChoice", "WindowOption", "choose_by_concurrency", "choose_window"]


@dataclass(frozen=True)
class StepCosts:
    """Measured times at one concurrency, seconds: T1, and Td and Tv by gamma.

    A gamma absent from either mapping was not measured and is never chosen.
    """

    ordinary_s: float
    draft_s: Mapping[int, float]
    verify_s: Mapping[int, float]
    overhead_s: float = 0.0


@dataclass(frozen=True)
class WindowOption:
    """One candidate window. ``marginal_tokens`` is what its last position adds to progress."""

    gamma: int
    progress: float
    marginal_tokens: float
    speedup: float


@dataclass(frozen=True)
class WindowChoice:
    """The chosen gamma, 0 for ordinary decoding, among ``options`` in rising gamma.

    ``diminishing_from`` is the smallest measured gamma after which no longer window is faster,
    None when nothing was measured.
    """

    gamma: int
    speedup: float
    options: tuple[WindowOption, ...]
    diminishing_from: int | None


def choose_window(
    conditional_acceptance: Sequence[float | None], costs: StepCosts, *, min_speedup: float = 1.0
) -> WindowChoice:
    """Choose the gamma of the highest estimated speed-up, 0 unless it exceeds ``min_speedup``.

    Equal speed-ups go to the smaller gamma. The curve is used as far as it was measured: a
    window that would need an unreached position (None) is no candidate.

    Raises:
        InputError: a probability outside [0, 1], a time that cannot be, or a gamma below 1.
    """
    curve: list[float] = []
    for value in conditional_acceptance:
        if value is None:
            break
        curve.append(value)
    measured = sorted(set(costs.draft_s) & set(costs.verify_s))
    check([("gamma", g, g >= 1, "give draft and verify times of windows") for g in measured])
    options = tuple(
        WindowOption(
            gamma=gamma,
            progress=progress_from_curve(curve, gamma),
            marginal_tokens=marginal_from_curve(curve, gamma),
            speedup=speedup(
                progress_from_curve(curve, gamma),
                costs.ordinary_s,
                costs.draft_s[gamma],
                costs.verify_s[gamma],
                costs.overhead_s,
            ),
        )
        for gamma in measured
        if gamma <= len(curve)
    )
    best = max(options, key=lambda o: (o.speedup, -o.gamma), default=None)
    if best is None:
        return WindowChoice(0, 1.0, options, None)
    if best.speedup <= min_speedup:
        return WindowChoice(0, 1.0, options, best.gamma)
    return WindowChoice(best.gamma, best.speedup, options, best.gamma)


def choose_by_concurrency(
    conditional_acceptance: Sequence[float | None],
    costs: Mapping[int, StepCosts],
    *,
    min_speedup: float = 1.0,
) -> dict[int, WindowChoice]:
    """``choose_window`` at every measured concurrency: a gain alone may vanish in a batch.

    Raises:
        InputError: as ``choose_window``.
    """
    return {
        concurrency: choose_window(
            conditional_acceptance, costs[concurrency], min_speedup=min_speedup
        )
        for concurrency in sorted(costs)
    }
