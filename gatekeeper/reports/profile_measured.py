"""A task's saving at what a serving gate measured, as JSON and as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.reports.profile_words import Unit

if TYPE_CHECKING:
    from gatekeeper.core.joint_ratios import JointSaving

__all__ = ["Measured", "measured_json", "measured_sentence"]

_NS = 10**9


@dataclass(frozen=True)
class Measured:
    """Saving at the ratios of so many block pairs at one concurrency; None where not priced."""

    concurrency: int
    pairs: int
    saving: JointSaving | None


def measured_json(found: Measured | None) -> dict[str, Any] | None:
    """``measured_saving_s`` of a task in the answer of ``profile --json``."""
    if found is None:
        return None
    saving = found.saving
    return {
        "concurrency": found.concurrency,
        "pairs": found.pairs,
        "mean": None if saving is None else saving.mean_ns / _NS,
        "low": None if saving is None else saving.low_ns / _NS,
        "high": None if saving is None else saving.high_ns / _NS,
        "at_mean_ratios": None if saving is None else saving.at_mean_ns / _NS,
    }


def measured_sentence(found: Measured, wall_ns: int) -> str:
    """What a task saves at the measured ratios, in one sentence without a full stop."""
    where = f"at concurrency {found.concurrency}, {found.pairs} block pairs"
    if found.saving is None:
        return f"unknown, which is not zero ({where})"
    unit, saving = Unit(wall_ns), found.saving
    verb = "saved" if saving.mean_ns >= 0 else "lost"
    low, high = round(saving.low_ns), round(saving.high_ns)
    return (
        f"{unit(abs(round(saving.mean_ns)))} {verb}, {unit(low)} to {unit(high)} in 90 of 100 draws "
        f"of first token and decoding together ({where})"
    )
