"""A task profile as JSON and as a terminal report: ceiling first, then saving, path and split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gatekeeper.core.call_evidence import evidence_of
from gatekeeper.core.span_kinds import KINDS
from gatekeeper.errors import printable
from gatekeeper.reports.profile_measured import Measured, measured_sentence
from gatekeeper.reports.profile_words import (
    Unit,
    ceiling_sentence,
    evidence_sentences,
    explicit_sentence,
    is_plain,
    percent,
    range_sentence,
    saving_sentence,
    total_sentence,
    waiting_sentence,
)
from gatekeeper.reports.waterfall import KIND_STYLE, waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from rich.console import RenderableType

    from gatekeeper.core.task_profile import TaskProfile

__all__ = ["calls_json", "profile_json", "render_profile", "render_summary"]

_NS = 10**9
_SUMMARY_COLUMNS = 58


def profile_json(profile: TaskProfile, file: str) -> dict[str, Any]:
    """One entry of ``tasks`` in the answer of ``profile --json``; seconds, None where unknown."""
    saving, waiting = profile.saving, profile.without_waiting
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
        "what_if": {
            "route": profile.what_if.route,
            "changes": [
                {
                    "segment": effect.change.segment,
                    "speedup": float(effect.change.speedup),
                    "spans": effect.spans,
                    "work_s": effect.work_ns / _NS,
                    "on_path_s": effect.on_path_ns / _NS,
                    "saving_s": _s(effect.saving_ns),
                    "ceiling_s": _s(effect.ceiling_ns),
                }
                for effect in profile.effects
            ],
        },
        "without_human_wait": None
        if waiting is None
        else {
            "basis": waiting.basis,
            "wall_s": float(waiting.wall_ns / _NS),
            "saving_s": _s(waiting.saving_ns),
        },
    }


def calls_json(profile: TaskProfile) -> list[dict[str, Any]]:
    """``calls`` of a task in the answer of ``profile --json``: one entry a model call."""
    return [
        {
            "span_id": call.span_id,
            "name": call.name,
            "route": call.route,
            "model": call.model,
            "start_s": call.start_ns / _NS,
            "wall_s": _s(call.wall_ns),
            "grade": call.grade,
            "rule": call.rule,
            "output_tokens": call.output_tokens,
            "attempts": call.attempts,
            "segments_s": {kind: _s(ns) for kind, ns in call.segments_ns.items()},
            "on_path_s": {kind: _s(ns) for kind, ns in call.on_path_ns.items()},
        }
        for call in evidence_of(profile.task, profile.graph, profile.path)
    ]


def render_profile(
    profile: TaskProfile, file: str, *, width: int = 100, measured: Measured | None = None
) -> RenderableType:
    """Terminal report of one task, at most ``width`` columns wide."""
    task = profile.task
    title = Text(printable(file), style="bold")
    count = profile.model_calls
    facts = [
        task.source_format,
        f"task {printable(task.task_id[:16])}{'…' if len(task.task_id) > 16 else ''}",  # noqa: PLR2004 - half a trace id
        f"{len(task.works)} spans",
        f"{count} model call{'' if count == 1 else 's'}",
    ]
    if task.route:
        facts.insert(1, f"route {printable(task.route)}")
    if task.completeness < 1:
        facts.append(f"{task.completeness:.0%} complete")
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim", no_wrap=True)
    head.add_column()
    head.add_row("Ceiling", _ceiling(profile))
    head.add_row("Saving", _saving(profile))
    if measured is not None:
        head.add_row("Measured", Text(measured_sentence(measured, task.wall_ns)))
    waiting = waiting_sentence(profile)
    if waiting is not None:
        head.add_row("Without waiting", Text(waiting))
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
    if not is_plain(profile.what_if):
        parts += [Text(), _effects(profile)]
    if profile.repairs:
        notes = Table.grid(padding=(0, 1))
        for note in profile.repairs:
            notes.add_row(Text("·", style="yellow"), Text(printable(note), style="dim"))
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
        unit = Unit(wall)
        saving = profile.saving
        name = printable(file.rpartition("/")[2])
        low, high = saving.low, saving.high
        table.add_row(
            Text(name if len(name) <= room else f"{name[: room - 1]}…"),
            unit(wall),
            "–" if profile.ceiling_ns is None else percent(profile.ceiling_ns, wall),
            "–" if saving.value is None else percent(saving.value, wall),
            "–"
            if low is None or high is None
            else f"{percent(low, wall)} to {percent(high, wall)}",
            Text(profile.evidence_grade, style=_grade_style(profile.evidence_grade)),
        )
    total = total_sentence([profile for _, profile in profiles])
    return Padding(Group(table, Text(), Text(total, style="bold")), (0, 1))


def _ceiling(profile: TaskProfile) -> Text:
    return Text(ceiling_sentence(profile), style="yellow" if profile.ceiling_ns is None else "")


def _saving(profile: TaskProfile) -> Text:
    gains = (profile.saving.value or 0) > 0
    text = Text(saving_sentence(profile), style="bold green" if gains else "bold yellow")
    for sentence in (range_sentence(profile), explicit_sentence(profile)):
        if sentence is not None:
            text.append(f"\n{sentence}", style="not bold default")
    return text


def _evidence(profile: TaskProfile) -> Text:
    grade = profile.evidence_grade
    meaning, raises, state = evidence_sentences(profile)
    text = Text(f"grade {grade}", style=_grade_style(grade))
    text.append(f": {meaning}", style="default")
    if raises is not None:
        text.append(f"\nto raise it: {raises}", style="default")
    text.append(f"\n{state}", style="default" if profile.reconciled else "bold red")
    return text


def _effects(profile: TaskProfile) -> Table:
    wall = profile.task.wall_ns
    unit = Unit(wall)
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("what gets faster", overflow="fold")
    for name in ("speed-up", "spans", "on the path", "saves alone", "at most"):
        table.add_column(name, justify="right")
    for effect in profile.effects:
        saved, most = effect.saving_ns, effect.ceiling_ns
        table.add_row(
            Text(printable(effect.change.segment), style=KIND_STYLE[effect.change.kind]),
            f"{float(effect.change.speedup):g}×",
            str(effect.spans),
            unit(effect.on_path_ns),
            "–" if saved is None else unit(saved),
            "–" if most is None else unit(most),
        )
    return table


def _decomposition(profile: TaskProfile) -> Table:
    wall = profile.task.wall_ns
    unit = Unit(wall)
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column("time by kind")
    for name in ("critical path", "share", "all work"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        on_path, work = profile.critical_path_ns[kind], profile.segments_ns[kind]
        if on_path or work:
            label = Text(kind.replace("_", " "), style=KIND_STYLE[kind])
            table.add_row(label, unit(on_path), percent(on_path, wall), unit(work))
    total = sum(profile.critical_path_ns.values())
    table.add_row(
        Text("wall", style="bold"),
        Text(unit(total), style="bold"),
        percent(total, wall),
        Text(unit(sum(profile.segments_ns.values())), style="dim"),
    )
    return table


def _grade_style(grade: str) -> str:
    return {"A": "green", "B": "green", "C": "yellow"}.get(grade, "red")


def _seconds(ns: Mapping[str, int]) -> dict[str, float]:
    return {kind: value / _NS for kind, value in ns.items()}


def _s(ns: Fraction | int | None) -> float | None:
    return None if ns is None else float(ns / _NS)
