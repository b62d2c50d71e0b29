"""The three gates of a report: outcome, what was tested, and what the test could have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.charts import Forest, Interval
from gatekeeper.reports.plain_words import kind_of_token
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Charts,
    Facts,
    Group,
    Items,
    Ledger,
    Line,
    Mark,
    Paragraph,
    Piece,
    RunFigures,
    Table,
    line,
)
from gatekeeper.reports.route_report_power import (
    equivalence_power,
    outcome_power,
    serving_power,
    texts_alone,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["gate_groups", "investigate", "mark", "moment", "most_in_window", "run_figures"]

_TONE = {"PASS": "good", "FAIL": "bad", "ERROR": "bad", "INCONCLUSIVE": "warn"}
_QUESTION = {
    "equivalence": "Does speculation emit what the target alone would?",
    "serving": "Does it pay at this load, and whom does it hurt?",
    "outcome": "Do tasks succeed as often, at no higher cost per success?",
}
_SHOWN_TOLERANCES = 6


def mark(outcome: str | None) -> Mark:
    """Outcome as a badge; a gate that has not run has none."""
    return Mark(outcome or "NOT RUN", _TONE.get(outcome or "", "plain"))


def run_figures(ledger: Ledger, gate: str, entry: Mapping[str, Any]) -> RunFigures:
    """Figures of a gate's governing run."""
    return RunFigures(ledger, entry["run"], gate, entry["result"])


def gate_groups(document: Mapping[str, Any], ledger: Ledger) -> tuple[Block, ...]:
    """One group for each gate, in the order in which a decision reads them."""
    groups = []
    rows = {row["gate"]: row for row in document["decision"]["gates"]}
    for gate, entry in document["gates"].items():
        demanded = bool(rows.get(gate, {}).get("mandatory"))
        if entry is None:
            groups.append(_missing(gate, demanded=demanded))
            continue
        figures = run_figures(ledger, gate, entry)
        head = _state(entry, demanded=demanded)
        tested, blocks = _DETAIL[gate](document, figures)
        if not figures.value("summary"):
            tested, blocks = (), (_parts(figures),)  # a run that ended in an error measured nothing
        facts = Facts((*head, *tested))
        body = (_asks(gate), facts, *blocks, *_undisclosed(figures), *_needed(figures))
        groups.append(Group(gate.capitalize(), mark(entry["outcome"]), body))
    return tuple(groups)


def _asks(gate: str) -> Paragraph:
    return Paragraph((_QUESTION[gate],), muted=True)


def _missing(gate: str, *, demanded: bool) -> Group:
    text = (
        "The policy demands it, so nothing is enabled until it has run."
        if demanded
        else "The policy does not demand it; nothing is known of what it would show."
    )
    return Group(gate.capitalize(), mark(None), (_asks(gate), Paragraph((text,))))


_Rows = tuple[tuple[str, Line], ...]


def _state(entry: Mapping[str, Any], *, demanded: bool) -> _Rows:
    failed = entry["outcome"] == "FAIL"
    until = "until a new artifact or policy version: time does not repair an artifact"
    if not failed:
        verb = "expired" if entry["state"] == "expired" else "until"
        until = f"{verb} {moment(entry['expires_at'])}"
    return (
        ("Holds", (until,)),
        ("Mandatory", ("yes" if demanded else "no, it informs only",)),
        ("Run", (f"{entry['run']}, finished {moment(entry['finished_at'])}",)),
    )


def moment(stamp: str | None) -> str:
    """Point in time to the minute, in the zone it was written in."""
    if stamp is None:
        return UNKNOWN
    zone = "UTC" if stamp.endswith(("+00:00", "Z")) else stamp[-6:]
    return f"{stamp[:10]} {stamp[11:16]} {zone}"


def _parts(figures: RunFigures) -> Table:
    rows = []
    for index, part in enumerate(figures.result["parts"]):
        # No load level is mandatory by itself: one that passes is enough for the gate.
        informs = figures.gate != "serving" and not part.get("mandatory", True)
        name = f"{part['name']} (informs)" if informs else part["name"]
        rows.append(((name,), (mark(part["outcome"]),), (figures.quote(f"parts[{index}].detail"),)))
    return Table("Parts of the verdict", ("part", "outcome", "finding"), tuple(rows), numeric=False)


def _needed(figures: RunFigures) -> tuple[Block, ...]:
    if not figures.value("still_needed"):
        return ()
    return (Paragraph(("Still needed: ", figures.quote("still_needed"), ".")),)


def _equivalence(
    document: Mapping[str, Any], figures: RunFigures
) -> tuple[_Rows, tuple[Block, ...]]:
    exact = figures.value("summary.contract") == "exact"
    settings = figures.value("summary.settings") or []
    rule = figures.value("summary.greedy.rule") or UNKNOWN
    strict: Line = ("not run: no probabilities were at hand",)
    if figures.value("summary.strict"):
        strict = line(
            "log₁₀ E = ",
            figures.figure("summary.strict.log10_e", forms.plain, "log10_e"),
            "; an alarm is E ≥ 1/α, α = ",
            figures.figure("summary.strict.alpha", forms.plain),
        )
    tested: list[tuple[str, Line]] = [
        ("Contract", ("exact: the target's own distribution",) if exact else _admitted(figures)),
        ("Greedy", _texts(figures) if rule == "text" else _positions(figures, rule)),
        ("Sampled", _sampled(figures, settings)),
        ("Strict test", strict),
        *_rule(figures),
        *_goes_on(figures),
        *_cost(figures),
    ]
    blocks: list[Block] = [_parts(figures)]
    blocks += _counter_example(figures)
    blocks += _tolerances(figures)
    blocks.append(equivalence_power(document["route"], figures))
    plainly = f"The same in plain words: gatekeeper gate explain {figures.run}"
    blocks.append(Paragraph((plainly,), muted=True))
    return tuple(tested), tuple(blocks)


def _rule(figures: RunFigures) -> _Rows:
    """By what the tokens or texts of two running servers were judged, and why by that."""
    rule = figures.value("summary.scoring.rule")
    if not rule:
        return ()
    tokens = figures.figure("summary.scoring.tokens", forms.count)
    why = figures.quote("summary.scoring.why")
    return (("Judged by", line(f"{rule}, ", tokens, " sampled tokens; ", why)),)


def _goes_on(figures: RunFigures) -> _Rows:
    """The undecided runs whose evidence is among this one's, or why they are not."""
    runs = figures.value("summary.continues") or []
    if runs:
        before = figures.figure(f"summary.continues[{len(runs) - 1}].tokens", forms.count)
        names = ", ".join(str(run["run"]) for run in runs)
        return (("Goes on from", line(f"{names}, with ", before, " sampled tokens")),)
    other = figures.value("summary.not_continued")
    if not other:
        return ()
    differs = ", ".join(other["differs"])
    return (("Goes on from", (f"nothing: {other['run']} was another test ({differs})",)),)


def _cost(figures: RunFigures) -> _Rows:
    """Milliseconds a token of each part of the gate, beside those of decoding."""
    parts = figures.value("summary.cost") or {}
    shown: Line = ()
    for name in parts:
        at = f"cost.{name}.ms_per_token"
        shown = line(
            *((shown, ", ") if shown else ()),
            f"{name.replace('_', ' ')} ",
            figures.figure(f"summary.{at}", forms.plain, at),
        )
    return (("Cost", line(shown, " ms a token, by the clock")),) if shown else ()


def _admitted(figures: RunFigures) -> Line:
    """What an approximate artifact says of itself; what was measured stands among the tolerances."""
    if figures.value("summary.admitted_deviation") is None:
        return ("approximate: no deviation beyond the policy's tolerance, never called exact",)
    return line(
        "approximate: admits a deviation of up to ",
        figures.figure("summary.admitted_deviation", forms.plain),
        ", never called exact",
    )


def _positions(figures: RunFigures, rule: str) -> Line:
    at = "summary.greedy"
    return line(
        figures.figure(f"{at}.positions", forms.count),
        " positions compared, ",
        figures.figure(f"{at}.mismatches", forms.count, "greedy.mismatches"),
        " mismatches, ",
        figures.figure(f"{at}.ties", forms.count),
        f" numeric ties ({rule} rule)",
    )


def _texts(figures: RunFigures) -> Line:
    """What two running servers show: their texts alone."""
    at = "summary.greedy"
    return line(
        figures.figure(f"{at}.prompts", forms.count, "compared"),
        " prompts answered by both servers, ",
        figures.figure(f"{at}.differing", forms.count, "differing"),
        " texts differ (the baseline's own repeats: ",
        figures.figure(f"{at}.baseline_differing", forms.count, "baseline_differing"),
        "), ",
        figures.figure(f"{at}.mismatches", forms.count, "faults"),
        " beyond what ties explain",
    )


def _sampled(figures: RunFigures, settings: Sequence[str]) -> Line:
    window = most_in_window(figures.figure("summary.gamma", forms.count))
    if texts_alone(figures):
        tokens = figures.figure("summary.scoring.tokens", forms.count)
        return line(tokens, " tokens of texts compared by two-sample tests, none scored", window)
    tokens = figures.figure("summary.tokens", forms.count, "tokens")
    return line(tokens, f" tokens at {', '.join(settings) or 'no setting'}", window)


def most_in_window(gamma: Piece) -> Line:
    """How many tokens a window may have, after a comma; servers that run may not state it."""
    if gamma == UNKNOWN:
        return (", size of the window not stated",)
    return line(", window up to ", gamma)


def _undisclosed(figures: RunFigures) -> tuple[Block, ...]:
    """What a running server does not show, and what would supply it."""
    rows = tuple(
        ((row["what"],), (row["seen"],), (row["supply"],))
        for row in figures.value("summary.missing") or ()
    )
    if not rows:
        return ()
    columns = ("unknown", "seen in its place", "what would supply it")
    return (Table("Not disclosed by servers that already run", columns, rows, numeric=False),)


def _counter_example(figures: RunFigures) -> list[Block]:
    found = figures.value("summary.counter_example")
    if not found:
        return []
    at = "summary.counter_example"
    token: Piece = f"{found['token']!r}"  # of two servers the text is known, and no number
    if not isinstance(found["token"], str):
        token = figures.figure(f"{at}.token", forms.plain)
    return [
        Paragraph(
            line(
                f"Counter-example of the {found['part']}: prompt {found['prompt']}, position ",
                figures.figure(f"{at}.position", forms.count),
                ", token ",
                token,
                "; the target gives it probability ",
                figures.figure(f"{at}.target_probability", forms.plain),
                ", its deficit is ",
                figures.figure(f"{at}.deficit", forms.plain),
                " logits.",
            )
        )
    ]


def _tolerances(figures: RunFigures) -> list[Block]:
    """Show the deviations that come closest to their tolerance; the others are closer to 0."""
    rows = figures.value("summary.tolerance") or []
    order = sorted(
        range(len(rows)), key=lambda i: -abs(rows[i]["deviation"]) / rows[i]["tolerance"]
    )
    shown = []
    for i in order[:_SHOWN_TOLERANCES]:
        at = f"summary.tolerance[{i}]"
        shown.append(
            (
                (f"{_feature(rows[i])} ({rows[i]['stratum']}, {rows[i]['setting']})",),
                (mark(rows[i]["outcome"]),),
                (figures.figure(f"{at}.n", forms.count),),
                line(
                    figures.figure(
                        f"{at}.deviation", forms.signed_share, f"tolerance.{i:02d}.deviation"
                    ),
                    " [",
                    figures.figure(f"{at}.low", forms.signed_share),
                    ", ",
                    figures.figure(f"{at}.high", forms.signed_share),
                    "]",
                ),
                line("±", figures.figure(f"{at}.tolerance", forms.share)),
            )
        )
    if not shown:
        return []
    caption = "Deviation from the target's law"
    if len(rows) > len(shown):
        caption += f": the {len(shown)} nearest to their tolerance of {len(rows)}"
    columns = ("feature", "outcome", "tokens", "deviation", "tolerance")
    return [Table(caption, columns, tuple(shown))]


def _feature(row: Mapping[str, Any]) -> str:
    """A declared feature in the words of its name; one that is a bit of the id says what that is."""
    name = str(row["feature"])
    return f"{kind_of_token(name)}, {name}" if name.startswith("id bit ") else name


def _serving(document: Mapping[str, Any], figures: RunFigures) -> tuple[_Rows, tuple[Block, ...]]:
    regions = figures.value("summary.regions") or []
    power = serving_power(document["route"], figures)
    levels: Line = ("no level was confirmed",)
    if regions:
        levels = line(
            figures.figure("summary.pairs", forms.count),
            f" interleaved block pairs at each of {len(regions)} load levels; bounds one-sided, ",
            figures.figure("summary.confidence", forms.share),
            " each",
        )
    blocks: list[Block] = [_parts(figures)]
    if any(region["speedup"]["ratio"] is not None for region in regions):
        blocks.append(Charts((_speedups(document, regions),)))
    return (("Tested", levels), ("Attainable power", power)), tuple(blocks)


def _speedups(document: Mapping[str, Any], regions: Sequence[Mapping[str, Any]]) -> Forest:
    limits = document["policy"]["document"].get("serving", {}).get("limits", {})
    wanted = limits.get("min_speedup", 1.0)
    rows = tuple(
        Interval(
            f"{r['concurrency']} concurrent, window {r['gamma'] or UNKNOWN}",
            r["speedup"]["ratio"],
            r["speedup"]["low"],
            r["speedup"]["high"],
            _said(r["speedup"]),
        )
        for r in regions
        if r["speedup"]["ratio"] is not None
    )
    alt = "Speed-up of the time per output token by load: " + "; ".join(
        f"{row.label}: {row.text}" for row in rows
    )
    return Forest(
        "Speed-up of the time per token",
        alt,
        "ordinary ÷ speculative; right of the line is a gain",
        rows,
        ((f"wanted > {wanted:g}", wanted),),
    )


def _said(found: Mapping[str, Any]) -> str:
    if found["low"] is None or found["high"] is None:
        return f"{forms.ratio(found['ratio'])} without bounds"
    bounds = f"[{forms.ratio(found['low'])}, {forms.ratio(found['high'])}]"
    return f"{forms.ratio(found['ratio'])} {bounds}"


def _outcome(document: Mapping[str, Any], figures: RunFigures) -> tuple[_Rows, tuple[Block, ...]]:
    del document
    tested = line(
        figures.figure("summary.n", forms.count, "n"),
        " pairs from ",
        figures.figure("summary.tasks", forms.count, "tasks"),
        f" tasks with verifiers, sampled at {figures.value('summary.sampling') or UNKNOWN}, "
        "concurrency ",
        figures.figure("summary.concurrency", forms.count),
        ", window ",
        figures.figure("summary.gamma", forms.count),
    )
    power = outcome_power(figures)
    return (("Tested", tested), ("Attainable power", power)), (_parts(figures),)


_DETAIL = {"equivalence": _equivalence, "serving": _serving, "outcome": _outcome}


def investigate(document: Mapping[str, Any]) -> Items | None:
    """Where to look after an outcome FAIL."""
    if document["decision"]["reason"] != "outcome_failed":
        return None
    return Items(
        tuple(
            (text,)
            for text in (
                "configuration: same target revision, tokenizer and sampling in both arms?",
                "stopping: end tokens, stop strings and length limits honoured in the window?",
                "structured decoding: constraints applied to draft, acceptance and correction?",
                "application assumptions: timing, streaming order, token counts?",
            )
        )
    )
