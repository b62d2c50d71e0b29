"""What the test of each gate could have shown: attainable power, and where nobody knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.route_report_figures import Block, Line, Paragraph, RunFigures, Table, line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["equivalence_power", "outcome_power", "serving_power", "texts_alone"]


def texts_alone(figures: RunFigures) -> bool:
    """Whether sampled texts of two running servers were compared, and no token of them scored."""
    return bool(figures.value("summary.scoring.rule") == "two-sample")


def equivalence_power(route: str, figures: RunFigures) -> Block:
    """Attainable power against faults that engines really have."""
    prefix = f"report/{route}/equivalence.power."
    rows = []
    for name, claim in figures.ledger.claims.items():
        if name.startswith(prefix):
            shown = figures.ledger.figure(claim["value"], forms.share, name)
            rows.append(((str(claim["source"]),), (shown,)))
    if not rows:
        return Paragraph(line("Attainable power: ", _why_unknown(figures)), muted=True)
    caption = "Attainable power: would this many tokens have shown the fault?"
    return Table(caption, ("fault", "probability of an alarm"), tuple(rows))


def _why_unknown(figures: RunFigures) -> Line:
    if texts_alone(figures):
        said = (
            "unknown. Sampled texts were compared, not the probabilities of their tokens; such "
            "tests miss mild faults, and how mild is not known."
        )
        return (said,)
    if not figures.value("summary.tokens"):
        return ("unknown, no sampled tokens were tested.",)
    if figures.value("summary.strict"):
        said = (
            "unknown. How many tokens show one of the reference faults is known only together with "
            "the draft's own probabilities, and a running server does not disclose those."
        )
        return (said,)
    return ("unknown, the strict test did not run.",)


def serving_power(route: str, figures: RunFigures) -> Line:
    """The smallest speed-up that the block pairs could have proved."""
    name = f"report/{route}/serving.detectable_speedup"
    claim = figures.ledger.claims.get(name)
    if claim is None:
        return ("unknown: no pairs were run",)
    return line(
        "the smallest provable speed-up is ",
        figures.ledger.figure(claim["value"], forms.ratio, name),
        f" at {forms.share(claim['inputs']['target_power'])} power if pairs vary by "
        f"{forms.share(claim['inputs']['spread'])}",
    )


def outcome_power(figures: RunFigures) -> Line:
    """How many pairs the margin takes, and why fewer did where fewer passed."""
    said = line(
        "to rule out a loss of ",
        figures.figure("summary.margin", forms.share),
        ", arms that succeed alike need ",
        figures.figure("summary.pairs_needed", forms.count, "pairs_needed"),
        " pairs at the discordance seen to pass 9 times in 10, and any arms at the least ",
        figures.figure("summary.minimal_pairs", forms.count),
    )
    return line(said, _fewer_sufficed(figures.value("parts") or [], figures))


def _fewer_sufficed(parts: list[Mapping[str, str]], figures: RunFigures) -> Line:
    needed, n = figures.value("summary.pairs_needed"), figures.value("summary.n")
    passed = any(part["name"] == "success" and part["outcome"] == "PASS" for part in parts)
    if not passed or needed is None or n is None or n >= needed:
        return ()
    said = (
        "; here fewer were enough, because the low end of the interval is inside the margin already"
    )
    return (said,)
