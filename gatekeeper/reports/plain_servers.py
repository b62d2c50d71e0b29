"""What a plain page says of two servers that already run: by what they were judged, and what they hide.

Where the model's own files judged every token, much is said as of an engine of ours; else answers
alone were compared, and the page says what that misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.reports import plain_engine
from gatekeeper.reports.plain_words import SCOPE, UNSEEN, setting_words
from gatekeeper.reports.route_report_figures import UNKNOWN, Items, Paragraph, line

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

_TEXTS, _SAMPLES = "greedy text", "sampled text"
_CONTROL, _FILES = "server without a draft", "declared weights"

_MISSED = {
    "own forward": (
        "What the draft thinks of each token. Small faults take far more tokens to show without it.",
        "Which tokens were guesses. A fault that only shows right after the guesses is thinned out.",
        "How the server frames a chat, streams, stops or fills forms: gatekeeper battery tries that.",
    ),
    "two-sample": (
        "Small faults, and those that only show right after the guesses, however many answers agree.",
    ),
}
"""What each way of judging cannot see, in plain words."""


def why(case: Case) -> str:
    """The clause of the headline."""
    if _scored(case):
        return plain_engine.why(case)
    return {
        "PASS": "no difference between the servers was found",
        "FAIL": "the server with a draft does not write what the one without does",
        "INCONCLUSIVE": "no fault was seen, and from outside too little can be seen",
        "ERROR": "the server without a draft gives nothing to compare with",
    }[str(case.outcome)]


def claimed(case: Case) -> Line:
    """What the pair promises."""
    fast, plain = case.artifact["proposer"]["source"], case.artifact["target"]["source"]
    text = f"The server {fast}, which uses a draft, writes what {plain} writes without one."
    weights = case.artifact["target"].get("weights")
    if weights is None:
        return (text,)
    return (f"{text} Both are said to run the model {weights['source']}.",)


def in_short(case: Case) -> Line:
    """How it was tested."""
    if _scored(case):
        text = (
            "Every token that the servers wrote, against a separate calculation from the model's own "
            "files."
        )
        return (text,)
    text = (
        "The same questions to both servers, at temperature 0 and at random, and their answers "
        "compared."
    )
    return (text,)


def used(case: Case) -> Line:
    """Tokens compared."""
    if _scored(case):
        return plain_engine.used(case)
    return line(
        case.count("summary.greedy.positions", "servers.tokens"), " of the answers compared"
    )


def needed(case: Case) -> Line:
    """More tokens do not show what servers hide; with the model's files they do."""
    if _scored(case):
        return plain_engine.needed(case)
    return ("unknown: tokens are not what is missing, see below",)


def spare(_case: Case) -> Line:
    """A verdict that stands needs none."""
    return ("none for this verdict",)


def lead(case: Case) -> Line:
    """What happened, in two or three sentences."""
    if _scored(case):
        return _lead_scored(case)
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
    known = {*hidden, _TEXTS, _SAMPLES}
    if _scored(case):
        known |= {"greedy identity", "strict e-process", "tolerance", _CONTROL, _FILES}
    others = tuple(
        line(f"{name.capitalize()}: ", case.found(name)) for name in case.parts if name not in known
    )
    if _scored(case):
        return (*plain_engine.tested(case), *_checked(case), *others)
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
        *_samples(case),
        *others,
    )


def limits(case: Case) -> tuple[Block, ...]:
    """What the comparison cannot tell."""
    rule = str(case.figures.value("summary.scoring.rule"))
    missed: tuple[Line, ...] = tuple((text,) for text in _MISSED.get(rule, ()))
    unseen: tuple[Line, ...] = tuple(
        (UNSEEN.get(row["what"], f"{row['what'].capitalize()}."),)
        for row in case.figures.value("summary.missing") or ()
    )
    head = "Servers that already run do not show these things, so nobody has checked them:"
    if _scored(case):
        settings = case.figures.value("summary.settings") or ()
        tried = (
            f"Tried were temperature 0 and {'; '.join(map(setting_words, settings)) or 'no other'}, on "
            f"texts of the kind {case.run['slice']}. Anything else is unknown."
        )
        return (Paragraph((head,)), Items((*missed, *unseen, (tried,), (SCOPE,))))
    return (Paragraph((head,)), Items((*unseen, *missed, (SCOPE,))))


def undecided(case: Case) -> tuple[Line, ...]:
    """What to do about an open verdict."""
    if _scored(case):
        return plain_engine.undecided(case)
    declare = "name the model's files (gatekeeper gate run --target SOURCE)"
    return ((f"To know more, {declare} and test again: then every token can be checked.",),)


def _scored(case: Case) -> bool:
    """Whether every token was judged by the model's own files."""
    return bool(case.figures.value("summary.scoring.rule") == "own forward")


def _lead_scored(case: Case) -> Line:
    if case.outcome != "ERROR":
        return plain_engine.lead(case)
    if case.parts.get(_CONTROL) == "ERROR":
        text = (
            "The server without a draft departs from the model's own files as well. So the draft is "
            "not to blame: one of the servers, its settings, or the files are not what was said."
        )
        return (text,)
    text = (
        "The server without a draft does not write what the model's own files say. So nothing can be "
        "said of the one with a draft."
    )
    return (text,)


def _checked(case: Case) -> tuple[Line, ...]:
    """What speaks for the files, and for the server without a draft where it was asked."""
    out: list[Line] = []
    if case.count("summary.scoring.control_tokens") != UNKNOWN and _CONTROL in case.parts:
        out.append(
            line(
                "The same questions went to the server without a draft: ",
                case.count("summary.scoring.control_tokens"),
                " tokens drawn at random. ",
                case.found(_CONTROL),
            )
        )
    if case.parts.get(_FILES) == "PASS":
        text = (
            "The chances that the server without a draft states for its tokens are those of the files, "
            "up to rounding. "
        )
        out.append(line(text, case.found(_FILES)))
    return tuple(out)


def _samples(case: Case) -> tuple[Line, ...]:
    """Answers drawn at random, compared with each other."""
    if _SAMPLES not in case.parts:
        return ()
    return (
        line(
            "Drawn at random: ",
            case.count("summary.sampled.answers", "servers.samples"),
            " answers, those of one server against those of the other. ",
            case.found(_SAMPLES),
        ),
    )


def repair(_case: Case) -> str:
    """How a corrected pair is made."""
    return "start the corrected server under another address"
