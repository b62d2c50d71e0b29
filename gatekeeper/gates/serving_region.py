"""One concurrency level: every limit a check, the level as bad as its worst check."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import signed
from gatekeeper.core.stats.paired_blocks import PairedMean, judge, pairs_needed, sign_flip_p
from gatekeeper.core.stats.serving_blocks import (
    ORDINARY,
    SPECULATIVE,
    fairness,
    goodput_difference,
    goodput_level,
    ratio,
)
from gatekeeper.core.stats.serving_memory import ledger
from gatekeeper.core.verdicts import Outcome, worst

if TYPE_CHECKING:
    from gatekeeper.core.policy_schema import ServingBudget
    from gatekeeper.core.stats.paired_blocks import Side
    from gatekeeper.gates.serving_figures import Figures

__all__ = ["NOT_WORSE_MARGIN", "Check", "Region", "judge_region"]

NOT_WORSE_MARGIN = 0.02
"""Share of throughput and goodput that "not worse" may lose: below what block pairs resolve."""

_ENUMERATED = 14
"""Pairs up to which `sign_flip_p` counts every pattern of signs."""


@dataclass(frozen=True)
class Check:
    """One limit of a region and whether it holds."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Region:
    """A judged level. ``row`` is its JSON-able account; ``pairs_needed`` would settle it.

    ``rather_fails`` names the open ratios whose estimate is on the failing side: there, more pairs
    that go on like these settle the level as FAIL.
    """

    concurrency: int
    gamma: int
    outcome: Outcome
    checks: tuple[Check, ...]
    row: dict[str, Any]
    detail: str
    pairs_needed: int | None
    rather_fails: tuple[str, ...] = ()

    @property
    def open_checks(self) -> tuple[Check, ...]:
        """Checks that are neither passed nor failed."""
        return tuple(c for c in self.checks if c.outcome is Outcome.INCONCLUSIVE)


def judge_region(budget: ServingBudget, figures: Figures, concurrency: int, gamma: int) -> Region:
    """Judge the confirmation pairs of one level against the policy's limits."""
    limits, confirm = budget.limits, figures.tables["confirm"]
    inputs: dict[str, Any] = {"concurrency": concurrency, "confidence": budget.confidence}
    speedup = ratio(confirm, statistic="tpot_mean", numerator=ORDINARY, **inputs)
    ttft = ratio(confirm, statistic="ttft_p50", numerator=SPECULATIVE, **inputs)
    throughput = ratio(confirm, statistic="throughput", numerator=SPECULATIVE, **inputs)
    checks = [
        _ratio_check("speedup", speedup, limits.min_speedup, "above"),
        _ratio_check("ttft", ttft, limits.max_ttft_ratio, "below"),
        *_throughput_alarm(throughput),
        *_goodput_check(budget, figures, concurrency),
        *_memory_check(budget, figures, concurrency),
        *_fairness_check(budget, figures, concurrency),
    ]
    outcome = worst(check.outcome for check in checks)
    row = _row(budget, figures, concurrency, gamma)
    row["outcome"] = str(outcome)
    row["checks"] = {check.name: str(check.outcome) for check in checks}
    wanted = [
        pairs_needed(found, limit=limit)
        for found, limit in (
            (speedup, math.log(limits.min_speedup)),
            (ttft, math.log(limits.max_ttft_ratio)),
        )
        if judge(found, limit=limit, want="above") is Outcome.INCONCLUSIVE
    ]
    known = [n for n in wanted if n is not None]
    return Region(
        concurrency,
        gamma,
        outcome,
        tuple(checks),
        row,
        "; ".join(check.detail for check in checks),
        max(known) if known and len(known) == len(wanted) else None,
        (
            *_rather_fails("speedup", speedup, limits.min_speedup, "above"),
            *_rather_fails("ttft", ttft, limits.max_ttft_ratio, "below"),
        ),
    )


_TITLES = {"speedup": "TPOT speed-up", "ttft": "TTFT ratio"}


def _rather_fails(name: str, found: PairedMean, limit: float, want: Side) -> tuple[str, ...]:
    """An open ratio whose estimate is on the failing side of its limit, as it reads; else nothing."""
    if found.mean is None or judge(found, limit=math.log(limit), want=want) is not (
        Outcome.INCONCLUSIVE
    ):
        return ()
    beyond = found.mean - math.log(limit)
    if (beyond if want == "below" else -beyond) <= 0:
        return ()
    return (f"{_TITLES[name]} {found.ratio:.3f}, wanted {_SIGNS[want]} {limit:g}",)


_SIGNS = {"above": ">", "below": "<"}


def _ratio_check(name: str, found: PairedMean, limit: float, want: Side) -> Check:
    detail = f"{_said(_TITLES[name], found)}, wanted {_SIGNS[want]} {limit:g}"
    outcome = judge(found, limit=math.log(limit), want=want)
    if outcome is Outcome.INCONCLUSIVE:
        detail += _doubt(found, math.log(limit))
    return Check(name, outcome, detail)


def _doubt(found: PairedMean, limit: float) -> str:
    """Why nothing is settled although the bounds printed lie on one side of the limit."""
    if found.low is None or found.high is None or found.low <= limit <= found.high:
        return ""
    side: Side = "above" if found.low > limit else "below"
    p = sign_flip_p(found.values, limit=limit, side=side)
    if p is None:
        return ""
    wanted = f"p {p:.2g}, wanted {1 - found.confidence:.2g} or less"
    text = f" (not settled: by flipping the signs of the pairs, {wanted}"
    enough = _flips_needed(p, found)
    if enough is not None:
        text += (
            f"; {found.n} pairs give p in steps of 1/{2**found.n} = {1 / 2**found.n:.2g}, and "
            f"{enough} pairs that go on like these would reach it"
        )
    return f"{text})"


def _flips_needed(p: float, found: PairedMean) -> int | None:
    """Pairs in all at which as few sign patterns reach the mean with a p that suffices.

    A p of ``k`` / 2^n means that k of the 2^n patterns of signs reach the mean seen. Each pair more
    on the side of the mean doubles the patterns and not those that reach it. None where patterns
    were drawn and not counted.
    """
    if found.n > _ENUMERATED:
        return None
    patterns = round(p * 2**found.n)
    return max(math.ceil(math.log2(patterns / (1 - found.confidence)) - 1e-12), found.n + 1)


def _throughput_alarm(found: PairedMean) -> list[Check]:
    """A gain per stream that is paid for with fleet throughput fails the level.

    An alarm only: a block ends with its longest request, which makes its throughput too noisy to
    demand proof that nothing was lost, where TPOT is what the level has to prove.
    """
    if judge(found, limit=math.log1p(-NOT_WORSE_MARGIN), want="above") is Outcome.FAIL:
        return [Check("throughput", Outcome.FAIL, _said("throughput ratio", found))]
    return []


def _said(title: str, found: PairedMean) -> str:
    if found.ratio is None:
        return f"{title} unknown: {found.problem}"
    if found.ratio_low is None or found.ratio_high is None:
        return f"{title} {found.ratio:.3f} without bounds: {found.problem}"
    return f"{title} {found.ratio:.3f} [{found.ratio_low:.3f}, {found.ratio_high:.3f}]"


def _goodput_check(budget: ServingBudget, figures: Figures, concurrency: int) -> list[Check]:
    """Paired difference of requests/s within the objectives; no objective, no check."""
    slo = budget.slo
    if slo.ttft_s is None and slo.tpot_s is None:
        return []
    confirm = figures.tables["confirm"]
    found = goodput_difference(
        confirm,
        concurrency=concurrency,
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s,
        confidence=budget.confidence,
    )
    base = goodput_level(
        confirm, concurrency=concurrency, arm=ORDINARY, ttft_s=slo.ttft_s, tpot_s=slo.tpot_s
    )
    if base is None or found.mean is None or found.low is None:
        detail = f"goodput difference unknown: {found.problem}"
        return [Check("goodput", Outcome.INCONCLUSIVE, detail)]
    outcome = judge(found, limit=-NOT_WORSE_MARGIN * base, want="above")
    detail = f"goodput difference {signed(found.mean, 3)} (low {signed(found.low, 3)}) requests/s"
    return [Check("goodput", outcome, detail)]


def _memory_check(budget: ServingBudget, figures: Figures, concurrency: int) -> list[Check]:
    """Largest memory seen against the limit; what the engine cannot measure proves nothing."""
    limit = budget.limits.max_memory_bytes
    if limit is None:
        return []
    held = ledger(figures.tables["memory"])
    rounds = figures.tables["rounds"]
    seen = rounds.loc[rounds["concurrency"] == concurrency, "memory_bytes"]
    if held is None:
        return [Check("memory", Outcome.INCONCLUSIVE, "memory was not measured")]
    peak = max(held.total, int(seen.max()) if len(seen) else 0)
    detail = f"memory {peak} bytes, limit {limit}"
    if peak > limit:
        return [Check("memory", Outcome.FAIL, detail)]
    if not held.complete:
        return [Check("memory", Outcome.INCONCLUSIVE, f"{detail}, without {held.unmeasured}")]
    return [Check("memory", Outcome.PASS, detail)]


def _fairness_check(budget: ServingBudget, figures: Figures, concurrency: int) -> list[Check]:
    """Nobody may pay for another's speed.

    Holds when the worst class is not slowed at all, or when it is within the allowed distance of
    the best class; fails when it is slowed and beyond the distance. One request at a time shares
    with nobody: there the classes differ by their text alone.
    """
    if concurrency == 1:
        return []
    confirm = figures.tables["confirm"]
    classes = confirm.loc[confirm["concurrency"] == concurrency, "load_class"].nunique()
    if classes < 2:  # noqa: PLR2004 - one class has nobody to be compared with
        return []
    found = fairness(confirm, concurrency=concurrency, confidence=budget.confidence)
    if found is None:
        detail = "fairness unknown: a block pair lacks a load class"
        return [Check("fairness", Outcome.INCONCLUSIVE, detail)]
    name, best, slowed, apart = found
    limit = budget.limits.max_slowdown_ratio
    within = judge(apart, limit=math.log(limit), want="below")
    unharmed = judge(slowed, limit=0.0, want="below")
    detail = (
        f"fairness: {name} prompts gain least; their time per token with speculation ÷ without "
        f"{_said('is', slowed)}, and {_said('this is', apart)} times that of {best} prompts; enough is "
        f"the first below 1 (nobody is slowed) or the second below {limit:g} (nobody is left far behind)"
    )
    if Outcome.PASS in {within, unharmed}:
        return [Check("fairness", Outcome.PASS, detail)]
    both = within is Outcome.FAIL and unharmed is Outcome.FAIL
    return [Check("fairness", Outcome.FAIL if both else Outcome.INCONCLUSIVE, detail)]


def _row(budget: ServingBudget, figures: Figures, concurrency: int, gamma: int) -> dict[str, Any]:
    """Everything printed about a level, each figure claimed."""
    at = f"c{concurrency}"
    load = {"concurrency": concurrency}
    paired: dict[str, Any] = {**load, "confidence": budget.confidence}
    window = {**load, "gamma": gamma}
    row: dict[str, Any] = {"concurrency": concurrency, "gamma": gamma}
    row["pairs"] = int(
        figures.tables["confirm"].query("concurrency == @concurrency")["pair"].nunique()
    )
    for name, statistic, numerator in (
        ("speedup", "tpot_mean", ORDINARY),
        ("speedup_p50", "tpot_p50", ORDINARY),
        ("ttft_ratio", "ttft_p50", SPECULATIVE),
        ("ttft_p95_ratio", "ttft_p95", SPECULATIVE),
        ("itl_p95_ratio", "itl_p95", SPECULATIVE),
        ("throughput_ratio", "throughput", SPECULATIVE),
    ):
        row[name] = figures.interval(
            f"{name}.{at}",
            "serving.ratio",
            "confirm",
            "ratio",
            statistic=statistic,
            numerator=numerator,
            **paired,
        )
    for name, statistic, unit in (
        ("tpot_s", "tpot_mean", "s"),
        ("ttft_s", "ttft_p50", "s"),
        ("itl_p50_s", "itl_p50", "s"),
        ("itl_p95_s", "itl_p95", "s"),
        ("throughput", "throughput", "tokens/s"),
    ):
        row[name] = {
            arm: figures.add(
                f"{name}.{arm}.{at}",
                "serving.level",
                "confirm",
                unit,
                statistic=statistic,
                arm=arm,
                gamma=gamma if arm == SPECULATIVE else 0,
                **load,
            )
            for arm in (ORDINARY, SPECULATIVE)
        }
    # what pricing draws the speed-up from
    row["log_speedup"] = {
        end: figures.add(
            f"log_speedup.{end}.{at}",
            "serving.log_ratio",
            "confirm",
            "pairs" if end == "pairs" else "log ratio",
            statistic="tpot_mean",
            numerator=ORDINARY,
            end=end,
            **paired,
        )
        for end in ("mean", "sd", "pairs")
    }
    # and what it draws the added time to the first token from, of the same pairs
    row["log_ttft"] = {
        end: figures.add(
            f"log_ttft.{end}.{at}",
            "serving.log_ratio",
            "confirm",
            "log ratio",
            statistic="ttft_p50",
            numerator=SPECULATIVE,
            end=end,
            **paired,
        )
        for end in ("mean", "sd")
    }
    row["log_ttft"]["correlation"] = figures.add(
        f"log_ttft.correlation.{at}", "serving.ttft_correlation", "confirm", "correlation", **load
    )
    slo = budget.slo
    row["goodput"] = row["goodput_difference"] = None
    if slo.ttft_s is not None or slo.tpot_s is not None:
        row["goodput"] = {
            arm: figures.add(
                f"goodput.{arm}.{at}",
                "serving.goodput",
                "confirm",
                "requests/s",
                arm=arm,
                ttft_s=slo.ttft_s,
                tpot_s=slo.tpot_s,
                **load,
            )
            for arm in (ORDINARY, SPECULATIVE)
        }
        row["goodput_difference"] = figures.interval(
            f"goodput_difference.{at}",
            "serving.goodput_difference",
            "confirm",
            "requests/s",
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            **paired,
        )
    row["slowdown_spread"] = figures.interval(
        f"slowdown_spread.{at}", "serving.slowdown_spread", "confirm", "ratio", **paired
    )
    row["memory_peak_bytes"] = figures.add(
        f"memory_peak.{at}", "serving.memory_peak", "rounds", "bytes", **load
    )
    row["longest_context_tokens"] = figures.add(
        f"longest_context.{at}", "serving.longest_context", "confirm", "tokens", **load
    )
    row["times"] = _times(figures, window)
    row["mean_accepted_length"] = figures.add(
        f"mean_accepted_length.{at}",
        "serving.acceptance",
        "rounds",
        "tokens per round",
        figure="mean_accepted_length",
        **window,
    )
    row["predicted_speedup"] = figures.add(
        f"predicted_speedup.{at}", "serving.predicted_speedup", "rounds", "ratio", **window
    )
    return row


def _times(figures: Figures, window: dict[str, int]) -> dict[str, float | None]:
    """T1, Td, Tv and To of the break-even equation, seconds of a steady step."""
    parts = (
        ("ordinary_s", "step", 0),
        ("draft_s", "draft", window["gamma"]),
        ("verify_s", "verify", window["gamma"]),
        ("overhead_s", "overhead", window["gamma"]),
    )
    return {
        name: figures.add(
            f"{name}.c{window['concurrency']}",
            "serving.step_time",
            "rounds",
            "s",
            part=part,
            gamma=gamma,
            concurrency=window["concurrency"],
        )
        for name, part, gamma in parts
    }
