"""Incremental value per task as an interval.

    value = latency value from critical-path reduction + avoided target capacity cost
            − draft capacity and memory cost − operational cost − expected quality loss

A term that is not known makes the value unknown: it is never taken as 0. A term known to be
nothing is ``ValueInterval.exactly(0, currency)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from gatekeeper.core.claims import equation
from gatekeeper.core.documents import check
from gatekeeper.errors import InputError

__all__ = [
    "ValueInterval",
    "ValueTerms",
    "avoided_capacity",
    "draft_cost",
    "incremental_value",
    "kept_tasks_value",
    "latency_value",
    "operational_cost",
    "quality_loss",
    "value_per_task",
]


@dataclass(frozen=True)
class ValueInterval:
    """Money per task with its interval: low <= value <= high."""

    value: float
    low: float
    high: float
    currency: str

    def __post_init__(self) -> None:
        finite = all(math.isfinite(x) for x in (self.low, self.value, self.high))
        if not finite or not self.low <= self.value <= self.high:
            raise InputError(
                "is not an interval",
                field="value",
                value=(self.low, self.value, self.high),
                remedy="give finite low <= value <= high; leave an unknown term out",
            )

    @classmethod
    def exactly(cls, value: float, currency: str) -> ValueInterval:
        """A figure without uncertainty, such as an invoice."""
        return cls(value, value, value, currency)

    def scaled(self, factor: float) -> ValueInterval:
        """The interval times a known factor; a negative one turns it round."""
        ends = sorted((self.low * factor, self.high * factor))
        return ValueInterval(self.value * factor, ends[0], ends[1], self.currency)

    def __add__(self, other: ValueInterval) -> ValueInterval:
        """End by end: it covers whatever the dependence between the two.

        Raises:
            InputError: the currencies differ.
        """
        if self.currency != other.currency:
            raise InputError(
                "differ",
                field="currencies",
                value=(self.currency, other.currency),
                remedy="convert every term to one currency",
            )
        return ValueInterval(
            self.value + other.value, self.low + other.low, self.high + other.high, self.currency
        )

    def __sub__(self, other: ValueInterval) -> ValueInterval:
        """As ``+``, with the other interval turned round."""
        return self + other.scaled(-1.0)

    def to_dict(self) -> dict[str, Any]:
        """The lease's form: per_task, low, high, currency."""
        return {
            "per_task": self.value,
            "low": self.low,
            "high": self.high,
            "currency": self.currency,
        }


@dataclass(frozen=True)
class ValueTerms:
    """The five terms per task, each as a magnitude with its interval; None is unknown."""

    latency_value: ValueInterval | None
    avoided_target_capacity: ValueInterval | None
    draft_capacity_and_memory: ValueInterval | None
    operational_cost: ValueInterval | None
    expected_quality_loss: ValueInterval | None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the terms that nobody has measured or stated."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is None)


def incremental_value(terms: ValueTerms) -> ValueInterval | None:
    """Combine the five terms; None while any of them is unknown.

    Raises:
        InputError: the currencies differ.
    """
    gains = (terms.latency_value, terms.avoided_target_capacity)
    costs = (terms.draft_capacity_and_memory, terms.operational_cost, terms.expected_quality_loss)
    known_gains = [g for g in gains if g is not None]
    known_costs = [c for c in costs if c is not None]
    if len(known_gains) < len(gains) or len(known_costs) < len(costs):
        return None
    total = known_gains[0] + known_gains[1]
    for cost in known_costs:
        total = total - cost
    return total


@equation("value.per_task")
def value_per_task(
    latency_value: float,
    avoided_target_capacity: float,
    draft_capacity_and_memory: float,
    operational_cost: float,
    expected_quality_loss: float,
) -> float:
    """The sum that ``incremental_value`` forms, for one figure of each term (or one end)."""
    gains = latency_value + avoided_target_capacity
    return gains - draft_capacity_and_memory - operational_cost - expected_quality_loss


@equation("value.latency")
def latency_value(saved_s: float, value_per_s: float) -> float:
    """Worth of the seconds that leave the task's critical path."""
    return saved_s * value_per_s


@equation("value.kept_tasks")
def kept_tasks_value(kept: float, value_of_kept_task: float) -> float:
    """Worth of the share of tasks that are no longer abandoned."""
    return kept * value_of_kept_task


@equation("value.avoided_capacity")
def avoided_capacity(target_s_before: float, target_s_after: float, cost_per_s: float) -> float:
    """Target device seconds per task that are no longer needed, at their price.

    ``target_s`` is occupancy: device seconds divided by the tasks served in them. Negative when
    speculation needs more of the target than ordinary decoding.

    Raises:
        InputError: a negative occupancy or price.
    """
    _not_negative(target_s_before=target_s_before, target_s_after=target_s_after, price=cost_per_s)
    return (target_s_before - target_s_after) * cost_per_s


@equation("value.draft")
def draft_cost(
    draft_s: float, cost_per_s: float, byte_s: float, cost_per_byte_s: float, idle: float = 0.0
) -> float:
    """Draft device seconds and memory held (byte seconds) per task, with idle reservation.

    Raises:
        InputError: a negative quantity or price.
    """
    _not_negative(
        draft_s=draft_s,
        cost_per_s=cost_per_s,
        byte_s=byte_s,
        cost_per_byte_s=cost_per_byte_s,
        idle=idle,
    )
    return draft_s * cost_per_s + byte_s * cost_per_byte_s + idle


@equation("value.operational")
def operational_cost(
    cost_per_month: float, tasks_per_month: float, energy_per_task: float = 0.0
) -> float:
    """Cost of owning the added artifact (gates, updates, alarms), spread over the tasks.

    ``energy_per_task`` is the cost of the energy that a task takes more, where it is declared.

    Raises:
        InputError: a negative cost, or no tasks to carry it.
    """
    _not_negative(cost_per_month=cost_per_month)
    check([("tasks_per_month", tasks_per_month, tasks_per_month > 0, "count the route's tasks")])
    return cost_per_month / tasks_per_month + energy_per_task


@equation("value.quality_loss")
def quality_loss(failure_increase: float, cost_per_failure: float) -> float:
    """Expected loss per task: added probability of failure times what a failure costs.

    Raises:
        InputError: a probability difference outside [−1, 1] or a negative cost.
    """
    bounded = -1 <= failure_increase <= 1
    check([("failure_increase", failure_increase, bounded, "use a difference of probabilities")])
    _not_negative(cost_per_failure=cost_per_failure)
    return failure_increase * cost_per_failure


def _not_negative(**values: float) -> None:
    check([(name, v, v >= 0, "use 0 or more") for name, v in values.items()])
