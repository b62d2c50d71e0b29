"""What a serving gate measured, asked of one's own tasks: ``profile --serving``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.task_assignment import assign
from gatekeeper.errors import InputError
from gatekeeper.reports.profile_measured import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from gatekeeper.core.joint_ratios import JointRatio
    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.traces import Span

__all__ = ["measured_savings", "read_ratios"]

_DRAWS = 200
_SEED = 6
_COLUMNS = frozenset(
    {"pair", "arm", "concurrency", "arrival_s", "first_s", "finish_s", "tokens", "first_tokens"}
    | {"gaps_s", "reason"}
)


def read_ratios(file: Path, concurrency: int | None) -> tuple[int, tuple[JointRatio, ...]]:
    """Read a gate run's table ``confirm``: the level of concurrency, and its pairs' ratios.

    Raises:
        InputError: it is no such table, has several levels and none is named, or not this one.
    """
    import pandas as pd

    from gatekeeper.core.joint_ratios import measured_ratios

    try:
        table = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read as Parquet ({str(error).partition(chr(10))[0]})",
            field="serving",
            value=str(file),
            remedy="save GET /v1/gate-runs/ID/evidence/confirm of a serving run",
        ) from error
    missing = sorted(_COLUMNS - set(table.columns))
    if missing:
        raise InputError(
            f"is no confirm table: it lacks {', '.join(missing)}",
            field="serving",
            value=str(file),
            remedy="save GET /v1/gate-runs/ID/evidence/confirm of a serving run",
        )
    levels = sorted({int(level) for level in table["concurrency"]})
    chosen = levels[0] if concurrency is None and len(levels) == 1 else concurrency
    if chosen not in levels:
        raise InputError(
            "is no level of this table" if concurrency is not None else "is not named",
            field="concurrency",
            value="absent" if concurrency is None else concurrency,
            remedy=f"use one of {', '.join(map(str, levels)) or 'none: the table is empty'}",
        )
    return chosen, measured_ratios(table, concurrency=chosen)


def measured_savings(
    profiles: Sequence[TaskProfile], concurrency: int, ratios: Sequence[JointRatio]
) -> list[Measured]:
    """Draw what each task saves at these ratios; only calls of the route asked about change."""
    import numpy as np

    from gatekeeper.core.joint_ratios import joint_saving

    rng = np.random.default_rng(_SEED)
    found = []
    for profile in profiles:
        asked = profile.what_if
        calls = {
            call.span_id
            for call in assign(profile.task, asked.routing)
            if asked.route is None or call.route == asked.route
        }
        priced = profile.reconciled and profile.trusted and profile.evidence_grade != "D"
        saved = None
        if priced:
            saved = joint_saving(
                profile,
                ratios,
                draws=_DRAWS,
                rng=rng,
                only=_among(calls),
            )
        found.append(Measured(concurrency, len(ratios), saved))
    return found


def _among(calls: Collection[str]) -> Callable[[Span], bool]:
    return lambda span: span.span_id in calls
