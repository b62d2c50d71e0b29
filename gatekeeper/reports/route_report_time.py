"""What time is worth in a pricing, and which input would flip the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Line,
    Paragraph,
    Table,
    leaf,
    line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["by_load", "sensitivity", "worth_of_time"]

_LABELS = {
    "speedup": "decoding speed-up",
    "ttft_ratio": "first token, speculative / ordinary",
    "throughput_ratio": "throughput, speculative / ordinary",
    "success_difference": "success, candidate − baseline",
    "minimum_value": "the policy's minimum",
    "per_second": "value of a second",
    "piecewise": "prices of all pieces",
}
"""How an input reads; the others are keys of the economics document and read as they stand there."""

_UNITS = {"ratio": "", "share": "", "tasks per month": ""}
"""Units that the input's name holds already."""

_KINDS = {
    "per_second": "the same for each second",
    "piecewise": "by the task's duration",
    "abandonment": "by who would have left",
}

_MANY = 10.0


class _Figure(Protocol):
    """A figure at a path of the pricing, tied to its claim."""

    def __call__(self, path: str, form: Callable[[float], str], own: str | None = None) -> Line: ...


def worth_of_time(pricing: Mapping[str, Any], figure: _Figure) -> Line:
    """What a second is priced by, in words and figures."""
    time = pricing.get("time_value") or {}
    if time.get("kind") is None:
        return (UNKNOWN,)
    at = f"economics.document.{time['where']}"
    money = forms.money(pricing["currency"])
    where: Line = (f" ({time['where']})",)
    if time["kind"] == "per_second":
        path = at if time["where"] == "value_of_second" else f"{at}.per_second"
        return line(figure(path, money), where)
    if time["kind"] == "piecewise":
        found: Line = ()
        for i, _ in enumerate(leaf(pricing, f"{at}.piecewise")):
            piece = f"{at}.piecewise[{i}]"
            found = line(
                found,
                ", then " if i else "",
                figure(f"{piece}.per_s", money),
                " from ",
                figure(f"{piece}.from_s", forms.duration),
            )
        return line(found, where)
    curve, fit = f"{at}.abandonment", f"{at}.abandonment.fit"
    unit = "log seconds" if leaf(pricing, f"{fit}.time") == "log_seconds" else "seconds"
    return line(
        figure(f"{curve}.value_of_kept_task", money),
        " times the tasks kept: log odds of leaving ",
        figure(f"{fit}.log_odds", forms.plain),
        " at ",
        figure(f"{fit}.at_s", forms.duration),
        ", slope ",
        figure(f"{fit}.slope", forms.plain),
        f" in {unit}, fitted from ",
        figure(f"{fit}.tasks", forms.count),
        " tasks of ",
        figure(f"{fit}.sessions", forms.count),
        f" sessions, data {str(leaf(pricing, f'{fit}.data'))[:12]}; ",
        figure("time_value.outside", forms.count, "outside"),
        " tasks here last shorter or longer than any of those",
        where,
    )


def by_load(pricing: Mapping[str, Any], figure: _Figure) -> tuple[Block, ...]:
    """Value at each load level, where a second is not worth the same at all of them."""
    levels = (pricing.get("time_value") or {}).get("by_load") or []
    if not levels:
        return ()
    rows: list[tuple[Line, ...]] = []
    money = forms.money(pricing["currency"])
    for i, level in enumerate(levels):
        at = f"time_value.by_load[{i}]"
        worth: Line = (UNKNOWN,)
        if level["total"] is not None:
            worth = line(
                figure(f"{at}.total.per_task", money),
                " [",
                figure(f"{at}.total.low", forms.amount),
                ", ",
                figure(f"{at}.total.high", forms.amount),
                "]",
            )
        kind = _KINDS.get(level["kind"], UNKNOWN)
        rows.append((figure(f"{at}.concurrency", forms.count), (kind,), worth))
    title = "Value by load: the least prices the route"
    return (Table(title, ("concurrency", "a second is worth", "per task"), tuple(rows)),)


def sensitivity(pricing: Mapping[str, Any], figure: _Figure) -> tuple[Block, ...]:
    """Which input would have to be what for the decision to flip."""
    found = pricing.get("sensitivity")
    if found is None:
        text = "Which input would flip the decision is not known while the value is not."
        return (Paragraph((text,), muted=True),)
    now = (
        "exceeds the minimum, and would no longer"
        if found["answer"] == "above"
        else ("does not exceed the minimum, and would")
    )
    said = f"The low end of the value {now} where one input alone were as below; the nearest first."
    rows = [_row(i, row, figure) for i, row in enumerate(found["rows"])]
    columns = ("input", "now", "low end flips at", "bounds")
    return (Paragraph((said,)), Table("Inputs that flip the decision", columns, tuple(rows)))


def _row(index: int, row: Mapping[str, Any], figure: _Figure) -> tuple[Line, ...]:
    at = f"sensitivity.rows[{index}]"
    flips: Line = ("none within its bounds",)
    if row["flips_at"] is not None:
        flips = figure(f"{at}.flips_at", forms.amount)
    if row["change"] is not None:
        flips = line(flips, " (", figure(f"{at}.change", _change), ")")
    key = row["input"].rpartition("].")[2]  # which rule holds stands above the table
    name = key.rpartition(".")[2] if key.startswith("abandonment.") else key
    unit = _UNITS.get(row["unit"], f", {row['unit']}")
    return (
        (f"{_LABELS.get(name, name)}{unit}",),
        figure(f"{at}.now", forms.amount),
        flips,
        _bounds(at, row["bounds"], figure),
    )


def _change(value: float) -> str:
    """A relative change in percent, its sign shown and never in powers of ten."""
    if abs(value) < _MANY:
        return forms.signed_share(value)
    return f"{'+' if value > 0 else ''}{forms.count(100 * value)} %"


def _bounds(at: str, bounds: tuple[float | None, float | None], figure: _Figure) -> Line:
    low, high = bounds
    ends = [figure(f"{at}.bounds[{i}]", forms.amount) for i in range(2)]
    if low is None and high is None:
        return ("any",)
    if high is None:
        return line(ends[0], " or more")
    if low is None:
        return line(ends[1], " or less")
    return line(ends[0], " to ", ends[1])
