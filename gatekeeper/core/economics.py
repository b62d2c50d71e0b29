"""The economics document: what a second, a replica, a draft and a failure are worth to its owner.

A price that is left out is unknown, never 0: the term that needs it stays unknown, and with it the
value per task. A price known to be nothing is 0.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import rfc8785

from gatekeeper.core.documents import check, is_number, plain, read
from gatekeeper.core.time_value import TimeRule, check_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MEASURED", "DraftPrices", "Economics", "Energy"]

MEASURED = "measured"
"""Value of ``target_occupancy`` that takes the share from the serving gate's concurrency."""


def _amounts(at: str, holder: object, *, without: tuple[str, ...] = ()) -> None:
    """Each number of ``holder`` is unknown or at least 0."""
    found = [(f.name, getattr(holder, f.name)) for f in fields(holder)]  # type: ignore[arg-type]
    check(
        [
            (f"{at}{name}", value, value is None or value >= 0, "use 0 or more, or leave it out")
            for name, value in found
            if name not in without
        ]
    )


@dataclass(frozen=True)
class DraftPrices:
    """What the proposer occupies: money per hour of its own device, and per GiB and hour held.

    A proposer on the target's device has ``device_cost_per_hour`` 0: the replica's price holds it.
    """

    device_cost_per_hour: float | None = None
    memory_cost_per_gib_hour: float | None = None

    def __post_init__(self) -> None:
        _amounts("draft.", self)


@dataclass(frozen=True)
class Energy:
    """Energy that speculation adds to a task.

    ``declared`` False says that nobody accounts for energy apart from the replica's price: it is
    then reported as undeclared and no part of the value. ``declared`` True makes it a cost, and
    unknown until both figures are there.
    """

    declared: bool
    added_watt_hours_per_task: float | None = None
    price_per_kwh: float | None = None

    def __post_init__(self) -> None:
        # speculation may save energy, so only the price has a sign
        _amounts("energy.", self, without=("declared", "added_watt_hours_per_task"))
        figures = (self.added_watt_hours_per_task, self.price_per_kwh)
        silent = self.declared or all(figure is None for figure in figures)
        check([("energy.declared", self.declared, silent, "set it true, or leave the figures out")])


@dataclass(frozen=True)
class Economics:
    """Prices for the value per task, all in ``currency``.

    ``value_of_second``: money per second of task time, wherever no rule of ``value_of_time`` holds
    (`gatekeeper.core.time_value`). ``replica_cost_per_hour``: one target replica with its devices. ``target_occupancy``: share of a replica that one task holds while it
    decodes, or ``measured`` for 1 / concurrency of the serving gate's level.
    ``operations_per_month``: owning the added artifact (gates, updates, alarms).
    ``tasks_per_month``: the route's tasks, which carry all that is paid by the month.
    ``cost_per_failure``: one failed task more.
    """

    name: str
    description: str
    currency: str
    value_of_second: float | None = None
    replica_cost_per_hour: float | None = None
    target_occupancy: Any = None
    draft: DraftPrices = field(default_factory=DraftPrices)
    operations_per_month: float | None = None
    tasks_per_month: float | None = None
    cost_per_failure: float | None = None
    energy: Energy | None = None
    value_of_time: tuple[TimeRule, ...] = ()

    def __post_init__(self) -> None:
        not_amounts = ("name", "description", "currency", "target_occupancy", "draft", "energy")
        _amounts("", self, without=(*not_amounts, "value_of_time"))
        check_rules(self.value_of_time)
        share = self.target_occupancy
        known_share = share is None or share == MEASURED or (is_number(share) and 0 <= share <= 1)
        tasks = self.tasks_per_month
        check(
            [
                ("name", self.name, bool(self.name), "name the economics"),
                ("currency", self.currency, bool(self.currency), "name it: EUR"),
                ("target_occupancy", share, known_share, f"use a share in [0, 1] or {MEASURED}"),
                ("tasks_per_month", tasks, tasks is None or tasks > 0, "count the route's tasks"),
            ]
        )

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Economics:
        """Read an economics document.

        Raises:
            UnknownKey: a key that nothing reads, named by its dotted field.
            InputError: a key is missing, or a value has the wrong type or range.
        """
        return read(cls, dict(document), field="")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, unknown prices as null; ``from_dict`` reads it back."""
        document: dict[str, Any] = plain(self)
        if not self.value_of_time:
            del document["value_of_time"]  # documents without it keep the digest they always had
        return document

    def time_rule(self, route: str, concurrency: int | None) -> tuple[str, TimeRule] | None:
        """Return what a second of a route is worth at a load, with the name of where it stands.

        None where nobody said, or where it hangs on a ``concurrency`` that is not known.
        """
        for index, rule in enumerate(self.value_of_time):
            if rule.of_route(route):
                if concurrency is None and rule.banded:
                    return None
                if concurrency is None or rule.at_load(concurrency):
                    return f"value_of_time[{index}]", rule
        if self.value_of_second is None:
            return None
        return "value_of_second", TimeRule(per_second=self.value_of_second)

    @property
    def digest(self) -> str:
        """The sha256 of the document as canonical JSON (RFC 8785); prices of a task cite it."""
        return hashlib.sha256(rfc8785.dumps(self.to_dict())).hexdigest()
