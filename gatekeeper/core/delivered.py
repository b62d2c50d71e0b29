"""Promised against delivered: what a rollout's candidate arm brought, beside tasks that were left as they are.

Keys are allotted by a hash, so the arms are a randomised experiment that runs at the same time on the
same traffic. Saving: mean wall time of the ordinary tasks minus that of the candidate's, seconds a task.
Success: share of the candidate's tasks that succeeded minus that of the ordinary ones. Both count every
task of an arm, also those whose requests were bypassed by a request-time rule: what the rollout brings,
not what speculation brings where it is used.

Table ``tasks``, one row per complete task: ``task``, ``arm``, ``session`` (the cluster), ``wall_s`` and
``success`` (1, 0; NaN where nobody told).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS

from gatekeeper.core.arms import CANDIDATE, ORDINARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.delivered_window import ArmTask

__all__ = [
    "BELOW",
    "HARM",
    "HELD",
    "UNKNOWN",
    "Delivered",
    "Finding",
    "Interval",
    "Promise",
    "difference",
    "judge",
    "promise_of",
    "table_of",
]

HELD, UNKNOWN, BELOW, HARM = "held", "unknown", "below", "harm"
"""Nothing shows that the promise is broken; nothing is shown; less than promised; worse than without."""

_WORST_FIRST = (HARM, BELOW, UNKNOWN, HELD)


@dataclass(frozen=True)
class Interval:
    """A difference with its two-sided interval, and the tasks and sessions that it rests on."""

    value: float
    low: float
    high: float
    tasks: int
    sessions: int


@dataclass(frozen=True)
class Promise:
    """What the gates led to expect.

    ``saving``: seconds a task, {value, low, high}; None where no pricing says it. ``margin``: largest
    loss of success that the policy puts up with. ``success_needed``: whether the policy demands the
    outcome gate, so that a rollout owes the outcomes of its tasks too.
    """

    saving: Mapping[str, float] | None
    margin: float
    success_needed: bool


@dataclass(frozen=True)
class Finding:
    """One figure against its promise: outcome and a sentence."""

    name: str
    outcome: str
    says: str


@dataclass(frozen=True)
class Delivered:
    """What one window delivered."""

    saving: Interval | None
    success: Interval | None
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> str:
        """The worst finding's."""
        seen = {finding.outcome for finding in self.findings}
        return next(outcome for outcome in _WORST_FIRST if outcome in seen)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "outcome": self.outcome,
            "saving_s": None if self.saving is None else asdict(self.saving),
            "success": None if self.success is None else asdict(self.success),
            "findings": [asdict(finding) for finding in self.findings],
        }


def table_of(tasks: Iterable[ArmTask]) -> pd.DataFrame:
    """Table of the tasks that are on either side."""
    rows = [
        (t.task, t.arm, t.session, t.wall_s, None if t.success is None else float(t.success))
        for t in tasks
        if t.arm == CANDIDATE or t.arm in ORDINARY
    ]
    table = pd.DataFrame(rows, columns=["task", "arm", "session", "wall_s", "success"])
    return table.astype({"wall_s": float, "success": float})


def difference(table: pd.DataFrame, *, column: str, confidence: float) -> Interval | None:
    """Mean of ``column`` in the candidate arm minus the mean of the ordinary tasks.

    Ordinary least squares on the arm, its variance clustered by session (tasks of one session share
    text, tools and hour), Student's t with one degree of freedom less than there are sessions.

    Returns:
        None where a side has no task, or there are fewer than two sessions.
    """
    rows = table[table[column].notna()]
    arm = (rows["arm"] == CANDIDATE).to_numpy()
    sessions, number = pd.factorize(rows["session"])[::-1]
    if arm.all() or not arm.any() or len(sessions) < 2:  # noqa: PLR2004 - a variance needs two
        return None
    values = rows[column].to_numpy(float)
    value = float(values[arm].mean() - values[~arm].mean())
    counts = (len(rows), len(sessions))
    if len(np.unique(values)) == 1:  # all alike: least squares would divide nothing by nothing
        return Interval(value, value, value, *counts)
    design = np.column_stack([np.ones(len(rows)), arm])
    groups = {"groups": number, "use_correction": True, "df_correction": True}
    fitted = OLS(values, design).fit(cov_type="cluster", cov_kwds=groups, use_t=True)
    low, high = fitted.conf_int(alpha=1 - confidence)[1]
    return Interval(value, float(low), float(high), *counts)


def judge(table: pd.DataFrame, promise: Promise, *, confidence: float) -> Delivered:
    """Hold a window that is full against what was promised."""
    slower = difference(table, column="wall_s", confidence=confidence)
    saving = slower and Interval(
        -slower.value, -slower.high, -slower.low, slower.tasks, slower.sessions
    )
    success = difference(table, column="success", confidence=confidence)
    findings = (_saving(saving, promise), _success(success, promise))
    return Delivered(saving, success, tuple(f for f in findings if f is not None))


def promise_of(pricing: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Net seconds saved a task that a pricing document promises; None where it does not know.

    By the worst ends of both: the low end of what decoding saves, less the high end of what a later
    first token costs. Pricing draws the two together, and so promises no less.
    """
    saved = None if pricing is None else pricing.get("saved_s")
    harm = None if pricing is None else pricing.get("first_token_s")
    if saved is None or harm is None:
        return None
    return {
        "value": saved["value"] - harm["value"],
        "low": saved["low"] - harm["high"],
        "high": saved["high"] - harm["low"],
    }


def _saving(found: Interval | None, promise: Promise) -> Finding:
    name = "saving"
    if found is None:
        return Finding(name, UNKNOWN, "no tasks to compare")
    says = f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}] s a task"
    if found.high < 0:
        return Finding(name, HARM, f"{says}: tasks take longer than without")
    if promise.saving is None:
        return Finding(name, UNKNOWN, f"{says}: no pricing says what to expect")
    low = promise.saving["low"]
    says = f"{says}, promised at least {low:.3g}"
    if found.high < low:
        return Finding(name, BELOW, f"{says}: less than that")
    return Finding(name, HELD, says)


def _success(found: Interval | None, promise: Promise) -> Finding | None:
    name = "success"
    if found is None:
        return Finding(name, UNKNOWN, "no outcomes to compare") if promise.success_needed else None
    says = (
        f"difference {found.value:.3g} [{found.low:.3g}, {found.high:.3g}], "
        f"at most {promise.margin:g} less is allowed"
    )
    if found.high < -promise.margin:
        return Finding(name, HARM, f"{says}: tasks succeed less often")
    return Finding(name, HELD, says)
