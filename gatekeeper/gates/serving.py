"""The serving gate: does speculation pay at this load, and whom does it hurt?

``plan`` → run its sweep → ``choose`` → run ``Plan.confirm`` → ``evaluate``. The verdict rests on the
fresh blocks alone. Levels are tested from the lowest upward and stop at the first that does not
pass: with that fixed sequence each level may use the full error rate (Maurer, Hothorn and Lehmacher
1995), and the envelope is what it says, every load up to ``max_concurrency``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.memory import PURPOSES
from gatekeeper.core.stats.paired_blocks import minimum_pairs
from gatekeeper.core.stats.serving_blocks import SPECULATIVE
from gatekeeper.core.stats.serving_memory import ledger
from gatekeeper.core.stats.serving_rounds import counts
from gatekeeper.core.verdicts import GateResult, Outcome, Part
from gatekeeper.gates.serving_figures import Figures
from gatekeeper.gates.serving_plan import BlockTrial, Plan, Suite, choose, plan
from gatekeeper.gates.serving_region import Region, judge_region

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.policy_schema import ServingBudget

__all__ = ["TABLES", "BlockTrial", "Plan", "Suite", "choose", "evaluate", "plan"]

TABLES = ("sweep", "confirm", "rounds", "memory")
"""Evidence tables, each one enough to recompute the claims that name it."""


def evaluate(budget: ServingBudget, tables: Mapping[str, pd.DataFrame]) -> GateResult:
    """Judge every concurrency level on its confirmation pairs.

    PASS when the lowest level passes (the region is the unbroken run of passing levels from
    there), FAIL when every level is conclusively outside the limits, else INCONCLUSIVE.
    """
    figures = Figures(tables)
    confirm = tables["confirm"]
    chosen = _chosen(confirm)
    regions = [
        judge_region(budget, figures, concurrency, chosen[concurrency])
        for concurrency in budget.concurrency
        if concurrency in chosen
    ]
    passing = _run_of_passes(budget, regions)
    outcome = _outcome(budget, regions, passing)
    return GateResult(
        gate="serving",
        outcome=outcome,
        parts=_parts(budget, regions),
        summary=_summary(budget, figures, regions, passing),
        claims=tuple(figures.claims),
        still_needed=_still_needed(budget, regions) if outcome is Outcome.INCONCLUSIVE else None,
    )


def _chosen(confirm: pd.DataFrame) -> dict[int, int]:
    """Window of each level that was confirmed."""
    speculative = confirm[confirm["arm"] == SPECULATIVE]
    first = speculative.drop_duplicates("concurrency")
    pairs = zip(first["concurrency"].tolist(), first["gamma"].tolist(), strict=True)
    return {int(concurrency): int(gamma) for concurrency, gamma in pairs}


def _run_of_passes(budget: ServingBudget, regions: Sequence[Region]) -> list[Region]:
    found = []
    by_level = {region.concurrency: region for region in regions}
    for concurrency in budget.concurrency:
        region = by_level.get(concurrency)
        if region is None or region.outcome is not Outcome.PASS:
            break
        found.append(region)
    return found


def _outcome(
    budget: ServingBudget, regions: Sequence[Region], passing: Sequence[Region]
) -> Outcome:
    if passing:
        return Outcome.PASS
    failed = [region for region in regions if region.outcome is Outcome.FAIL]
    if len(failed) == len(budget.concurrency):
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE


def _parts(budget: ServingBudget, regions: Sequence[Region]) -> tuple[Part, ...]:
    """One part per level. None is mandatory alone: one passing level is enough for the gate."""
    judged = {region.concurrency: region for region in regions}
    parts = []
    for concurrency in budget.concurrency:
        region = judged.get(concurrency)
        name = f"concurrency {concurrency}"
        if region is None:
            detail = "no confirmation blocks were run"
            parts.append(Part(name, Outcome.INCONCLUSIVE, detail, mandatory=False))
        else:
            figures = {check.name: str(check.outcome) for check in region.checks}
            parts.append(
                Part(name, region.outcome, region.detail, mandatory=False, figures=figures)
            )
    return tuple(parts)


def _summary(
    budget: ServingBudget,
    figures: Figures,
    regions: Sequence[Region],
    passing: Sequence[Region],
) -> dict[str, Any]:
    """JSON-able account; every figure in it has its claim."""
    envelope = None
    if passing:
        envelope = {
            "max_concurrency": passing[-1].concurrency,
            "max_context_tokens": min(
                int(region.row["longest_context_tokens"]) for region in passing
            ),
        }
    worst = min(passing, key=lambda region: region.row["speedup"]["low"], default=None)
    return {
        "regions": [region.row for region in regions],
        "gamma_by_concurrency": {str(region.concurrency): region.gamma for region in passing},
        "envelope": envelope,
        "speedup": None
        if worst is None
        else {**worst.row["speedup"], "concurrency": worst.concurrency},
        "surfaces": _surfaces(figures),
        "acceptance_matrix": _acceptance_matrix(figures, regions),
        "memory": _memory(budget, figures),
        "confidence": budget.confidence,
        "pairs": budget.confirm_blocks,
    }


def _surfaces(figures: Figures) -> list[dict[str, Any]]:
    """Inter-token latency and verified output throughput against concurrency, from the sweep."""
    sweep = figures.tables["sweep"]
    cells = sweep[["concurrency", "gamma"]].drop_duplicates().sort_values(["concurrency", "gamma"])
    rows = []
    for concurrency, gamma in cells.itertuples(index=False):
        where = {"concurrency": int(concurrency), "gamma": int(gamma)}
        row: dict[str, Any] = dict(where)
        for statistic, unit in (
            ("itl_p50", "s"),
            ("itl_p95", "s"),
            ("tpot_mean", "s"),
            ("ttft_p50", "s"),
            ("throughput", "tokens/s"),
        ):
            row[statistic] = figures.add(
                f"surface.{statistic}.c{concurrency}.g{gamma}",
                "serving.level",
                "sweep",
                unit,
                statistic=statistic,
                **where,
            )
        rows.append(row)
    return rows


def _acceptance_matrix(figures: Figures, regions: Sequence[Region]) -> list[dict[str, Any]]:
    """Slice × load: tokens drafted and accepted per round, verification time, net TPOT."""
    confirm = figures.tables["confirm"]
    slices = "+".join(sorted(confirm["slice"].unique()))
    rows = []
    for region in regions:
        where = {"concurrency": region.concurrency, "gamma": region.gamma}
        at = f"c{region.concurrency}"
        row: dict[str, Any] = {"slice": slices, **where}
        for name in ("drafted_per_round", "accepted_per_round", "acceptance_rate"):
            unit = "share" if name == "acceptance_rate" else "tokens per round"
            row[name] = figures.add(
                f"{name}.{at}", "serving.acceptance", "rounds", unit, figure=name, **where
            )
        row["verify_s"] = region.row["times"]["verify_s"]
        row["tpot_s"] = region.row["tpot_s"]["speculative"]
        found = counts(figures.tables["rounds"], concurrency=region.concurrency, gamma=region.gamma)
        row["conditional_acceptance"] = [
            figures.add(
                f"conditional_acceptance.{at}.k{k}",
                "serving.conditional_acceptance",
                "rounds",
                "probability",
                position=k,
                **where,
            )
            for k in range(len(found.conditional_acceptance))
        ]
        rows.append(row)
    return rows


def _memory(budget: ServingBudget, figures: Figures) -> dict[str, Any]:
    """Bytes by purpose, what speculation adds, and the sequences it displaces."""
    found = ledger(figures.tables["memory"])
    if found is None:
        return {}
    named = [name for name in found.to_dict() if name != "unmeasured"]
    held = {
        name: figures.add(f"memory.{name}", "serving.memory", "memory", "bytes", purpose=name)
        for name in (*named, "speculative")
    }
    predicted = {
        name: figures.estimate(
            f"memory_predicted.{name}", "serving.memory_predicted", "memory", "bytes", purpose=name
        )
        for name in (*PURPOSES, "total", "speculative")
    }
    lost = figures.add(
        "memory.sequences_lost",
        "serving.sequences_lost",
        "memory",
        "sequences",
        capacity_bytes=budget.limits.max_memory_bytes,
    )
    return {
        **held,
        "unmeasured": list(found.unmeasured),
        "active_sequences_lost": lost,
        "predicted": predicted,
    }


def _still_needed(budget: ServingBudget, regions: Sequence[Region]) -> str:
    if not regions:
        return "confirmation blocks at every concurrency level"
    open_regions = [r for r in regions if r.outcome is Outcome.INCONCLUSIVE]
    wanted = [
        f"{region.pairs_needed} block pairs at concurrency {region.concurrency}"
        for region in open_regions
        if region.pairs_needed is not None and region.pairs_needed > budget.confirm_blocks
    ]
    if wanted:
        failed = [str(r.concurrency) for r in regions if r.outcome is Outcome.FAIL]
        already = f"; at concurrency {', '.join(failed)} it fails" if failed else ""
        leaning = _leaning(open_regions)
        return f"about {', '.join(wanted)}, {budget.confirm_blocks} were run{already}{leaning}"
    if open_regions:
        least = minimum_pairs(budget.confidence)
        reasons = sorted({c.detail for r in open_regions for c in r.open_checks})
        if all("not settled" in reason for reason in reasons):
            return "; ".join(reasons) + _leaning(open_regions)  # each says how many pairs
        text = f"{'; '.join(reasons)} (at least {least} pairs that differ)"
        return text + _leaning(open_regions)
    return (
        f"an artifact that also passes at concurrency {regions[0].concurrency}: "
        "only higher levels pass"
    )


def _leaning(regions: Sequence[Region]) -> str:
    """Where more pairs would rather end in FAIL, since the estimate itself is on that side."""
    return "".join(
        f"; more pairs would rather settle concurrency {region.concurrency} as FAIL, as the estimate "
        f"stands: {', '.join(region.rather_fails)}"
        for region in regions
        if region.rather_fails
    )
