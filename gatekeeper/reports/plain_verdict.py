"""One equivalence run in plain words: a page for readers without statistics.

What was claimed, what was tested, the verdict, the first difference, what the test cannot tell, and
what to do now. Numbers keep their claims, as in a route's report. What is unknown is said to be,
and a run without evidence never reads as a success. Nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gatekeeper.reports import plain_engine, plain_servers
from gatekeeper.reports.plain_case import STICKS, Case, collect
from gatekeeper.reports.plain_difference import difference
from gatekeeper.reports.route_report_figures import (
    Block,
    Facts,
    Items,
    Ledger,
    Line,
    Paragraph,
    Report,
    Section,
    line,
)
from gatekeeper.reports.route_report_gates import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["collect", "lay_out"]

_ANSWERS = {
    "PASS": ("Passed", "good"),
    "FAIL": ("Failed", "bad"),
    "INCONCLUSIVE": ("Undecided", "warn"),
    "ERROR": ("No answer", "bad"),
}
_ABOUT = (
    "A draft guesses a few tokens (pieces of words) ahead, and the model checks all guesses at "
    "once. Done right, that changes the speed and nothing else."
)


class _Words(Protocol):
    """What is said differently of an engine and of two servers."""

    def why(self, case: Case, /) -> str:
        """The clause of the headline."""
        ...

    def claimed(self, case: Case, /) -> Line:
        """What the pair promises."""
        ...

    def in_short(self, case: Case, /) -> Line:
        """How it was tested."""
        ...

    def used(self, case: Case, /) -> Line:
        """Tokens compared."""
        ...

    def needed(self, case: Case, /) -> Line:
        """Tokens that may settle what is undecided."""
        ...

    def spare(self, case: Case, /) -> Line:
        """Tokens that a verdict which stands would take to say more."""
        ...

    def lead(self, case: Case, /) -> Line:
        """What happened, in two or three sentences."""
        ...

    def tested(self, case: Case, /) -> tuple[Line, ...]:
        """Each comparison with what it found."""
        ...

    def limits(self, case: Case, /) -> tuple[Block, ...]:
        """What the comparison cannot tell."""
        ...

    def undecided(self, case: Case, /) -> tuple[Line, ...]:
        """What to do about an open verdict."""
        ...

    def repair(self, case: Case, /) -> str:
        """How a corrected pair is made."""
        ...


def lay_out(document: Mapping[str, Any]) -> Report:
    """Lay out the document that ``collect`` made.

    Raises:
        KeyError: the document is not one of this version's.
    """
    ledger = Ledger.of(document["claims"])
    case = Case.read(document, ledger)
    words: _Words = plain_engine
    if case.servers:
        words = plain_servers
    answer, tone = _ANSWERS.get(case.outcome or "", ("No verdict", "plain"))
    clause = words.why(case) if case.measured else _without_evidence(case)
    lead = words.lead(case) if case.measured else _nothing(case)
    facts = Facts(_facts(case, words))
    sections: tuple[Section, ...] = ()
    if case.measured:
        blocks = (Paragraph((_ABOUT,), muted=True), Items(words.tested(case)))
        sections = (
            Section("tested", "What was tested", blocks),
            Section("difference", "The first difference", _difference(case)),
            Section("limits", "What this test cannot tell", words.limits(case)),
        )
    return Report(
        subject=case.run["route"],
        question="Does speculation change what {} writes?",
        headline=f"{answer}: {clause}",
        tone=tone,
        explanation=lead,
        facts=facts,
        sections=(*sections, Section("next", "What to do now", (Items(_next(case, words)),))),
        claims=tuple(ledger.cited.values()),
        known_claims=len(ledger.claims),
        unclaimed=tuple(ledger.unclaimed),
        generated_at=moment(document["written_at"]),
        source=f"/v1/gate-runs/{case.run['id']}",
    )


def _without_evidence(case: Case) -> str:
    if case.outcome == "ERROR":
        return "the run ended before anything was compared"
    return f"the run is {case.run['state']}"


def _nothing(case: Case) -> Line:
    waits = case.run.get("waiting_for")
    rest = f" The run waits for {waits}." if waits else ""
    return (f"Nothing has been compared, so nothing is known of the text.{rest}",)


def _facts(case: Case, words: _Words) -> tuple[tuple[str, Line], ...]:
    finished = case.run["finished_at"]
    ended = f"finished {moment(finished)}" if finished else str(case.run["state"])
    return (
        ("Claimed", words.claimed(case)),
        ("Tested", words.in_short(case) if case.measured else ("nothing",)),
        ("Tokens used", words.used(case) if case.measured else ("none",)),
        ("Tokens still needed", _needed(case, words)),
        ("First difference", (_seen(case),)),
        ("Run", (f"{case.run['id']}, {ended}",)),
    )


def _needed(case: Case, words: _Words) -> Line:
    if case.outcome == "PASS":
        return words.spare(case)
    if case.outcome == "FAIL":
        return ("none: the verdict stands, however many follow",)
    return words.needed(case) if case.measured else ("unknown",)


def _seen(case: Case) -> str:
    found = case.figures.value("summary.counter_example")
    if found:
        return f"in the answer to {found['prompt']}, shown below"
    if case.outcome == "FAIL":
        return "no single token shows it, see below"
    known = case.outcome in {"PASS", "INCONCLUSIVE"} and case.measured
    return "none was found" if known else "unknown"


def _difference(case: Case) -> tuple[Block, ...]:
    if case.figures.value("summary.counter_example"):
        return difference(case)
    if case.outcome == "FAIL":
        text = "No single token shows it: some kind of token comes up too often or too seldom."
    elif case.outcome == "PASS" and not case.exact:
        text = "No single token shows one. That is no promise: differences are admitted here."
    elif case.outcome == "PASS":
        text = "None was found."
    elif case.outcome == "INCONCLUSIVE":
        text = "None was found so far."
    else:
        text = "Unknown: there was nothing to compare with."
    return (Paragraph((text,)),)


def _next(case: Case, words: _Words) -> tuple[Line, ...]:
    """What to do now; a verdict is never a matter of trying again."""
    route, run = case.run["route"], case.run["id"]
    off: Line = ("Leave speculation off on this route.",)
    todo: tuple[Line, ...] = ((f"Test it: {case.again}",),)
    if case.outcome == "PASS":
        until = moment(case.figures.value("expires_at"))
        todo = (
            (f"Test again after {until}, when this result expires: {case.again}",),
            (f"Whether to speculate is decided by all tests together: gatekeeper report {route}",),
        )
        if not case.exact:
            outcome = f"gatekeeper gate run {route} outcome"
            todo = (
                (f"Test whether tasks succeed as often as without the draft: {outcome}",),
                *todo,
            )
    elif case.outcome == "FAIL":
        todo = (
            off,
            (f"Do not test this pair again in the hope of luck. {STICKS}",),
            (f"Find the cause, {words.repair(case)}, and test that.",),
        )
    elif case.outcome == "INCONCLUSIVE":
        todo = (off, *words.undecided(case))
    elif case.outcome == "ERROR":
        cause: Line = ("Find out why the model alone cannot be compared with itself.",)
        if not case.measured:
            cause = line("What stopped it: ", case.figures.quote("parts[0].detail"))
        todo = (off, cause, (f"Then test again: {case.again}",))
    elif case.run["state"] in {"pending", "running"}:
        todo = ((f"Wait for it, then: gatekeeper gate explain {run}",),)
    return (*todo, (f"The statistics behind this page: gatekeeper gate show {run}",))
