"""Four terms of the value per task, each an interval or unknown with what it still needs.

The fifth, what saved time is worth, is `gatekeeper.core.pricing_latency`.

An end of an interval takes each input at the end that makes the term smallest or largest, so the
interval covers whatever the dependence between its inputs. Terms add up the same way: they come of
different measurements. Saved time alone rests on two ratios of the same block pairs, and draws them
together there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import equation
from gatekeeper.core.economics import MEASURED, Economics
from gatekeeper.core.pricing_ledger import ENDS, FLIPPED, PricingLedger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.pricing_level import Capacity, Level
    from gatekeeper.core.time_value import TimeRule
    from gatekeeper.core.value import ValueInterval

__all__ = [
    "Case",
    "Replicas",
    "avoided_target_capacity",
    "draft_capacity_and_memory",
    "expected_quality_loss",
    "operational",
    "share_held",
]

HOURS_PER_MONTH = 365.25 * 24 / 12
SECONDS_PER_HOUR = 3600
_GIB = 2**30


@dataclass(frozen=True)
class Case:
    """What one pricing rests on; ``draft_bytes`` None where the engine could not measure them.

    ``replicates`` and ``seed`` are the bootstrap's.
    """

    ledger: PricingLedger
    economics: Economics
    level: Level | None
    capacity: Capacity | None
    draft_bytes: float | None
    outcome: Mapping[str, Any] | None
    replicates: int
    seed: int

    @property
    def time(self) -> tuple[str, TimeRule] | None:
        """What a second is worth on this route at this level, and where that stands."""
        load = None if self.level is None else self.level.concurrency
        return self.economics.time_rule(self.ledger.route, load)

    @property
    def price_of_second(self) -> float | None:
        """Money per second where it is the same for every task; None otherwise."""
        found = self.time
        return None if found is None else found[1].per_second

    def price(self, name: str) -> float | None:
        """A price of the economics by dotted name; unknown ones are noted as needed."""
        value: Any = self.economics
        for part in name.split("."):
            value = getattr(value, part)
        if value is None:
            self.ledger.need(f"{name} in economics {self.economics.name}")
            return None
        return float(value)


@dataclass(frozen=True)
class Replicas:
    """Target replicas for the route's tasks; ``candidate`` by end of the gain, None if unknown."""

    load_rps: float
    baseline: float
    candidate: Mapping[str, float]


@equation("value.load")
def load(tasks_per_month: float, calls: float) -> float:
    """Requests per second of a route, averaged over a month."""
    return tasks_per_month * calls / (HOURS_PER_MONTH * SECONDS_PER_HOUR)


@equation("value.capacity")
def capacity(goodputs: Sequence[float]) -> float:
    """Requests/s within the objectives that one replica serves at its best level of load."""
    return max(goodputs)


@equation("value.replicas")
def replicas(load_rps: float, capacity_rps: float) -> float:
    """Whole replicas for a load, at least one."""
    return float(max(1, math.ceil(load_rps / capacity_rps)))


@equation("value.avoided_replicas")
def avoided_replicas(
    baseline: float, candidate: float, cost_per_hour: float, tasks_per_month: float
) -> float:
    """Money per task for the replicas that are no longer needed; negative when more are."""
    return (baseline - candidate) * cost_per_hour * HOURS_PER_MONTH / tasks_per_month


@equation("value.occupied")
def occupied(decode_s: float, share: float, ratio: float) -> float:
    """Replica seconds of one task: its decoding times the share held, at a throughput ``ratio``."""
    return decode_s * share / ratio


@equation("value.busy_replicas")
def busy_replicas(occupied_s: float, tasks_per_month: float) -> float:
    """Whole replicas that a month's tasks keep busy, at least one."""
    return float(
        max(1, math.ceil(occupied_s * tasks_per_month / (HOURS_PER_MONTH * SECONDS_PER_HOUR)))
    )


@equation("value.held")
def held(replicas: float, tasks_per_month: float) -> float:
    """Seconds of a month, over all replicas, that one task has to carry."""
    return replicas * HOURS_PER_MONTH * SECONDS_PER_HOUR / tasks_per_month


@equation("value.energy")
def energy(added_watt_hours: float, price_per_kwh: float) -> float:
    """Money per task for the energy that speculation adds."""
    return added_watt_hours / 1000 * price_per_kwh


def avoided_target_capacity(case: Case) -> tuple[Replicas | None, ValueInterval | None]:
    """Replicas at the objectives where goodput was measured, else the target seconds freed."""
    cost = case.price("replica_cost_per_hour")
    if case.level is None:
        return None, None
    if case.capacity is None:
        return _by_occupancy(case, cost)
    found = _by_goodput(case, case.capacity)
    tasks = case.economics.tasks_per_month
    if found is None or cost is None or tasks is None:
        return found, None
    ends = {
        end: {
            "baseline": found.baseline,
            "candidate": found.candidate[end],
            "cost_per_hour": cost,
            "tasks_per_month": tasks,
        }
        for end in ENDS
    }
    name, currency = "avoided_target_capacity", case.economics.currency
    return found, case.ledger.money(name, "value.avoided_replicas", currency, ends)


def _by_goodput(case: Case, measured: Capacity) -> Replicas | None:
    book = case.ledger
    tasks = case.price("tasks_per_month")
    calls = book.add("calls_for_load", "value.task_mean", "calls per task", column="calls")
    if tasks is None or calls is None:
        return None
    wanted = book.add("load_rps", "value.load", "requests/s", tasks_per_month=tasks, calls=calls)
    unit = "requests/s per replica"
    before = book.add("capacity.baseline", "value.capacity", unit, goodputs=measured.baseline)
    after = book.ends(
        "capacity.candidate",
        "value.capacity",
        unit,
        {end: {"goodputs": measured.candidate[end]} for end in ENDS},
    )
    if wanted is None or before is None or after is None or min(before, *after.values()) <= 0:
        book.need("a serving gate with requests that meet the objectives in both arms")
        return None
    inputs = {"load_rps": wanted, "capacity_rps": before}
    baseline = book.add("replicas.baseline", "value.replicas", "replicas", **inputs)
    candidate = book.ends(
        "replicas.candidate",
        "value.replicas",
        "replicas",
        {end: {"load_rps": wanted, "capacity_rps": after[end]} for end in ENDS},
    )
    if baseline is None or candidate is None:
        return None
    return Replicas(wanted, baseline, candidate)


def _by_occupancy(case: Case, cost: float | None) -> tuple[None, ValueInterval | None]:
    """Decoding on the critical path alone: work beside it also frees the target, unpriced."""
    book, level, share = case.ledger, case.level, share_held(case)
    if cost is None or share is None or level is None:
        return None, None
    column = "decode_on_path_s"
    decode = book.add("decode_on_path_s", "value.task_mean", "s per task", column=column)
    if decode is None:
        return None, None
    unit, inputs = "replica s per task", {"decode_s": decode, "share": share}
    before = book.add("occupied.baseline", "value.occupied", unit, **inputs, ratio=1.0)
    after = book.ends(
        "occupied.candidate",
        "value.occupied",
        unit,
        {end: {**inputs, "ratio": level.throughput_ratio[end]} for end in ENDS},
    )
    if before is None or after is None:
        return None, None
    ends = {
        end: {
            "target_s_before": before,
            "target_s_after": after[end],
            "cost_per_s": cost / SECONDS_PER_HOUR,
        }
        for end in ENDS
    }
    name, currency = "avoided_target_capacity", case.economics.currency
    return None, book.money(name, "value.avoided_capacity", currency, ends)


def share_held(case: Case) -> float | None:
    """Share of a replica that a decoding task holds: as stated, or as the serving gate ran."""
    if case.economics.target_occupancy == MEASURED:
        return None if case.level is None else 1 / case.level.concurrency
    return case.price("target_occupancy")


def draft_capacity_and_memory(case: Case, needed: Replicas | None) -> ValueInterval | None:
    """The proposer's device and the memory that it holds, reserved all month on each replica."""
    book = case.ledger
    device = case.price("draft.device_cost_per_hour")
    memory = case.price("draft.memory_cost_per_gib_hour")
    currency = case.economics.currency
    if device is None or memory is None:
        return None
    size = 0.0 if memory == 0 else case.draft_bytes
    if size is None:
        book.need("a serving gate whose engine measures the draft's memory")
        return None
    if device == 0 and memory * size == 0:
        nothing = {"draft_s": 0.0, "cost_per_s": 0.0, "byte_s": 0.0, "cost_per_byte_s": 0.0}
        ends = dict.fromkeys(ENDS, nothing)
        return book.money("draft_capacity_and_memory", "value.draft", currency, ends)
    tasks = case.price("tasks_per_month")
    counts = None if tasks is None else _reserved(case, needed, tasks)
    if tasks is None or counts is None:
        return None
    seconds = book.ends(
        "draft_held_s",
        "value.held",
        "s per task",
        {end: {"replicas": counts[end], "tasks_per_month": tasks} for end in ENDS},
    )
    if seconds is None:
        return None
    ends = {
        end: {
            "draft_s": seconds[end],
            "cost_per_s": device / SECONDS_PER_HOUR,
            "byte_s": seconds[end] * size,
            "cost_per_byte_s": memory / _GIB / SECONDS_PER_HOUR,
        }
        for end in ENDS
    }
    return book.money("draft_capacity_and_memory", "value.draft", currency, ends)


def _reserved(case: Case, needed: Replicas | None, tasks: float) -> Mapping[str, float] | None:
    """Replicas that hold a draft, by end of the cost."""
    if needed is not None:
        return {end: needed.candidate[FLIPPED[end]] for end in ENDS}
    book, level, share = case.ledger, case.level, share_held(case)
    decode = book.add("draft.decode_s", "value.task_mean", "s per task", column="decode_on_path_s")
    if level is None or share is None or decode is None:
        return None
    busy = {
        end: {
            "occupied_s": occupied(decode, share, level.throughput_ratio[FLIPPED[end]]),
            "tasks_per_month": tasks,
        }
        for end in ENDS
    }
    return book.ends("draft_replicas", "value.busy_replicas", "replicas", busy)


def operational(case: Case) -> tuple[float | None, ValueInterval | None]:
    """Owning the artifact, spread over the tasks, and the energy that is declared; no interval."""
    book, prices = case.ledger, case.economics
    cost = case.price("operations_per_month")
    tasks = 1.0 if cost == 0 else case.price("tasks_per_month")
    declared = prices.energy
    per_task: float | None = 0.0
    if declared is None:
        book.need(f"energy in economics {prices.name}: declared: false, or its figures")
        per_task = None
    elif declared.declared:
        added = case.price("energy.added_watt_hours_per_task")
        price = case.price("energy.price_per_kwh")
        unit = f"{prices.currency} per task"
        per_task = None
        if added is not None and price is not None:
            inputs = {"added_watt_hours": added, "price_per_kwh": price}
            per_task = book.add("energy", "value.energy", unit, **inputs)
    shown = per_task if declared is not None and declared.declared else None
    if cost is None or tasks is None or per_task is None:
        return shown, None
    inputs = {"cost_per_month": cost, "tasks_per_month": tasks, "energy_per_task": per_task}
    ends = dict.fromkeys(ENDS, inputs)
    return shown, book.money("operational_cost", "value.operational", prices.currency, ends)


def expected_quality_loss(case: Case) -> ValueInterval | None:
    """Added probability of failure, by the outcome gate's interval, times what a failure costs."""
    cost = case.price("cost_per_failure")
    if cost is None:
        return None
    if cost == 0:
        increase = dict.fromkeys(ENDS, 0.0)
    elif case.outcome is None:
        case.ledger.need("an outcome gate with both arms' success")
        return None
    else:
        low, high = case.outcome["interval"]
        # 0 − x, since −0.0 would print a sign
        increase = {"value": 0 - case.outcome["difference"], "low": 0 - high, "high": 0 - low}
    ends = {end: {"failure_increase": increase[end], "cost_per_failure": cost} for end in ENDS}
    currency = case.economics.currency
    return case.ledger.money("expected_quality_loss", "value.quality_loss", currency, ends)
