"""What a plain page says of a run on an engine of our own: every token against the model alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.plain_words import (
    FACTS,
    KNOWN_FAULTS,
    SCOPE,
    chance,
    in_number,
    kind_of_token,
    setting_words,
    times_in,
)
from gatekeeper.reports.route_report_figures import UNKNOWN, Items, Mark, Table, line

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

_EFFECT = "summary.design.declared_effect"
_INSIDE, _BEYOND = Mark("inside the limits", "good"), Mark("beyond the limits", "bad")


def why(case: Case) -> str:
    """The clause of the headline."""
    exact = {
        "PASS": "no difference from the model alone was found",
        "FAIL": "with the draft, the model does not write what it would alone",
    }
    approximate = {
        "PASS": "as an approximation, it stays inside the limits it was given",
        "FAIL": "it departs further from the model alone than is admitted",
    }
    both = {
        "INCONCLUSIVE": "what was compared is not enough to say",
        "ERROR": "there was nothing sound to compare with",
    }
    return {**both, **(exact if case.exact else approximate)}[str(case.outcome)]


def claimed(case: Case) -> Line:
    """What the pair promises."""
    target, proposer = case.artifact["target"], case.artifact["proposer"]
    head = line(
        f"With guesses of a draft ({str(proposer['kind']).replace('_', ' ')}, up to ",
        case.declared("artifact", "gamma"),
        f" tokens ahead), {target['source']} ",
    )
    if case.exact:
        return line(head, "writes exactly what it would write alone. Only the speed differs.")
    admitted = case.figures.figure("summary.admitted_deviation", forms.share)
    if admitted == UNKNOWN:
        return line(head, "may depart from what it would write alone, as far as the policy allows.")
    return line(
        head,
        "may depart from what it would write alone: how often any kind of token comes up may be "
        "off by ",
        admitted,
        " of all tokens.",
    )


def in_short(_case: Case) -> Line:
    """How it was tested."""
    text = (
        "The text that comes with the draft, token by token, against a separate calculation of the "
        "model without it."
    )
    return (text,)


def used(case: Case) -> Line:
    """Tokens compared: drawn by chance, and at temperature 0."""
    return line(
        case.count("summary.tokens", "tokens"),
        " drawn at random, ",
        case.count("summary.greedy.positions"),
        " without chance (temperature 0)",
    )


def needed(case: Case) -> Line:
    """Further tokens that may settle it."""
    more = case.count("summary.tokens_needed")
    return (UNKNOWN,) if more == UNKNOWN else line("about ", more, " more")


def spare(case: Case) -> Line:
    """None for the verdict; where the run stopped early, how many its plan's difference takes."""
    at = _EFFECT
    least, tokens = case.figures.value(f"{at}.tokens_needed"), case.figures.value("summary.tokens")
    if not case.exact or least is None or tokens is None:
        return ("none for this verdict",)
    share = case.figures.figure(f"{at}.share", in_number)
    if tokens >= least:
        found = line("none for the difference that the plan sets out to find, ", share)
        return line(found, " tokens; a smaller one takes more")
    return line(
        "none for this verdict; to notice a fault in ",
        share,
        " tokens ",
        case.figures.figure(f"{at}.power", times_in),
        ", about ",
        case.count(f"{at}.tokens_needed"),
        " in all",
    )


def lead(case: Case) -> Line:
    """What happened, in two or three sentences."""
    if case.outcome == "ERROR":
        text = (
            "Even without the draft, the text departs from a separate calculation of the same model. "
            "So nothing can be said of the draft."
        )
        return (text,)
    compared = line(
        "We compared ",
        case.count("summary.tokens", "tokens"),
        " tokens drawn at random, and ",
        case.count("summary.greedy.positions"),
        " written without chance, with what the model alone would have written. ",
        _earlier(case),
    )
    if case.outcome == "PASS" and case.exact:
        return line(compared, "None of it shows a difference.")
    if case.outcome == "PASS":
        text = "Differences are admitted here, and what was seen stays inside the limits."
        return line(compared, text)
    if case.outcome == "FAIL":
        return line(compared, "There is a difference that neither chance nor rounding explains.")
    more = case.count("summary.tokens_needed")
    rest: Line = ("How many more tokens it takes is unknown.",)
    if more != UNKNOWN:
        rest = line("It takes about ", more, " more tokens to say.")
    text = "No fault was found, but that does not prove yet that there is none. "
    return line(compared, text, rest)


def _earlier(case: Case) -> Line:
    """How many of the tokens the undecided runs before have drawn, or why they do not count."""
    runs = case.figures.value("summary.continues") or []
    if runs:
        tokens = case.count(f"summary.continues[{len(runs) - 1}].tokens")
        names = ", ".join(str(run["run"]) for run in runs)
        return line(
            "This run goes on where the last one stopped without an answer: ",
            tokens,
            f" of the tokens drawn at random were there before ({names}). ",
        )
    other = case.figures.value("summary.not_continued")
    if not other:
        return ()
    differs = ", ".join(dict.fromkeys(FACTS.get(name, name) for name in other["differs"]))
    return (
        f"The undecided run before ({other['run']}) does not count here: it differed in {differs}. ",
    )


def tested(case: Case) -> tuple[Line, ...]:
    """Each comparison with what it found."""
    fixed = line(
        "Without chance (temperature 0): ",
        case.count("summary.greedy.positions"),
        " tokens, each against the first choice of the model alone. ",
        case.count("summary.greedy.mismatches", "greedy.mismatches"),
        " differ",
        _ties(case),
        ". ",
        _informs(case),
        case.found("greedy identity"),
    )
    drawn: Line = line("Drawn at random: no token. ", case.found(""))
    if case.figures.value("summary.strict"):
        drawn = line(
            f"Drawn at random ({_settings(case)}): ",
            case.count("summary.strict.tokens"),
            " tokens, together against the chances that the model alone gives to every token. A "
            "right engine sets off this alarm in at most ",
            case.figures.figure("summary.strict.alpha", in_number),
            " runs. ",
            _informs(case),
            case.found("strict e-process"),
        )
    return (fixed, drawn, *_shares(case))


def _informs(case: Case) -> str:
    return "" if case.exact else "For an approximation this only informs. "


def _ties(case: Case) -> Line:
    if not case.figures.value("summary.greedy.ties"):
        return ()
    return line(", and ", case.count("summary.greedy.ties"), " so little that it may be rounding")


def _settings(case: Case) -> str:
    found = case.figures.value("summary.settings") or ()
    return "; ".join(map(setting_words, found)) or "no random setting"


def _shares(case: Case) -> tuple[Line, ...]:
    """The kind of token that comes closest to its limit, or lies furthest beyond."""
    rows = case.figures.value("summary.tolerance") or []
    if not rows:
        return ()
    i = max(range(len(rows)), key=lambda n: abs(rows[n]["deviation"]) / rows[n]["tolerance"])
    at = f"summary.tolerance[{i}]"
    verdict = {"PASS": _INSIDE, "FAIL": _BEYOND}
    own = f"tolerance.{i:02d}.deviation"
    return (
        line(
            "How often some kinds of tokens come up was counted as well. The kind nearest to its "
            f"limit, {kind_of_token(rows[i]['feature'])}, is off by ",
            case.figures.figure(f"{at}.deviation", forms.signed_share, own),
            " of all tokens; allowed is ±",
            case.figures.figure(f"{at}.tolerance", forms.share),
            ". ",
            verdict.get(case.parts.get("tolerance", ""), case.found("tolerance")),
        ),
    )


def limits(case: Case) -> tuple[Block, ...]:
    """What the comparison cannot tell."""
    tried = line(
        f"Tried were temperature 0, {_settings(case)}, and guesses up to ",
        case.count("summary.gamma"),
        f" tokens ahead, on texts of the kind {case.run['slice']}. Anything else is unknown.",
    )
    if case.outcome not in {"PASS", "INCONCLUSIVE"}:
        return (Items((tried, (SCOPE,))),)
    if not case.exact:
        inside: Line = ("A difference inside the limits is not looked for: it is admitted.",)
        return (Items((inside, tried, (SCOPE,))),)
    return (Items((_smallest(case), tried, (SCOPE,))), *_known_faults(case))


def _smallest(case: Case) -> Line:
    """The smallest difference that the plan set out to find; unknown where it declared none."""
    at = _EFFECT
    least, tokens = case.figures.value(f"{at}.tokens_needed"), case.figures.value("summary.tokens")
    if least is None or tokens is None:
        text = (
            "How small a difference it may have missed is unknown: the plan of this run declares "
            "none that it must find."
        )
        return (text,)
    share = case.figures.figure(f"{at}.share", in_number)
    power = case.figures.figure(f"{at}.power", times_in)
    if tokens >= least:
        return line(
            "If ",
            share,
            " tokens had been the draft's own, unchecked, this test would have found it ",
            power,
            " (an estimate from simulated models). Less than that may go unseen.",
        )
    return line(
        "If ",
        share,
        " tokens were the draft's own, unchecked, about ",
        case.count(f"{at}.tokens_needed"),
        " tokens drawn at random would show it ",
        power,
        " (an estimate). Fewer were compared, so a fault of that size may have been missed.",
    )


def _known_faults(case: Case) -> tuple[Block, ...]:
    """Chance that this many tokens show what real engines got wrong."""
    prefix = f"report/{case.run['route']}/equivalence.power."
    ledger = case.figures.ledger
    rows = [
        ((KNOWN_FAULTS[claim["source"]],), (ledger.figure(claim["value"], chance, name),))
        for name, claim in ledger.claims.items()
        if name.startswith(prefix)
    ]
    if not rows:
        return ()
    caption = "Would so many tokens have shown it? (estimates from simulated models)"
    return (Table(caption, ("what engines got wrong", "chance"), tuple(rows)),)


def undecided(case: Case) -> tuple[Line, ...]:
    """What to do about an open verdict."""
    if case.count("summary.tokens_needed") == UNKNOWN:
        return ((f"Tokens alone may not settle it. What is open: {_open(case)}.",),)
    return (
        line(
            f"Test again: {case.again}. That goes on where this run stopped: what was compared counts, "
            "and up to ",
            case.declared("policy", "equivalence.sampled.max_tokens"),
            " more tokens for each setting are drawn, none twice. Testing often does not help a wrong "
            "pair to pass.",
        ),
        ("A policy with more tokens needs fewer runs, but begins anew: it is another promise.",),
    )


def _open(case: Case) -> str:
    names = {
        "greedy identity": "the text at temperature 0",
        "strict e-process": "the text drawn at random",
        "tolerance": "how often kinds of tokens come up",
    }
    return ", ".join(names.get(n, n) for n, outcome in case.parts.items() if outcome != "PASS")


def repair(_case: Case) -> str:
    """How a corrected pair is made."""
    return "register the corrected pair (gatekeeper artifact register FILE)"
