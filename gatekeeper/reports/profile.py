"""A task profile as JSON and as a terminal report: ceiling first, then saving, path and split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gatekeeper.core.model_calls import RAISES_GRADE
from gatekeeper.core.span_kinds import KINDS
from gatekeeper.core.task_profile import ratio_range
from gatekeeper.reports.waterfall import KIND_STYLE, waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from rich.console import RenderableType

    from gatekeeper.core.task_profile import TaskProfile

__all__ = ["profile_json", "render_profile", "render_summary", "saving_sentence"]

_NS = 10**9
_SUMMARY_COLUMNS = 58

_GRADE_MEANING = {
    "A": "the server's own queue, prefill and decode times",
    "B": "the client's first-token time; queueing folds into prefill",
    "C": "token counts only; decode is tokens × an estimated time per token",
    "D": "nothing that separates decode from the rest",
}


def profile_json(profile: TaskProfile, file: str) -> dict[str, Any]:
    """One entry of ``tasks`` in the answer of ``profile --json``; seconds, None where unknown."""
    saving = profile.saving
    return {
        "task_id": profile.task.task_id,
        "source_format": profile.task.source_format,
        "file": file,
        "route": profile.task.route,
        "wall_s": profile.task.wall_ns / _NS,
        "segments_s": _seconds(profile.segments_ns),
        "critical_path_s": _seconds(profile.critical_path_ns),
        "saving_s": {
            "value": _s(saving.value),
            "low": _s(saving.low),
            "high": _s(saving.high),
            "explicit_only": _s(saving.explicit_only),
        },
        "decode_speedup": float(profile.speedup),
        "evidence_grade": profile.evidence_grade,
        "reconciled": profile.reconciled,
        "residual_s": profile.residual_ns / _NS,
        "completeness": profile.task.completeness,
        "repairs": list(profile.repairs),
        "model_calls": profile.model_calls,
    }


def saving_sentence(profile: TaskProfile) -> str:
    """What the speed-up saves, in one sentence that ends without a full stop."""
    value = profile.saving.value
    action = _action(profile.speedup)
    wall = profile.task.wall_ns
    if value is None:
        return f"{action}: saving unknown, which is not zero"
    unit = _Unit(wall)
    verb = "saves" if value >= 0 else "costs"
    return f"{action} {verb} {unit(abs(value))} of {unit(wall)} ({_percent(abs(value), wall)})"


def render_profile(profile: TaskProfile, file: str, *, width: int = 100) -> RenderableType:
    """Terminal report of one task, at most ``width`` columns wide."""
    task = profile.task
    title = Text(file, style="bold")
    count = profile.model_calls
    facts = [
        task.source_format,
        f"task {task.task_id[:16]}{'…' if len(task.task_id) > 16 else ''}",  # noqa: PLR2004 - half a trace id
        f"{len(task.works)} spans",
        f"{count} model call{'' if count == 1 else 's'}",
    ]
    if task.route:
        facts.insert(1, f"route {task.route}")
    if task.completeness < 1:
        facts.append(f"{task.completeness:.0%} complete")
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim", no_wrap=True)
    head.add_column()
    head.add_row("Ceiling", _ceiling(profile))
    head.add_row("Saving", _saving(profile))
    head.add_row("Evidence", _evidence(profile))
    parts: list[RenderableType] = [
        title,
        Text(" · ".join(facts), style="dim"),
        Text(),
        head,
        Text(),
        waterfall(profile, width=width - 2),
        Text(),
        _decomposition(profile),
    ]
    if profile.repairs:
        notes = Table.grid(padding=(0, 1))
        for note in profile.repairs:
            notes.add_row(Text("·", style="yellow"), Text(note, style="dim"))
        parts += [Text(), Text("Noted while reading", style="dim"), notes]
    return Padding(Group(*parts), (0, 1))


def render_summary(
    profiles: Sequence[tuple[str, TaskProfile]], *, width: int = 100
) -> RenderableType:
    """One line per task, for many tasks; unknown figures are dashes, and do not count as zero."""
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    room = max(16, width - _SUMMARY_COLUMNS)
    table.add_column("task", no_wrap=True)
    for column in ("wall", "ceiling", "saving", "interval", "grade"):
        table.add_column(column, justify="right", no_wrap=True)
    for file, profile in profiles:
        wall = profile.task.wall_ns
        unit = _Unit(wall)
        saving = profile.saving
        name = file.rpartition("/")[2]
        low, high = saving.low, saving.high
        table.add_row(
            Text(name if len(name) <= room else f"{name[: room - 1]}…"),
            unit(wall),
            "–" if profile.ceiling_ns is None else _percent(profile.ceiling_ns, wall),
            "–" if saving.value is None else _percent(saving.value, wall),
            "–"
            if low is None or high is None
            else f"{_percent(low, wall)} to {_percent(high, wall)}",
            Text(profile.evidence_grade, style=_grade_style(profile.evidence_grade)),
        )
    priced = [p for _, p in profiles if p.saving.value is not None]
    total = f"{len(profiles)} tasks, {len(priced)} priced"
    if priced:
        shares = sorted(
            float(p.saving.value or 0) / p.task.wall_ns for p in priced if p.task.wall_ns
        )
        if shares:
            middle = (shares[len(shares) // 2] + shares[(len(shares) - 1) // 2]) / 2
            total += (
                f"; {_action(priced[0].speedup).lower()} saves a median {middle:.1%} of the wall"
            )
    return Padding(Group(table, Text(), Text(total, style="bold")), (0, 1))


def _ceiling(profile: TaskProfile) -> Text:
    if profile.ceiling_ns is None:
        why = "no model call in it" if not profile.task.calls else "its times are not trusted"
        return Text(f"unknown: {why}", style="yellow")
    wall = profile.task.wall_ns
    bound = f"{_Unit(wall)(profile.ceiling_ns)} of {_Unit(wall)(wall)} ({_percent(profile.ceiling_ns, wall)})"
    if profile.evidence_grade == "D":
        return Text(f"below {bound}: all of the time in model calls, decode or not")
    return Text(f"infinitely fast decode would save {bound}, never more")


def _saving(profile: TaskProfile) -> Text:
    saving = profile.saving
    text = Text(
        saving_sentence(profile), style="bold green" if (saving.value or 0) > 0 else "bold yellow"
    )
    unit = _Unit(profile.task.wall_ns)
    if saving.low is not None and saving.high is not None:
        low, high = ratio_range(profile.speedup)
        text.append(
            f"\n{unit(saving.low)} to {unit(saving.high)} if the speed-up is really {float(low):.4g} to {float(high):.4g}"
            + (" and the token rate lies in its range" if profile.evidence_grade == "C" else ""),
            style="not bold default",
        )
    if saving.explicit_only is not None and saving.explicit_only != saving.value:
        text.append(
            f"\n{unit(saving.explicit_only)} if only recorded causes order the spans (sensitivity, no bound)",
            style="not bold default",
        )
    return text


def _evidence(profile: TaskProfile) -> Text:
    grade = profile.evidence_grade
    text = Text(f"grade {grade}", style=_grade_style(grade))
    text.append(f": {_GRADE_MEANING[grade]}", style="default")
    if not profile.trusted:
        text.append(
            "\nto raise it: end each span when its work ends, not when the exporter flushes"
        )
    elif grade in RAISES_GRADE:
        text.append(f"\nto raise it: {RAISES_GRADE[grade]}", style="default")
    residual = _Unit(profile.task.wall_ns)(abs(profile.residual_ns))
    state = "reconciled" if profile.reconciled else "NOT reconciled, so not priced"
    text.append(
        f"\n{state}: path and wall differ by {residual}",
        style="default" if profile.reconciled else "bold red",
    )
    return text


def _decomposition(profile: TaskProfile) -> Table:
    wall = profile.task.wall_ns
    unit = _Unit(wall)
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("time by kind")
    for name in ("critical path", "share", "all work"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        on_path, work = profile.critical_path_ns[kind], profile.segments_ns[kind]
        if on_path or work:
            label = Text(kind.replace("_", " "), style=KIND_STYLE[kind])
            table.add_row(label, unit(on_path), _percent(on_path, wall), unit(work))
    total = sum(profile.critical_path_ns.values())
    table.add_row(
        Text("wall", style="bold"),
        Text(unit(total), style="bold"),
        _percent(total, wall),
        Text(unit(sum(profile.segments_ns.values())), style="dim"),
    )
    return table


class _Unit:
    """Durations of one task in the unit that suits its wall time."""

    def __init__(self, wall_ns: int) -> None:
        steps = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
        self.size, self.name = next((s for s in steps if wall_ns >= s[0]), (1, "ns"))

    def __call__(self, ns: Fraction | int) -> str:
        return f"{float(ns) / self.size:.3f} {self.name}"


def _percent(part: Fraction | int, whole: int) -> str:
    return f"{float(part) / whole * 100:.1f} %" if whole else "–"


def _action(speedup: Fraction) -> str:
    return "Halving decode" if speedup == 2 else f"Decode at {float(speedup):g} times the speed"  # noqa: PLR2004 - halving


def _grade_style(grade: str) -> str:
    return {"A": "green", "B": "green", "C": "yellow"}.get(grade, "red")


def _seconds(ns: Mapping[str, int]) -> dict[str, float]:
    return {kind: value / _NS for kind, value in ns.items()}


def _s(ns: Fraction | None) -> float | None:
    return None if ns is None else float(ns / _NS)
