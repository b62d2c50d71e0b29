"""A task's profile in words: the same sentences on a terminal and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.human_wait import BOUND
from gatekeeper.core.model_calls import RAISES_GRADE
from gatekeeper.core.task_profile import ratio_range
from gatekeeper.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.what_if import Change, WhatIf

__all__ = [
    "GRADE_MEANING",
    "Unit",
    "action",
    "ceiling_sentence",
    "evidence_sentences",
    "excluded",
    "explicit_sentence",
    "is_plain",
    "percent",
    "range_sentence",
    "saving_sentence",
    "total_sentence",
    "waiting_sentence",
]

GRADE_MEANING = {
    "A": "the server's own queue, prefill and decode times",
    "B": "the client's first-token time; queueing folds into prefill",
    "C": "token counts only; decode is tokens × an estimated time per token, cut to the call's time",
    "D": "nothing that separates decode from the rest",
}


class Unit:
    """Durations of one task in the unit that suits its wall time."""

    def __init__(self, wall_ns: int) -> None:
        steps = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
        self.size, self.name = next((s for s in steps if wall_ns >= s[0]), (1, "ns"))

    def __call__(self, ns: Fraction | int) -> str:
        """A duration with its unit."""
        return f"{float(ns) / self.size:.3f} {self.name}"


def percent(part: Fraction | int, whole: int) -> str:
    """Share of a whole in percent; a dash where there is no whole."""
    return f"{float(part) / whole * 100:.1f} %" if whole else "–"


def is_plain(what_if: WhatIf) -> bool:
    """Whether all that changes is decoding as such, of every route."""
    return what_if.decode_alone


def action(what_if: WhatIf) -> str:
    """What gets faster, as the subject of a sentence."""
    where = "" if what_if.route is None else f" on route {printable(what_if.route)}"
    if is_plain(what_if) and what_if.decode_speedup == 2:  # noqa: PLR2004 - halving
        return "Halving decode"
    text = _listed([f"{_work(c)} at {float(c.speedup):g} times" for c in what_if.changes])
    return f"{text[0].upper()}{text[1:]} the speed{where}"


def _work(change: Change) -> str:
    """What a change speeds up, in words: ``decode``, ``the tool search``, ``decode of gpt-4*``."""
    kind = change.kind.replace("_", " ")
    if change.name is None:
        return kind
    name = printable(change.name)
    return f"the tool {name}" if kind == "tool" else f"{kind} of {name}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def saving_sentence(profile: TaskProfile) -> str:
    """What the change saves, in one sentence that ends without a full stop."""
    value = profile.saving.value
    subject = action(profile.what_if)
    wall = profile.task.wall_ns
    if value is None:
        return f"{subject}: saving unknown, which is not zero"
    unit = Unit(wall)
    verb = "saves" if value >= 0 else "costs"
    return f"{subject} {verb} {unit(abs(value))} of {unit(wall)} ({percent(abs(value), wall)})"


def range_sentence(profile: TaskProfile) -> str | None:
    """The interval and what it stands for; None where the saving is unknown."""
    saving = profile.saving
    if saving.low is None or saving.high is None:
        return None
    unit = Unit(profile.task.wall_ns)
    ends = f"{unit(saving.low)} to {unit(saving.high)}"
    ranges = [ratio_range(change.speedup) for change in profile.what_if.changes]
    if len(ranges) == 1:
        low, high = ranges[0]
        text = f"{ends} if the speed-up is really {float(low):.4g} to {float(high):.4g}"
    else:
        text = f"{ends} if every gain is really 75 to 125 % of that"
    if profile.what_if.needs_split and any(call.grade == "C" for _, call in profile.task.calls):
        text += " and the token rate lies in its range"
    return text


def explicit_sentence(profile: TaskProfile) -> str | None:
    """The saving by recorded causes alone; None where it is the same, or unknown."""
    found = profile.saving.explicit_only
    if found is None or found == profile.saving.value:
        return None
    unit = Unit(profile.task.wall_ns)
    return (
        f"{unit(found)} if a span waits only for what the trace records as its cause, and not for "
        "whatever merely ended before it: another reading of the same trace, not a bound"
    )


def ceiling_sentence(profile: TaskProfile) -> str:
    """What the work asked about would save if it took no time at all."""
    asked = profile.what_if
    if profile.ceiling_ns is None:
        if asked.needs_split and not profile.task.calls:
            return "unknown: no model call in it"
        if profile.trusted and profile.reconciled:
            return "unknown: nothing tells decode from the rest of its model calls"
        why = "its times are not trusted" if not profile.trusted else "path and wall differ"
        return f"unknown: {why}"
    wall = profile.task.wall_ns
    share = percent(profile.ceiling_ns, wall)
    bound = f"{Unit(wall)(profile.ceiling_ns)} of {Unit(wall)(wall)} ({share})"
    if asked.decode_alone:
        if profile.evidence_grade == "D":
            return f"below {bound}: all of the time in model calls, decode or not"
        return f"infinitely fast decode would save {bound}, never more"
    where = "" if asked.route is None else f" on route {printable(asked.route)}"
    work = _listed([_work(change) for change in asked.changes])
    return f"{work} in no time at all{where} would save {bound}, never more"


def waiting_sentence(profile: TaskProfile) -> str | None:
    """The same without the time a person was waited for; None where nobody can have been."""
    found = profile.without_waiting
    if found is None:
        return None
    unit = Unit(profile.task.wall_ns)
    wall = unit(found.wall_ns)
    if found.saving_ns is None:
        saved = "what this would save of that is unknown"
    else:
        share = percent(found.saving_ns, round(found.wall_ns))
        saved = f"this would save {unit(found.saving_ns)} ({share}) of that"
    if found.basis == BOUND:
        return (
            f"the task would take at least {wall}, and {saved}: the trace does not say when a person "
            "was waited for, so every span that may have been such a wait is taken out whole"
        )
    return f"had no person been waited for, the task would take {wall}, and {saved}"


def evidence_sentences(profile: TaskProfile) -> tuple[str, str | None, str]:
    """What the grade means, what raises it (None for the best), and whether the task reconciles."""
    grade = profile.evidence_grade
    raises = RAISES_GRADE.get(grade)
    if profile.task.clock_problem is not None:
        raises = "synchronise the clocks of the machines (NTP), and name each in host.name"
    elif not profile.trusted:
        raises = "end each span when its work ends, not when the exporter flushes"
    residual = Unit(profile.task.wall_ns)(abs(profile.residual_ns))
    state = "reconciled" if profile.reconciled else "NOT reconciled, so not priced"
    return GRADE_MEANING[grade], raises, f"{state}: path and wall differ by {residual}"


def total_sentence(profiles: Sequence[TaskProfile]) -> str:
    """How many tasks there are, why some have no saving, and the median saving of the others."""
    priced = [p for p in profiles if p.saving.value is not None]
    text = f"{len(profiles)} tasks, {len(priced)} priced"
    reasons = [f"{n} {reason}" for reason, n in excluded(profiles).items()]
    if reasons:
        text += f" (left out: {', '.join(reasons)})"
    shares = sorted(float(p.saving.value or 0) / p.task.wall_ns for p in priced if p.task.wall_ns)
    if not shares:
        return text
    middle = (shares[len(shares) // 2] + shares[(len(shares) - 1) // 2]) / 2
    subject = action(priced[0].what_if)
    return f"{text}; {subject[0].lower()}{subject[1:]} saves a median {middle:.1%} of the wall"


def excluded(profiles: Sequence[TaskProfile]) -> dict[str, int]:
    """How many tasks have no saving, by reason."""
    counts = {"unreconciled": 0, "untrusted timings": 0, "grade D": 0}
    for profile in profiles:
        if profile.saving.value is not None:
            continue
        if not profile.reconciled:
            counts["unreconciled"] += 1
        elif not profile.trusted:
            counts["untrusted timings"] += 1
        else:
            counts["grade D"] += 1
    return {reason: n for reason, n in counts.items() if n}
