"""What would change a pricing's answer: break-even figures, computed and each with its claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import equation
from gatekeeper.core.documents import compared, counted, in_full
from gatekeeper.core.pricing_narrowing import sentence
from gatekeeper.core.pricing_terms import share_held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.policy_schema import MinimumValue
    from gatekeeper.core.pricing_terms import Case
    from gatekeeper.core.value import ValueInterval, ValueTerms

__all__ = ["what_would_change"]


_LOW_END = "(the low end, which decides, takes more)"
"""Said with each figure of the estimate: the table of inputs that flip the decision has others."""


@equation("value.given")
def given(value: float, run: str) -> float:  # noqa: ARG001 - names the run that measured it
    """Repeat a figure of the gate run ``run``."""
    return value


@equation("value.break_even_second")
def break_even_second(minimum: float, other: float, saved_s: float) -> float | None:
    """Price of a second at which ``saved_s`` of it and the ``other`` terms make the minimum.

    None where no second is saved.
    """
    return (minimum - other) / saved_s if saved_s > 0 else None


@equation("value.saving_needed")
def saving_needed(
    minimum: float, other: float, value_per_s: float, first_token_s: float
) -> float | None:
    """Seconds of decoding to save per task for the minimum; None where seconds are worth nothing."""
    return (minimum - other) / value_per_s + first_token_s if value_per_s > 0 else None


@equation("value.tasks_needed")
def tasks_needed(
    minimum: float, other: float, cost_per_month: float, energy_per_task: float
) -> float | None:
    """Tasks a month that carry a monthly cost at the minimum; None where no number would."""
    room = other - energy_per_task - minimum
    return cost_per_month / room if room > 0 else None


@equation("value.occupancy_needed")
def occupancy_needed(minimum: float, other: float, avoided: float, share: float) -> float | None:
    """Share of a replica held per task at which the capacity set free makes the minimum.

    ``avoided`` is the capacity's worth at ``share``, ``other`` all that does not depend on it. None
    where nothing is set free, or where even a whole replica would not do.
    """
    if avoided <= 0:
        return None
    needed = share * (minimum - other) / avoided
    return needed if 0 < needed <= 1 else None


@equation("value.low_at_known_loss")
def low_at_known_loss(low: float, loss_high: float, loss_value: float) -> float:
    """Low end of the value if the expected loss had no spread."""
    return low + loss_high - loss_value


def what_would_change(
    case: Case,
    terms: ValueTerms,
    total: ValueInterval | None,
    minimum: MinimumValue | None,
    more: Mapping[str, Any] | None = None,
) -> list[str]:
    """Sentences on the figures at which the value meets the minimum (0 where there is none).

    The price of a second is that at which the low end, which has to exceed the minimum, meets it;
    speed-up, number of tasks and occupancy are those of the estimate, and say so. First comes how much ``more`` evidence
    would do, where `narrowing` looked for it.
    """
    worth, operations = terms.latency_value, terms.operational_cost
    if total is None or worth is None or operations is None:
        return []
    if minimum is not None and minimum.currency != total.currency:
        return [f"Prices in {minimum.currency}, which the policy's minimum is in."]
    least = 0.0 if minimum is None else minimum.per_task
    wanted = f"the minimum of {in_full(least)} {total.currency}"
    found = [
        sentence(more, total, wanted),
        _second(case, worth, total, least, wanted),
        _speedup(case, worth, total, least, wanted),
        _tasks(case, operations, total, least, wanted),
        _occupancy(case, terms, total, least, wanted),
        _failures(case, terms, total, least),
    ]
    return [sentence for sentence in found if sentence is not None]


def _second(
    case: Case, worth: ValueInterval, total: ValueInterval, least: float, wanted: str
) -> str | None:
    now, currency = case.price_of_second, case.economics.currency
    if not now:
        return None
    other = total.low - worth.low
    value = case.ledger.add(
        "change.value_of_second",
        "value.break_even_second",
        f"{currency} per s",
        minimum=least,
        other=other,
        saved_s=worth.low / now,
    )
    if value is None:
        return (
            "No price of a second would do: the low end of the interval saves no time on the "
            "critical path."
        )
    if value <= 0:
        return f"Even seconds worth nothing would leave the low end above {wanted}."
    even, current = compared(value, now, 3)
    if total.low > least:
        side = f"At {even} {currency} or less for a second the low end no longer exceeds"
    else:
        side = f"Above {even} {currency} for a second the low end would exceed"
    return f"{side} {wanted}; it is {current} now."


def _speedup(
    case: Case, worth: ValueInterval, total: ValueInterval, least: float, wanted: str
) -> str | None:
    book, level, now = case.ledger, case.level, case.price_of_second
    if not now or level is None:
        return None
    harm = next((c.value for c in book.claims if c.id.endswith("/first_token_s")), 0.0)
    saving = book.add(
        "change.saved_s",
        "value.saving_needed",
        "s per task",
        minimum=least,
        other=total.value - worth.value,
        value_per_s=now,
        first_token_s=harm,
    )
    if saving is None:
        return None
    ratio = book.add("change.speedup", "value.speedup_needed", "ratio", saved_s=saving)
    if ratio is None:
        return (
            f"No speed-up of decoding reaches {wanted}: it takes {saving:.3g} s a task, more than "
            "decoding in no time would save."
        )
    return (
        f"A decoding speed-up of {ratio:.3g} makes the estimate meet {wanted} {_LOW_END}; "
        f"{level.ratio:.3g} was measured at concurrency {level.concurrency}."
    )


def _tasks(
    case: Case, operations: ValueInterval, total: ValueInterval, least: float, wanted: str
) -> str | None:
    prices = case.economics
    cost, now = prices.operations_per_month, prices.tasks_per_month
    if not cost or not now:
        return None
    energy = operations.value - cost / now
    value = case.ledger.add(
        "change.tasks_per_month",
        "value.tasks_needed",
        "tasks per month",
        minimum=least,
        other=total.value + operations.value,
        cost_per_month=cost,
        energy_per_task=energy,
    )
    if value is None:
        return None
    return (
        f"With {counted(value)} tasks a month the estimate meets {wanted} {_LOW_END}, after the "
        f"cost of operations; {counted(now)} are assumed now."
    )


def _occupancy(
    case: Case, terms: ValueTerms, total: ValueInterval, least: float, wanted: str
) -> str | None:
    avoided, level = terms.avoided_target_capacity, case.level
    share = share_held(case)
    if case.capacity is not None or avoided is None or level is None or not share:
        return None
    value = case.ledger.add(
        "change.occupancy",
        "value.occupancy_needed",
        "share of a replica",
        minimum=least,
        other=total.value - avoided.value,
        avoided=avoided.value,
        share=share,
    )
    if value is None:
        return None
    return (
        f"Where a decoding task holds {value:.3g} of a replica, the capacity that it sets free makes "
        f"the estimate meet {wanted} {_LOW_END}; {share:.3g} is assumed now."
    )


def _failures(case: Case, terms: ValueTerms, total: ValueInterval, least: float) -> str | None:
    """Whether it is the outcome interval alone that keeps the low end down."""
    loss = terms.expected_quality_loss
    if loss is None or total.low > least:
        return None
    without = case.ledger.add(
        "change.low_at_known_loss",
        "value.low_at_known_loss",
        f"{total.currency} per task",
        low=total.low,
        loss_high=loss.high,
        loss_value=loss.value,
    )
    if without is None or without <= least:
        return None
    low_end, minimum = compared(without, least, 3)
    return (
        f"More outcome pairs: with the success difference known exactly, the low end would be "
        f"{low_end} {total.currency}, above the minimum of {minimum} {total.currency}."
    )
