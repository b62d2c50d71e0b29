"""What a plain page says of two servers that already run: answers alone, and what they hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.reports.plain_words import SCOPE, UNSEEN
from gatekeeper.reports.route_report_figures import Items, Paragraph, line

if TYPE_CHECKING:
    from gatekeeper.reports.plain_case import Case
    from gatekeeper.reports.route_report_figures import Block, Line

__all__ = [
    "claimed",
    "in_short",
    "lead",
    "limits",
    "needed",
    "repair",
    "spare",
    "tested",
    "undecided",
    "used",
    "why",
]

_TEXTS = "greedy text"


def why(case: Case) -> str:
    """The clause of the headline."""
    return {
        "PASS": "no difference between the servers was found",
        "FAIL": "the server with a draft does not write what the one without does",
        "INCONCLUSIVE": "no fault was seen, and from outside too little can be seen",
        "ERROR": "the server without a draft gives nothing to compare with",
    }[str(case.outcome)]


def claimed(case: Case) -> Line:
    """What the pair promises."""
    fast, plain = case.artifact["proposer"]["source"], case.artifact["target"]["source"]
    return (f"The server {fast}, which uses a draft, writes what {plain} writes without one.",)


def in_short(_case: Case) -> Line:
    """How it was tested."""
    return ("The same questions to both servers at temperature 0, and their answers compared.",)


def used(case: Case) -> Line:
    """Tokens compared."""
    return line(
        case.count("summary.greedy.positions", "servers.tokens"), " of the answers compared"
    )


def needed(_case: Case) -> Line:
    """More tokens do not show what servers hide."""
    return ("unknown: tokens are not what is missing, see below",)


def spare(_case: Case) -> Line:
    """A verdict that stands needs none."""
    return ("none for this verdict",)


def lead(case: Case) -> Line:
    """What happened, in two or three sentences."""
    if case.outcome == "ERROR":
        text = (
            "The server without a draft contradicts itself when it is asked twice. So nothing can be "
            "said of the one with a draft."
        )
        return (text,)
    asked = line(
        "We asked two servers the same questions and compared ",
        case.count("summary.greedy.prompts", "servers.compared"),
        " answers. ",
    )
    if case.outcome == "FAIL":
        return line(asked, "They differ where neither chance nor rounding explains it.")
    if case.outcome == "PASS":
        return line(asked, "None of them shows a difference.")
    text = "No fault was seen. That proves nothing: two servers do not show enough of themselves."
    return line(asked, text)


def tested(case: Case) -> tuple[Line, ...]:
    """Each comparison with what it found."""
    at = "summary.greedy"
    hidden = {row["what"] for row in case.figures.value("summary.missing") or ()}
    others = [name for name in case.parts if name not in hidden and name != _TEXTS]
    return (
        line(
            case.count(f"{at}.prompts", "servers.compared"),
            " questions were answered by both, ",
            case.count(f"{at}.differing", "servers.differing"),
            " of them differently. The server without a draft, asked twice, differs from itself on ",
            case.count(f"{at}.baseline_differing", "servers.baseline_differing"),
            ". ",
            case.found(_TEXTS),
        ),
        line(
            "Of the answers that differ, ",
            case.count(f"{at}.mismatches", "servers.faults"),
            " do so where rounding cannot be the reason, ",
            case.count(f"{at}.ties", "servers.ties"),
            " where it can; of ",
            case.count(f"{at}.undecided", "servers.undecided"),
            " it is not known.",
        ),
        *(line(f"{name.capitalize()}: ", case.found(name)) for name in others),
    )


def limits(case: Case) -> tuple[Block, ...]:
    """What the comparison cannot tell."""
    unseen = tuple(
        (UNSEEN.get(row["what"], f"{row['what'].capitalize()}."),)
        for row in case.figures.value("summary.missing") or ()
    )
    head = "Servers that already run do not show these things, so nobody has checked them:"
    return (Paragraph((head,)), Items((*unseen, (SCOPE,))))


def undecided(_case: Case) -> tuple[Line, ...]:
    """What to do about an open verdict."""
    supply = "register model and draft as files (gatekeeper artifact register FILE)"
    return ((f"To know more, {supply} and test those: then every token can be checked.",),)


def repair(_case: Case) -> str:
    """How a corrected pair is made."""
    return "start the corrected server under another address"
