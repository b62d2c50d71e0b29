"""The first difference of an equivalence run, in plain words: where, what, and how unlikely."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.plain_words import prompt_words, quoted
from gatekeeper.reports.route_report_figures import UNKNOWN, Facts, Paragraph, line

if TYPE_CHECKING:
    from gatekeeper.reports.plain_case import Case
    from gatekeeper.reports.route_report_figures import Block, Line, RunFigures

__all__ = ["difference"]

_AT = "summary.counter_example"
_ENDED = -1


def difference(case: Case) -> tuple[Block, ...]:
    """Describe the counter-example of a run that has one."""
    figures, servers = case.figures, case.servers
    found = figures.value(_AT)
    asked = found["prompt"]
    if case.prompt is not None:
        asked = f"{quoted(prompt_words(case.prompt))} ({asked})"
    sides = (
        ("Server with a draft", "Server without")
        if servers
        else ("With the draft", "The model alone")
    )
    rows: tuple[tuple[str, Line], ...] = (
        ("Prompt", (asked,)),
        ("Where", _where(figures)),
        (sides[0], _wrote(figures)),
        (sides[1], _alone(figures)),
    )
    notes = []
    if found["part"].startswith("strict"):
        notes.append(
            "One token proves nothing by itself. This one weighs most in the answer with which all "
            "tokens together became conclusive."
        )
    if not case.exact:
        notes.append("An approximation may do this. What counts is how often, and that is above.")
    return (Facts(rows), *(Paragraph((note,), muted=True) for note in notes))


def _where(figures: RunFigures) -> Line:
    position = figures.figure(f"{_AT}.position", forms.count)
    if position == UNKNOWN:
        return ("at an unknown place in the answer",)
    return line("after ", position, " tokens of the answer")


def _wrote(figures: RunFigures) -> Line:
    token, text = figures.value(f"{_AT}.token"), figures.value(f"{_AT}.text")
    if isinstance(token, str):
        return (f"wrote {quoted(token)}" if token else "ended the answer",)
    if token == _ENDED:
        return ("ended the answer",)
    number = figures.figure(f"{_AT}.token", _id)
    if text is None:
        return line("wrote token number ", number, "; its text is not stored")
    return line(f"wrote {quoted(text)} (token number ", number, ")")


def _alone(figures: RunFigures) -> Line:
    expected = figures.value(f"{_AT}.expected")
    told = isinstance(figures.value(f"{_AT}.token"), str)  # in texts, where no number is known
    text = expected if told else figures.value(f"{_AT}.expected_text")
    wrote: Line = ()
    if expected == _ENDED or (told and expected == ""):
        wrote = ("ended the answer. ",)
    elif text is not None:
        wrote = (f"wrote {quoted(text)}. ",)
    elif expected is not None:
        wrote = line("wrote token number ", figures.figure(f"{_AT}.expected", _id), ". ")
    chance = figures.figure(f"{_AT}.target_probability", forms.share)
    if chance != UNKNOWN:
        return line(wrote, "would write that here with a chance of ", chance)
    times = figures.figure(f"{_AT}.deficit", _times)
    if times == UNKNOWN:
        return line(wrote, "How likely it finds the other token is unknown")
    if told:
        return line(
            wrote, "It finds that at least ", times, " as likely; the chance itself is unknown"
        )
    never = (
        "Without chance it always takes its first choice, so never the other token, which it finds "
    )
    return line(wrote, never, times, " less likely")


def _id(value: float) -> str:
    return f"{value:.0f}"


def _times(deficit: float) -> str:
    """How many times as likely: e to a difference of logits or log-probabilities."""
    return f"{math.exp(min(deficit, 700.0)):.3g} times"
