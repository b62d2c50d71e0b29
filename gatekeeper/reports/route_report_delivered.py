"""What a route's rollout delivered, beside what was promised.

A judged window is called a period here: in a report a window is that of the drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Ledger,
    Line,
    Mark,
    Paragraph,
    Section,
    Table,
    line,
)
from gatekeeper.reports.route_report_gates import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["delivered_sections"]

_TONES = {"held": "good", "below": "bad", "harm": "bad"}

_ABOUT = (
    "Keys are drawn into the arms by a hash, so both decode the same traffic at the same time. A saving is the "
    "mean time of the ordinary tasks less that of the candidate's; success is the difference of the shares."
)

_NOTHING_YET = (
    "The route has a rollout, and no period of it is full: nothing can be said of what it delivers."
)


def delivered_sections(document: Mapping[str, Any], ledger: Ledger) -> tuple[Section, ...]:
    """One section of the newest judged periods; none for a route that never had a rollout."""
    periods = document["delivered"]
    if periods is None:
        return ()
    blocks: tuple[Block, ...] = (Paragraph((_NOTHING_YET,)),)
    if periods:
        rows = tuple(
            _row(one, f"delivered/{document['route']}/{one['id']}", ledger) for one in periods
        )
        columns = (
            "judged", "keys in", "tasks", "saving a task", "promised", "success", "outcome",
        )  # fmt: skip
        blocks = (
            Table("Judged periods, the newest first", columns, rows),
            Paragraph((_ABOUT,), muted=True),
        )
    return (Section("delivered", "Promised and delivered", blocks),)


def _row(period: Mapping[str, Any], at: str, ledger: Ledger) -> tuple[Line, ...]:
    sides = period["sides"]
    tasks = (
        ledger.figure(sides[side]["tasks"], forms.count, f"{at}/sides.{side}.tasks")
        for side in ("candidate", "ordinary")
    )
    return (
        (moment(period["until"]),),
        (ledger.figure(period["share"], forms.share, f"{at}/share"),),
        line(next(tasks), " against ", next(tasks)),
        _interval(period["saving_s"], forms.duration, f"{at}/saving_s", ledger),
        _interval(
            period["promised"]["saving_s"], forms.duration, f"{at}/promised.saving_s", ledger
        ),
        _interval(period["success"], forms.signed_share, f"{at}/success", ledger),
        (Mark(period["outcome"], _TONES.get(period["outcome"], "plain")),),
    )


def _interval(
    found: Mapping[str, float] | None, form: Callable[[float], str], at: str, ledger: Ledger
) -> Line:
    if found is None:
        return (UNKNOWN,)
    middle, low, high = (
        ledger.figure(found[end], form, f"{at}.{end}") for end in ("value", "low", "high")
    )
    return line(middle, " [", low, ", ", high, "]")
