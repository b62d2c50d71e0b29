"""Profiles of tasks as one page: laid out in the blocks of a route's report, drawn by its renderer."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from gatekeeper.core.segment_kinds import KINDS
from gatekeeper.errors import printable
from gatekeeper.reports.page_html import render_page
from gatekeeper.reports.profile_words import (
    Unit,
    ceiling_sentence,
    evidence_sentences,
    explicit_sentence,
    percent,
    range_sentence,
    saving_sentence,
    total_sentence,
    waiting_sentence,
)
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Charts,
    Facts,
    Items,
    Line,
    Mark,
    Page,
    Paragraph,
    Section,
    Table,
    line,
)
from gatekeeper.reports.timeline import Bar, Timeline
from gatekeeper.reports.waterfall import choose, marked, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.task_profile import TaskProfile

__all__ = ["MOST_TASKS", "lay_out", "profile_html"]

MOST_TASKS = 50
"""Tasks that a page draws; further ones have a line in its table."""

_MOST_BARS = 200
_TONE = {"A": "good", "B": "good", "C": "warn", "D": "bad"}
_METHOD = (
    "Spans are the nodes of a graph of causes: what had to end before what could start. The longest "
    "path through it is the critical path, and it reproduces the wall time exactly. Work that gets "
    "faster is scaled and the path searched again; gaps stay as they were."
)


def profile_html(
    profiles: Sequence[tuple[str, TaskProfile]], refused: Sequence[tuple[str, str]]
) -> str:
    """Return a self-contained page of these tasks, and of the files that gave none."""
    return render_page("profile.html", lay_out(profiles, refused))


def lay_out(
    profiles: Sequence[tuple[str, TaskProfile]], refused: Sequence[tuple[str, str]]
) -> Page:
    """Lay out the page."""
    every = [profile for _, profile in profiles]
    one = every[0] if len(every) == 1 else None
    known = [p.saving.value for p in every if p.saving.value is not None]
    sections = []
    if one is None:
        sections.append(Section("tasks", "All tasks", _tasks(profiles)))
    for i, (file, profile) in enumerate(profiles[:MOST_TASKS], 1):
        title = "The task" if one is not None else f"{i}. {_name(file)}"
        sections.append(Section(f"task-{i}", title, _task(profile)))
    if refused:
        files = Items(tuple((printable(f"{file}: {reason}"),) for file, reason in refused))
        sections.append(Section("refused", "Files that gave no task", (files,)))
    sections.append(Section("method", "How this was found", (Paragraph((_METHOD,)),)))
    return Page(
        subject=_name(profiles[0][0]) if one is not None else f"{len(every)} tasks",
        question="What would faster work save in {}?",
        headline=_headline(every),
        tone="good" if any(value > 0 for value in known) else "plain",
        explanation=(saving_sentence(one) if one is not None else total_sentence(every), "."),
        facts=_facts(profiles[0][0], one) if one is not None else Facts(()),
        sections=tuple(sections),
    )


def _name(file: str) -> str:
    return printable(file.rpartition("/")[2])


def _headline(profiles: Sequence[TaskProfile]) -> str:
    known = [p for p in profiles if p.saving.value is not None]
    if not known:
        return "Unknown: no task shows where its model calls decode"
    wall, value = known[0].task.wall_ns, known[0].saving.value or Fraction(0)
    if len(profiles) == 1:
        unit = Unit(wall)
        verb = "Saves" if value >= 0 else "Costs"
        return f"{verb} {percent(abs(value), wall)}: {unit(abs(value))} of {unit(wall)}"
    ordered = sorted(known, key=lambda p: float(p.saving.value or 0) / max(p.task.wall_ns, 1))
    least, most = (percent(p.saving.value or 0, p.task.wall_ns) for p in (ordered[0], ordered[-1]))
    span = least if least == most else f"{least} to {most}"
    return f"Saves {span}: of a task's wall time, {len(known)} of {len(profiles)} known"


def _tasks(profiles: Sequence[tuple[str, TaskProfile]]) -> tuple[Block, ...]:
    lines: list[tuple[Line, ...]] = []
    for i, (file, profile) in enumerate(profiles, 1):
        wall, saving = profile.task.wall_ns, profile.saving
        low, high = saving.low, saving.high
        ends = UNKNOWN
        if low is not None and high is not None:
            ends = f"{percent(low, wall)} to {percent(high, wall)}"
        lines.append(
            (
                (f"{i}. {_name(file)}",),
                (Unit(wall)(wall),),
                (UNKNOWN if profile.ceiling_ns is None else percent(profile.ceiling_ns, wall),),
                (UNKNOWN if saving.value is None else percent(saving.value, wall),),
                (ends,),
                (_grade(profile),),
            )
        )
    columns = ("task", "wall", "ceiling", "saving", "interval", "grade")
    blocks: list[Block] = [Table("What each task would save", columns, tuple(lines))]
    if len(profiles) > MOST_TASKS:
        text = f"Drawn below are the first {MOST_TASKS} of {len(profiles)} tasks."
        blocks.append(Paragraph((text,), muted=True))
    return tuple(blocks)


def _grade(profile: TaskProfile) -> Mark:
    return Mark(profile.evidence_grade, _TONE[profile.evidence_grade])


def _facts(file: str, profile: TaskProfile) -> Facts:
    task = profile.task
    count = profile.model_calls
    found: list[tuple[str, Line]] = [
        ("File", (printable(file),)),
        ("Task", (f"{printable(task.task_id)}, {task.source_format}",)),
        ("Size", (f"{len(task.works)} spans, {count} model call{'' if count == 1 else 's'}",)),
    ]
    if task.completeness < 1:
        found.append(("Complete", (f"{task.completeness:.0%} of its spans",)))
    return Facts(tuple(found))


def _task(profile: TaskProfile) -> tuple[Block, ...]:
    meaning, raises, state = evidence_sentences(profile)
    facts: list[tuple[str, Line]] = [
        ("Ceiling", (ceiling_sentence(profile),)),
        ("Saving", (saving_sentence(profile),)),
    ]
    optional = (
        ("Interval", range_sentence(profile)),
        ("Explicit causes", explicit_sentence(profile)),
        ("Without waiting", waiting_sentence(profile)),
    )
    facts += [(name, (text,)) for name, text in optional if text is not None]
    facts.append(("Evidence", line(_grade(profile), f" {meaning}")))
    if raises is not None:
        facts.append(("To raise it", (raises,)))
    facts.append(("Check", (state,)))
    blocks: list[Block] = [Facts(tuple(facts)), Charts((_timeline(profile),)), _effects(profile)]
    blocks.append(_kinds(profile))
    if profile.repairs:
        blocks.append(Paragraph(("Noted while reading:",), muted=True))
        blocks.append(Items(tuple((printable(note),) for note in profile.repairs)))
    return tuple(blocks)


def _timeline(profile: TaskProfile) -> Timeline:
    wall = max(profile.task.wall_ns, 1)
    unit = Unit(wall)
    every = rows(profile)
    shown = choose(every, _MOST_BARS)
    return Timeline(
        title="Spans over time",
        alt="Spans over time, the critical path marked",
        end=unit(wall),
        bars=tuple(
            Bar(
                label=row.label,
                kind=row.kind,
                text=unit(row.end_ns - row.start_ns),
                depth=row.depth,
                start=row.start_ns / wall,
                end=row.end_ns / wall,
                on_path=tuple((a / wall, b / wall) for a, b in row.on_path),
                marked=marked(row, wall),
                container=row.container,
                estimated=row.estimated,
            )
            for row in shown
        ),
        left_out=len(every) - len(shown),
    )


def _effects(profile: TaskProfile) -> Table:
    unit = Unit(profile.task.wall_ns)
    return Table(
        "What gets faster",
        ("work", "speed-up", "spans", "on the path", "saves alone", "at most"),
        tuple(
            (
                (printable(effect.change.segment),),
                (f"{float(effect.change.speedup):g}×",),
                (str(effect.spans),),
                (unit(effect.on_path_ns),),
                (UNKNOWN if effect.saving_ns is None else unit(effect.saving_ns),),
                (UNKNOWN if effect.ceiling_ns is None else unit(effect.ceiling_ns),),
            )
            for effect in profile.effects
        ),
    )


def _kinds(profile: TaskProfile) -> Table:
    wall = profile.task.wall_ns
    unit = Unit(wall)
    on_path, work = profile.critical_path_ns, profile.segments_ns
    lines = [
        (
            (kind.replace("_", " "),),
            (unit(on_path[kind]),),
            (percent(on_path[kind], wall),),
            (all_,),
        )
        for kind in KINDS
        if on_path[kind] or work[kind]
        for all_ in (unit(work[kind]),)
    ]
    whole, total = sum(on_path.values()), sum(work.values())
    lines.append((("wall",), (unit(whole),), (percent(whole, wall),), (unit(total),)))
    columns = ("kind", "critical path", "share", "all work")
    return Table("Time by kind", columns, tuple(lines))
