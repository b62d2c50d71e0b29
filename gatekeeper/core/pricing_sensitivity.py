"""Which input would have to be what for the decision to turn: one at a time, all else as it is.

The decision turns where the low end of the value meets the policy's minimum (0 where there is none).
Each row is found by pricing again with the input changed, on the same random draws: a price by the
straight line that the value is in it, everything else by bisection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scipy import optimize

from gatekeeper.core.pricing_terms import share_held
from gatekeeper.core.pricing_total import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gatekeeper.core.economics import Economics
    from gatekeeper.core.policy_schema import MinimumValue
    from gatekeeper.core.pricing_level import Level
    from gatekeeper.core.pricing_terms import Case
    from gatekeeper.core.time_value import TimeRule
    from gatekeeper.core.value import ValueInterval

__all__ = ["sensitivity"]

_GRID = 24
"""Points looked at between an input and each of its bounds; between two, the first turn counts."""

_DRAWN_CELLS = 1_000_000
"""Tasks times replicates of a search that has to draw anew."""
_FEWEST_REPLICATES = 200

_WIDE = 1000.0
"""How many times more or less is looked at where an input has no bound of its own."""

_STRAIGHT = 1e-9
"""Relative miss of a straight line's root; a larger one means that the line was none."""


@dataclass(frozen=True)
class _Input:
    """One input: its value now, the bounds it is looked for in (None: open), how it is put in.

    ``drawn``: the bootstrap has to be run again for each value. ``way``: ``line`` where the value is
    affine in it, ``steps`` where it may turn anywhere, ``rising`` where it can turn but once.
    """

    name: str
    unit: str
    source: str
    now: float
    low: float | None
    high: float | None
    put: Callable[[Case, float], Case]
    way: str = "line"
    drawn: bool = False


def sensitivity(
    case: Case,
    total: ValueInterval | None,
    minimum: MinimumValue | None,
    rivals: Sequence[Level] = (),
) -> dict[str, Any] | None:
    """Table of inputs with the values at which the decision turns; None while the value is unknown.

    ``rivals`` are the other levels that might price the route with another input: none where a
    second is worth the same at each level.

    ``answer`` says where the value stands: ``above`` the minimum (its low end is), ``below`` it (its
    high end is) or ``astride``. A row's ``flips_at`` is None where no value within ``bounds`` turns
    ``above`` into another answer, or another into ``above``; a bound of None is open. ``change`` is
    the relative change that it takes; rows are in order of it.
    """
    if total is None or (minimum is not None and minimum.currency != total.currency):
        return None
    least = 0.0 if minimum is None else minimum.per_task
    answer = "above" if total.low > least else "below" if total.high < least else "astride"
    rows = [
        _row(found, _flips_at(case, found, total.low - least, least, rivals))
        for found in _inputs(case)
    ]
    if minimum is not None:
        unit = f"{total.currency} per task"
        given = _Input("minimum_value", unit, "policy", least, None, None, lambda one, _: one)
        rows.append(_row(given, total.low))
    rows.sort(key=_distance)
    return {"answer": answer, "minimum": least, "currency": total.currency, "rows": rows}


def _row(found: _Input, flips_at: float | None) -> dict[str, Any]:
    change = None if flips_at is None or not found.now else (flips_at - found.now) / abs(found.now)
    return {
        "input": found.name,
        "unit": found.unit,
        "source": found.source,
        "now": found.now,
        "flips_at": flips_at,
        "change": change,
        "bounds": [found.low, found.high],
    }


def _distance(row: dict[str, Any]) -> tuple[int, float]:
    """Inputs that turn the decision first, the least change first of all."""
    if row["flips_at"] is None:
        return 2, 0.0
    return (1, abs(row["flips_at"])) if row["change"] is None else (0, abs(row["change"]))


def _flips_at(
    case: Case, found: _Input, here: float, least: float, rivals: Sequence[Level]
) -> float | None:
    """Value of an input at which the low end of the value is ``least``; None within its bounds.

    ``here`` is how far the low end is above it now.
    """
    base = replace(case, ledger=case.ledger.scratch())
    others = [replace(base, level=level) for level in rivals]
    if found.source == "serving":  # measured at this level: the others stay as they are
        standing = [_low(other) - least for other in others]
        others = []
    else:
        standing = []
    shift = 0.0
    if found.drawn:
        tasks = case.ledger.tasks
        count = 1 if tasks is None else len(tasks.wall)
        fewer = max(_FEWEST_REPLICATES, min(case.replicates, _DRAWN_CELLS // count))
        base = replace(base, replicates=fewer)
        shift = here - (_low(base) - least)  # what fewer replicates are off by where we stand

    def margin(value: float) -> float:
        mine = _low(found.put(base, value)) + shift - least
        every = [mine, *standing, *(_low(found.put(one, value)) - least for one in others)]
        return math.nan if any(math.isnan(low) for low in every) else min(every)

    if here == 0:
        return found.now
    if found.way == "line" and not rivals:
        step = abs(found.now) or 1.0
        there = margin(found.now + step)
        slope = (there - here) / step
        value = math.inf if slope == 0 else found.now - here / slope
        if not _within(found, value):
            return None
        if abs(margin(value)) <= _STRAIGHT * max(abs(here), abs(there)):
            return value
    return _by_search(found, margin, here)


def _low(case: Case) -> float:
    """Low end of a case's value; NaN where it is unknown."""
    total = value_of(case).total
    return math.nan if total is None else total.low


def _within(found: _Input, value: float) -> bool:
    """Whether a value is finite and inside the bounds; NaN is neither."""
    above = found.low is None or value >= found.low
    return math.isfinite(value) and above and (found.high is None or value <= found.high)


def _by_search(found: _Input, margin: Callable[[float], float], here: float) -> float | None:
    """Nearest turn towards either bound."""
    turns = []
    far = _WIDE * (abs(found.now) or 1.0)
    for end, open_end in ((found.low, found.now - far), (found.high, found.now + far)):
        bound = open_end if end is None else end
        if bound == found.now:
            continue
        before = found.now
        for point in _points(found, bound):
            value = margin(point)
            if math.isnan(value):
                break
            if value == 0 or (value > 0) != (here > 0):
                low, high = min(before, point), max(before, point)
                turns.append(float(optimize.brentq(margin, low, high, xtol=1e-15, rtol=1e-9)))
                break
            before = point
    return min(turns, key=lambda turn: abs(turn - found.now), default=None)


def _points(found: _Input, bound: float) -> Iterator[float]:
    if found.way == "rising":
        yield bound
        return
    for k in range(1, _GRID + 1):
        share = k / _GRID
        if found.now > 0 and bound > 0:
            yield found.now * (bound / found.now) ** share
        else:
            yield found.now + (bound - found.now) * share


def _inputs(case: Case) -> Iterator[_Input]:
    """Every input that is a known number."""
    yield from _of_time(case)
    yield from _of_prices(case)
    yield from _of_gates(case)


def _of_time(case: Case) -> Iterator[_Input]:
    found, currency = case.time, case.economics.currency
    if found is None:
        return
    where, rule = found
    if rule.per_second is not None:
        name = where if where == "value_of_second" else f"{where}.per_second"
        yield _Input(
            name,
            f"{currency} per s",
            "economics",
            rule.per_second,
            0.0,
            None,
            lambda one, value: _with_rule(one, where, replace(rule, per_second=value)),
        )
    elif rule.piecewise is not None:
        pieces = rule.piecewise

        def scaled(one: Case, value: float) -> Case:
            new = tuple(replace(piece, per_s=piece.per_s * value) for piece in pieces)
            return _with_rule(one, where, replace(rule, piecewise=new))

        name, unit = f"{where}.piecewise", "times"
        yield _Input(name, unit, "economics", 1.0, 0.0, None, scaled)
    elif rule.abandonment is not None and rule.abandonment.value_of_kept_task is not None:
        curve = rule.abandonment

        def kept(one: Case, value: float) -> Case:
            new = replace(curve, value_of_kept_task=value)
            return _with_rule(one, where, replace(rule, abandonment=new))

        name, unit = f"{where}.abandonment.value_of_kept_task", f"{currency} per kept task"
        yield _Input(name, unit, "economics", rule.abandonment.value_of_kept_task, 0.0, None, kept)


def _with_rule(case: Case, where: str, rule: TimeRule) -> Case:
    """A case whose economics say ``rule`` where they said something else."""
    prices = case.economics
    if where == "value_of_second":
        return replace(case, economics=replace(prices, value_of_second=rule.per_second))
    at = int(where.partition("[")[2].rstrip("]"))
    rules = prices.value_of_time
    new = (*rules[:at], rule, *rules[at + 1 :])
    return replace(case, economics=replace(prices, value_of_time=new))


def _of_prices(case: Case) -> Iterator[_Input]:
    prices, currency = case.economics, case.economics.currency
    names = {
        "replica_cost_per_hour": f"{currency} per h",
        "draft.device_cost_per_hour": f"{currency} per h",
        "draft.memory_cost_per_gib_hour": f"{currency} per GiB h",
        "operations_per_month": f"{currency} per month",
        "cost_per_failure": f"{currency} per failure",
    }
    if prices.energy is not None and prices.energy.declared:
        names["energy.added_watt_hours_per_task"] = "Wh per task"
        names["energy.price_per_kwh"] = f"{currency} per kWh"
    for name, unit in names.items():
        monthly = name.startswith(("draft.", "operations"))
        if monthly and prices.tasks_per_month is None:
            continue  # at any other price nobody knows how many tasks carry it
        now: Any = prices
        for part in name.split("."):
            now = getattr(now, part)
        if now is not None:
            low = None if "watt_hours" in name else 0.0
            yield _Input(name, unit, "economics", float(now), low, None, _priced(name))
    tasks = prices.tasks_per_month
    if tasks is not None:
        bounds = tasks / _WIDE, tasks * _WIDE
        put = _priced("tasks_per_month")
        yield _Input(
            "tasks_per_month", "tasks per month", "economics", tasks, *bounds, put, "steps"
        )
    share = share_held(replace(case, ledger=case.ledger.scratch()))
    if case.capacity is None and share:
        put = _priced("target_occupancy")
        unit = "of a replica"
        name = "target_occupancy"
        yield _Input(name, unit, "economics", share, share / _WIDE, 1.0, put, "steps")


def _priced(name: str) -> Callable[[Case, float], Case]:
    """How a price of that dotted name is put in."""

    def put(case: Case, value: float) -> Case:
        prices: Economics = case.economics
        holder, _, last = name.rpartition(".")
        if holder:
            inner: Any = replace(getattr(prices, holder), **{last: value})
            return replace(case, economics=replace(prices, **{holder: inner}))
        changed: dict[str, Any] = {last: value}
        return replace(case, economics=replace(prices, **changed))

    return put


def _of_gates(case: Case) -> Iterator[_Input]:
    level, outcome = case.level, case.outcome
    if level is not None:
        now = math.exp(level.log_ratio)
        put = _level_with(lambda one, value: {"log_ratio": math.log(value)})  # noqa: ARG005 - as the others
        yield _Input("speedup", "ratio", "serving", now, 1 / 3, _WIDE, put, "rising", drawn=True)
        curved = case.price_of_second is None or level.log_ttft is not None
        for name, way, drawn in (
            ("ttft_ratio", "rising", curved),
            ("throughput_ratio", "steps", False),
        ):
            now = getattr(level, name)["value"]
            used = level.ttft_s > 0 if name == "ttft_ratio" else case.capacity is None
            if now > 0 and used:
                put = _level_with(_scaled(name, now))
                yield _Input(name, "ratio", "serving", now, now / 10, now * 10, put, way, drawn)
    if outcome is not None and case.economics.cost_per_failure:
        now, put = outcome["difference"], _succeeding
        yield _Input("success_difference", "share", "outcome", now, -1.0, 1.0, put, "rising")


def _level_with(change: Callable[[Any, float], dict[str, Any]]) -> Callable[[Case, float], Case]:
    def put(case: Case, value: float) -> Case:
        level = case.level
        return (
            case if level is None else replace(case, level=replace(level, **change(level, value)))
        )

    return put


def _scaled(name: str, now: float) -> Callable[[Any, float], dict[str, Any]]:
    """A measured ratio with its bounds, moved together, and with what it is drawn from."""

    def change(level: Any, value: float) -> dict[str, Any]:  # noqa: ANN401 - a Level
        by = value / now
        found = {name: {end: ratio * by for end, ratio in getattr(level, name).items()}}
        if name == "ttft_ratio" and level.log_ttft is not None:
            moved = level.log_ttft["mean"] + math.log(by)
            found["log_ttft"] = {**level.log_ttft, "mean": moved}
        return found

    return change


def _succeeding(case: Case, value: float) -> Case:
    """The difference in success moved with its interval, as far as probabilities allow."""
    outcome = case.outcome
    if outcome is None:
        return case
    by = value - outcome["difference"]
    ends = [min(1.0, max(-1.0, end + by)) for end in outcome["interval"]]
    return replace(case, outcome={**outcome, "difference": value, "interval": ends})
