"""Outcome pairs and the value per task of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.pricing_level import windows_unstated
from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.charts import Forest, Interval, Step, Waterfall
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Charts,
    Facts,
    Items,
    Ledger,
    Line,
    Paragraph,
    RunFigures,
    Section,
    Table,
    leaf,
    line,
)
from gatekeeper.reports.route_report_time import by_load, sensitivity, worth_of_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["outcome_section", "value_section"]

_ARMS = ("baseline", "candidate")
_TERMS = (
    ("latency_value", "Latency value", 1),
    ("avoided_target_capacity", "Avoided target capacity", 1),
    ("draft_capacity_and_memory", "Draft capacity and memory", -1),
    ("operational_cost", "Operational cost", -1),
    ("expected_quality_loss", "Expected quality loss", -1),
)


_ABOUT_KINDS = (
    "The rates of a kind rest on its few pairs and settle nothing: only all pairs together are "
    "judged. The tasks are the gate's own, the same for every route."
)


_UNMATCHED = (
    "A call matches no route where no rule or attribute names one. Calls of an arm that speculates "
    "already are among them where it marks them so: they decode faster already, and pricing them "
    "would count the saving twice."
)


def outcome_section(figures: RunFigures | None) -> Section:
    """Discordant pairs, their difference against the margin, cost per success."""
    title = "Outcome pairs"
    if figures is None:
        text = "The outcome gate has not run for this artifact and policy."
        return Section("outcome", title, (Paragraph((text,)),))
    at = "summary"
    counts = (
        ("b", "Only the baseline succeeded (b)"),
        ("c", "Only the candidate succeeded (c)"),
        ("n", "Pairs (n)"),
    )
    rows: list[tuple[str, Line]] = [
        (title, (figures.figure(f"{at}.{name}", forms.count, name),)) for name, title in counts
    ]
    rows += [
        (
            f"{arm.capitalize()} success",
            (figures.figure(f"{at}.{arm}_success", forms.share, f"success.{arm}"),),
        )
        for arm in _ARMS
    ]
    rows += [
        (
            "Difference, (c − b) / n",
            line(
                figures.figure(f"{at}.difference", forms.signed_share, "difference"),
                " [",
                figures.figure(f"{at}.interval[0]", forms.signed_share, "interval.low"),
                ", ",
                figures.figure(f"{at}.interval[1]", forms.signed_share, "interval.high"),
                "]",
            ),
        ),
        ("Margin", line("−", figures.figure(f"{at}.margin", forms.share))),
        (
            "Design effect of the clusters",
            (figures.figure(f"{at}.design_effect", forms.plain, "design_effect"),),
        ),
    ]
    blocks: list[Block] = []
    chart = _difference(figures)
    if chart is not None:
        blocks.append(Charts((chart,)))
    blocks.append(Facts(tuple(rows)))
    if figures.value(f"{at}.cost_per_success"):
        blocks.append(_cost(figures))
    if figures.value(f"{at}.kinds"):
        blocks += [_kinds(figures), Paragraph((_ABOUT_KINDS,), muted=True)]
    return Section("outcome", title, tuple(blocks))


def _difference(figures: RunFigures) -> Forest | None:
    found, bounds = figures.value("summary.difference"), figures.value("summary.interval")
    margin = figures.value("summary.margin")
    if found is None or margin is None:
        return None
    low, high = bounds or (None, None)
    text = forms.signed_share(found)
    if low is not None and high is not None:
        text += f" [{forms.signed_share(low)}, {forms.signed_share(high)}]"
    ends = [None if x is None else 100 * x for x in (low, high)]
    row = Interval("candidate − baseline", 100 * found, ends[0], ends[1], text)
    alt = f"Difference in task success, {text}, against a margin of −{forms.share(margin)}"
    return Forest(
        "Difference in task success",
        alt,
        "in percent; right of the margin is not worse",
        (row,),
        (("margin", -100 * margin), ("equal", 0.0)),
    )


def _cost(figures: RunFigures) -> Table:
    at = "summary.cost_per_success"
    unit = figures.value(f"{at}.unit") or ""
    form = forms.duration if unit == "s" else forms.plain
    row = (
        ("engine time per success",),
        (figures.figure(f"{at}.baseline", form, "cost.baseline"),),
        (figures.figure(f"{at}.candidate", form, "cost.candidate"),),
        line(
            figures.figure(f"{at}.ratio", forms.ratio, "cost_ratio.ratio"),
            " [",
            figures.figure(f"{at}.low", forms.ratio, "cost_ratio.low"),
            ", ",
            figures.figure(f"{at}.high", forms.ratio, "cost_ratio.high"),
            "]",
        ),
        (figures.figure(f"{at}.limit", forms.ratio),),
    )
    columns = ("cost", "baseline", "candidate", "ratio", "limit")
    return Table("Cost per successful outcome", columns, (row,))


def _kinds(figures: RunFigures) -> Table:
    rows = []
    for i, row in enumerate(figures.value("summary.kinds")):
        cells = [
            (
                figures.figure(
                    f"summary.kinds[{i}].{arm}", forms.share, f"success.{row['kind']}.{arm}"
                ),
            )
            for arm in _ARMS
        ]
        own = f"pairs.{row['kind']}"
        pairs = figures.figure(f"summary.kinds[{i}].pairs", forms.count, own)
        rows.append(((str(row["kind"]).replace("_", " "),), (pairs,), *cells))
    return Table("Success by kind of task", ("kind", "pairs", *_ARMS), tuple(rows))


def value_section(document: Mapping[str, Any], ledger: Ledger) -> Section:
    """The ceiling, then the five terms and what they add up to."""
    title = "Value per task"
    pricing = document["value"]
    tasks = _tasks(document, ledger)
    if pricing is None:
        blocks: tuple[Block, ...] = (
            Paragraph(
                line(
                    "Unknown, which is not zero: nothing is priced on the present evidence. It "
                    "takes traces of the route's tasks, a confirmed speed-up and economics."
                )
            ),
            *tasks,
        )
        return Section("value", title, blocks)
    book = _Priced(document, pricing, ledger)
    return Section("value", title, (*book.blocks(), *tasks))


class _Priced:
    """Figures of one pricing document."""

    def __init__(
        self, document: Mapping[str, Any], pricing: Mapping[str, Any], ledger: Ledger
    ) -> None:
        self._pricing = pricing
        self._ledger = ledger
        self._route = document["route"]
        self._serving = leaf(document, "gates.serving.result.summary") or {}
        self._money = forms.money(pricing["currency"] or "of an unknown currency")

    def _figure(self, path: str, form: Callable[[float], str], own: str | None = None) -> Line:
        """Figure at a path of the pricing: by its own claim, else by the pricing as a whole."""
        ids = [f"pricing/{self._route}/{path}"]
        if own is not None:
            ids.insert(0, f"value/{self._route}/{own}")
        return (self._ledger.figure(leaf(self._pricing, path), form, *ids),)

    def _interval(
        self, path: str, form: Callable[[float], str], own: str, centre: str = "value"
    ) -> Line:
        if leaf(self._pricing, f"{path}.{centre}") is None:
            return (UNKNOWN,)
        bound = forms.amount if form is self._money else form
        low = self._figure(f"{path}.low", bound, f"{own}.low")
        high = self._figure(f"{path}.high", bound, f"{own}.high")
        return line(self._figure(f"{path}.{centre}", form, own), " [", low, ", ", high, "]")

    def blocks(self) -> tuple[Block, ...]:
        """Chart, ceiling and saving, the terms, and what the figures leave out."""
        rests: Line = ("no level that passed the serving gate",)
        if windows_unstated(self._serving):
            rests = (
                (
                    "none: levels passed the serving gate, but the candidate's window (gamma) is not "
                    "stated, and a lease has to name one"
                ),
            )
        if self._pricing.get("speedup"):
            rests = line(
                self._interval("speedup", forms.ratio, "speedup", "ratio"),
                " at concurrency ",
                self._figure("speedup.concurrency", forms.count),
            )
        facts: list[tuple[str, Line]] = [
            ("Ceiling: infinitely fast decoding", self._ceiling()),
            ("Speed-up used", rests),
            ("A second is worth", worth_of_time(self._pricing, self._figure)),
            ("Saved on the critical path", self._interval("saved_s", forms.duration, "saved_s")),
            (
                "Added before first tokens",
                self._interval("first_token_s", forms.duration, "first_token_s"),
            ),
            *self._kept(),
            ("Value per task", self._interval("total", self._money, "total", "per_task")),
            (
                "From",
                line(
                    self._figure("tasks", forms.count, "tasks"),
                    " tasks of ",
                    self._figure("sessions", forms.count, "sessions"),
                    " sessions",
                ),
            ),
        ]
        chart = self._chart()
        drawn: tuple[Block, ...] = () if chart is None else (Charts((chart,)),)
        return (
            *drawn,
            Facts(tuple(facts)),
            self._terms(),
            *by_load(self._pricing, self._figure),
            *self._notes(),
            *sensitivity(self._pricing, self._figure),
        )

    def _kept(self) -> list[tuple[str, Line]]:
        """What a fitted curve of abandonment makes of the saving."""
        if not (self._pricing.get("time_value") or {}).get("kept"):
            return []
        kept = self._interval("time_value.kept", forms.signed_share, "kept")
        return [("Tasks kept that would be abandoned", kept)]

    def _ceiling(self) -> Line:
        saved = self._figure("ceiling.saved_s", forms.duration, "ceiling.saved_s")
        if saved == (UNKNOWN,):
            return saved
        worth = self._figure("ceiling.per_task", self._money, "ceiling")
        return line(saved, " a task, worth ", worth)

    def _terms(self) -> Table:
        rows: list[tuple[Line, Line]] = []
        for name, title, sign in _TERMS:
            found = self._interval(f"terms.{name}", self._money, name)
            rows.append(((f"{'+' if sign > 0 else '−'} {title}",), found))
        total = self._interval("total", self._money, "total", "per_task")
        rows.append((("= Value per task",), total))
        return Table("The five terms", ("term", "per task"), tuple(rows))

    def _notes(self) -> tuple[Block, ...]:
        pricing = self._pricing
        economics = pricing["economics"]
        said: Line = (f"Economics {economics['name']} is not known: no price is.",)
        if economics["digest"]:
            said = (f"Priced with economics {economics['name']}, {economics['digest'][:12]}.",)
        notes: list[Line] = [said]
        energy = pricing.get("energy") or {}
        if energy.get("declared"):
            amount = self._figure("energy.per_task", self._money, "energy")
            notes.append(line("Energy is in the operational cost: ", amount, "."))
        else:
            notes.append(("Energy is not declared, and is in no term.",))
        notes += _about_saving(pricing)
        for reason, tasks in (pricing.get("excluded") or {}).items():
            claim = f"pricing/{self._route}/excluded.{reason}"
            number = self._ledger.figure(tasks, forms.count, claim)
            notes.append(line("Tasks left out, ", f"{reason.replace('_', ' ')}: ", number, "."))
        return (Items(tuple(notes)),)

    def _chart(self) -> Waterfall | None:
        steps = []
        ceiling = (self._pricing.get("ceiling") or {}).get("per_task")
        total = self._pricing.get("total")
        if total is None:
            return None  # a sum with a term missing would show what nobody knows
        if ceiling is not None:
            # The ceiling is a bound beside the sum, not its first summand: the sum begins at 0.
            steps.append(Step("Ceiling", ceiling, None, None, self._money(ceiling), total=True))
        for name, title, sign in _TERMS:
            found = self._pricing["terms"][name]
            ends = sorted((sign * found["low"], sign * found["high"]))
            signed = sign * found["value"]
            steps.append(Step(title, signed, ends[0], ends[1], self._money(signed)))
        amount, low, high = total["per_task"], total["low"], total["high"]
        text = self._money(amount)
        steps.append(Step("Value per task", amount, low, high, text, total=True))
        said = "; ".join(f"{step.label} {step.text}" for step in steps)
        return Waterfall(
            "From the ceiling to the value per task",
            f"Value per task as a waterfall. {said}",
            f"{self._pricing['currency']} per task",
            tuple(steps),
        )


def _about_saving(pricing: Mapping[str, Any]) -> list[Line]:
    """What the saving takes the calls to gain, and why it can price below zero all the same."""
    if not pricing.get("saved_s") or not pricing.get("first_token_s"):
        return []
    all_alike = (
        "Saved on the critical path: every call is taken to gain the speed-up used, that of the "
        "worst level that passed; a prediction at each call's own load differs from it."
    )
    said: list[Line] = [(all_alike,)]
    if not pricing["first_token_s"]["high"]:
        return said
    how = (
        "The low end of the value takes the most that may be added before first tokens off the "
        "least saved, though they need not meet"
    )
    if pricing.get("first_token_drawn"):
        how = (
            "What is added before first tokens is drawn together with the speed-up, from the same "
            "block pairs, and taken off the saving"
        )
    why = "; where few pairs leave it wide, a saving that was seen can still price below zero."
    return [*said, (f"{how}{why}",)]


def _tasks(document: Mapping[str, Any], ledger: Ledger) -> tuple[Block, ...]:
    tasks = document["tasks"]
    if tasks is None:
        return ()
    prefix = f"tasks/{document['route']}"

    def counted(name: str) -> Line:
        return (ledger.figure(tasks[name], forms.count, f"{prefix}/{name}"),)

    grades: list[Line] = [
        line(f"{grade}: ", ledger.figure(n, forms.count, f"{prefix}/grades.{grade}"))
        for grade, n in sorted(tasks["grades"].items())
    ]
    joined: Line = ("none",)
    for index, grade in enumerate(grades):
        joined = grade if index == 0 else line(joined, ", ", grade)
    unmatched: tuple[Block, ...] = ()
    if tasks["unmatched_calls"]:
        unmatched = (Paragraph((_UNMATCHED,), muted=True),)
    return (
        Facts(
            (
                (
                    "Tasks priced from",
                    line(counted("complete"), " complete, ", counted("open"), " open"),
                ),
                ("Evidence grades", joined),
                ("Calls that match no route: counted, never priced", counted("unmatched_calls")),
            )
        ),
        *unmatched,
    )
