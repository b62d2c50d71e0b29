"""The equivalence gate: does speculation emit what the target alone would?

``plan`` → run its trials, adding each to an ``Accumulator`` → ``evaluate`` its tables. Greedy
identity, the strict e-process and the declared tolerance are mandatory parts; the worst counts.
An approximate artifact is never called exact: its strict parts inform only, its deviation must stay
inside what it admits, or the tolerance where it admits nothing, and the outcome gate decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper.core.claims import Claim
from gatekeeper.core.stats import gate_cost, greedy, tolerance
from gatekeeper.core.stats.eprocess import MEMBERS, cumulate, log10_e, log_e, tokens
from gatekeeper.core.verdicts import GateResult, Outcome, Part, worst
from gatekeeper.gates.equivalence_chain import Earlier, check_continued
from gatekeeper.gates.equivalence_context import TEXT, Context, difference, facts
from gatekeeper.gates.equivalence_plan import (
    ORDINARY,
    SAMPLED,
    SPECULATIVE,
    Plan,
    Trial,
    admitting,
    evidence_of,
    plan,
)
from gatekeeper.gates.equivalence_record import TABLES, Before
from gatekeeper.gates.equivalence_run import Accumulator, numeric_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.core.policy_schema import EquivalenceBudget
    from gatekeeper.protocols import EngineInfo

__all__ = [
    "ORDINARY",
    "SAMPLED",
    "SPECULATIVE",
    "TABLES",
    "Accumulator",
    "Before",
    "Earlier",
    "Plan",
    "Trial",
    "check_continued",
    "differing",
    "evaluate",
    "evidence_of",
    "plan",
    "worded",
]

_SOURCE = "equivalence gate"


@dataclass(frozen=True)
class _Judged:
    """One part with what it contributes to the result."""

    part: Part
    summary: Any
    claims: tuple[Claim, ...] = ()
    counter_example: Mapping[str, Any] | None = None
    still_needed: int = 0


def evaluate(budget: EquivalenceBudget, tables: Mapping[str, pd.DataFrame]) -> GateResult:
    """Judge a run from its evidence tables alone; those of the runs it continues are among them.

    Raises:
        EvidenceError: a table does not hold what it must.
    """
    context = Context.read(tables["context"])
    budget = admitting(budget, context.deviation)
    exact = context.contract == "exact"
    identity = _greedy(budget, context, tables["greedy"], mandatory=exact)
    strict = _strict(budget, context, tables, mandatory=exact)
    deviation = _tolerance(budget, context, tables)
    judged = (identity, strict, deviation)
    outcome = worst(j.part.outcome for j in judged if j.part.mandatory)
    count = tokens(tables["requests"])
    cost, of_cost = _cost(tables)
    example = _with_texts(judged, context.texts)
    return GateResult(
        gate="equivalence",
        outcome=outcome,
        parts=tuple(j.part for j in judged),
        summary={
            "contract": context.contract,
            "design": context.design,
            "continues": list(context.continues),
            "not_continued": context.not_continued,
            "admitted_deviation": context.deviation,
            "identity_rule": context.rule,
            "gamma": context.gamma if context.gamma >= 0 else None,
            "settings": list(context.settings),
            "arms": {
                "speculation not configured": "not run: the engine always has a proposer",
                "configured, gamma 0": "run",
                "on": "run",
            },
            "greedy": identity.summary,
            "strict": strict.summary,
            "tolerance": deviation.summary,
            "tokens": count,
            "cost": cost,
            "tokens_needed": _tokens_needed(judged) if outcome is Outcome.INCONCLUSIVE else None,
            "counter_example": example,
        },
        claims=(
            _claim(
                "equivalence.tokens",
                "equivalence.tokens",
                {"table": "requests"},
                value=count,
                unit="tokens",
            ),
            *(c for j in judged for c in j.claims),
            *of_cost,
        ),
        still_needed=_still_needed(judged) if outcome is Outcome.INCONCLUSIVE else None,
    )


def _cost(tables: Mapping[str, pd.DataFrame]) -> tuple[dict[str, Any], tuple[Claim, ...]]:
    """Milliseconds a token of each part that was measured, with its claim."""
    table = tables.get("cost")
    found: dict[str, Any] = {}
    claims = []
    for part in gate_cost.PARTS:
        if table is not None and table.loc[table["part"] == part, "tokens"].sum() > 0:
            ms = gate_cost.ms_per_token(table, part=part)
            at = part.replace(" ", "_")
            found[at] = {
                "ms_per_token": ms,
                "tokens": int(table["tokens"][table["part"] == part].sum()),
            }
            name, inputs = f"equivalence.cost.{at}.ms_per_token", {"table": "cost", "part": part}
            claims.append(_claim(name, "equivalence.cost", inputs, value=ms, unit="ms per token"))
    return found, tuple(claims)


def differing(plan: Plan, info: EngineInfo, context: pd.DataFrame) -> list[str]:
    """Facts of an earlier run's ``context`` that differ from this one's: none where it may go on."""
    return difference(context, facts(plan, info, numeric_noise(plan, info)))


def worded(
    budget: EquivalenceBudget,
    tables: Mapping[str, pd.DataFrame],
    detokenize: Callable[[Sequence[int]], str],
) -> dict[str, pd.DataFrame]:
    """Return the tables with the texts of the counter-example's tokens, where there is one.

    They are evidence like the tokens themselves: whoever judges the tables again can show them.
    """
    found = evaluate(budget, tables).summary["counter_example"] or {}
    ids = [found[key] for key in ("token", "expected") if found.get(key) is not None]
    known = sorted(set(ids) - {greedy.NO_TOKEN})
    rows = [(f"{TEXT}{token}", detokenize([token])) for token in known]
    texts = pd.DataFrame(rows, columns=["name", "value"], dtype=tables["context"]["value"].dtype)
    return {**tables, "context": pd.concat([tables["context"], texts], ignore_index=True)}


def _with_texts(judged: tuple[_Judged, ...], texts: Mapping[int, str]) -> Mapping[str, Any] | None:
    """The first part's counter-example, with what its tokens read as where the evidence says so."""
    for part in judged:
        if part.counter_example is not None:
            example = part.counter_example
            return {
                **example,
                "text": texts.get(example["token"]),
                "expected_text": texts.get(example["expected"]),
            }
    return None


def _tokens_needed(judged: tuple[_Judged, ...]) -> int | None:
    """Further sampled tokens that may settle it; None where tokens are not what is missing."""
    return max(j.still_needed for j in judged) or None


def _still_needed(judged: tuple[_Judged, ...]) -> str:
    more = _tokens_needed(judged)
    open_parts = [
        f"{j.part.name}: {j.part.detail}"
        for j in judged
        if j.part.mandatory and j.part.outcome is not Outcome.PASS
    ]
    about = f"about {more} more sampled tokens (a repeated run goes on from here); " if more else ""
    return about + "; ".join(open_parts)


def _claim(
    name: str, equation: str, inputs: Mapping[str, Any], *, value: float, unit: str
) -> Claim:
    return Claim(
        id=name,
        equation=equation,
        inputs=inputs,
        value=float(value),
        unit=unit,
        status="measured",
        source=_SOURCE,
    )


def _greedy(
    budget: EquivalenceBudget, context: Context, table: pd.DataFrame, *, mandatory: bool
) -> _Judged:
    verdict = greedy.judge(
        table,
        rule=context.rule,
        sigma=context.sigma,
        tau_sigma=budget.greedy.tau_sigma,
        prompts=context.greedy_prompts,
    )
    rule = {"rule": context.rule}
    noise = {"sigma": context.sigma, "tau_sigma": budget.greedy.tau_sigma}
    figures = {
        "rule": verdict.rule,
        "sigma": context.sigma,
        "tau": verdict.tau,
        "positions": verdict.positions,
        "mismatches": verdict.mismatches,
        "ties": verdict.ties,
        "tie_rate": verdict.tie_rate,
        "baseline_tie_rate": verdict.baseline_tie_rate,
        "baseline_max_deficit": verdict.baseline_max_deficit,
    }
    example = None
    if verdict.first is not None:
        prompt, position, token, deficit = verdict.first
        example = {
            "part": "greedy identity",
            "prompt": prompt,
            "position": position,
            "token": token,
            "expected": greedy.ordinary_token(table, prompt, position),
            "deficit": deficit if math.isfinite(deficit) else None,
            "target_probability": None,
        }
    claims = (
        _claim(
            "equivalence.greedy.tau",
            "equivalence.greedy.tau",
            {"table": "greedy", **noise, **rule},
            value=verdict.tau,
            unit="logits",
        ),
        _claim(
            "equivalence.greedy.mismatches",
            "equivalence.greedy.mismatches",
            {"table": "greedy", "tau": verdict.tau, **rule},
            value=verdict.mismatches,
            unit="positions",
        ),
    )
    part = Part("greedy identity", verdict.outcome, verdict.detail, mandatory, figures)
    return _Judged(part, figures, claims, example)


def _strict(
    budget: EquivalenceBudget,
    context: Context,
    tables: Mapping[str, pd.DataFrame],
    *,
    mandatory: bool,
) -> _Judged:
    requests = tables["requests"]
    if requests.empty:
        part = Part("strict e-process", Outcome.INCONCLUSIVE, "no sampled tokens", mandatory)
        return _Judged(part, None, still_needed=budget.sampled.min_tokens)
    cumulated = cumulate(tables["strict"], envelope=True)
    requests = requests.set_index("request").reindex(cumulated.index)
    running = log_e(cumulated.to_numpy())
    limit = math.log(1 / budget.alpha)
    crossed = np.flatnonzero(running >= limit)
    at = int(crossed[0]) if len(crossed) else int(np.argmax(running))
    family = MEMBERS[int(np.argmax(cumulated.to_numpy()[at]))]
    values = {e: log10_e(tables["strict"], envelope=e) for e in (False, True)}
    by_setting = requests.groupby("setting")["tokens"].sum()
    fewest = min(int(by_setting.get(s, 0)) for s in context.settings) if context.settings else 0
    figures = {
        "log10_e": values[True],
        "log10_e_without_envelope": values[False],
        "alpha": budget.alpha,
        "delta": context.delta,
        "worst_family": family,
        "tokens": int(requests["tokens"].sum()),
    }
    example = None
    if len(crossed):
        outcome = Outcome.FAIL
        spent = int(requests["tokens"].iloc[: at + 1].sum())
        detail = (
            f"E = 10^{running[at] / math.log(10):.2f} after {spent} tokens, above "
            f"1/alpha = {1 / budget.alpha:g}; the strongest alternative is {family}"
        )
        row = requests.iloc[at]
        example = {
            "part": "strict e-process",
            "prompt": str(row["prompt"]),
            "position": int(row["position"]),
            "token": int(row["token"]),
            "expected": None,
            "deficit": None,
            "target_probability": float(row["target_probability"]),
        }
    elif fewest < budget.sampled.min_tokens:
        outcome = Outcome.INCONCLUSIVE
        detail = f"{fewest} of at least {budget.sampled.min_tokens} tokens per setting"
    else:
        outcome = Outcome.PASS
        detail = f"silent over {figures['tokens']} tokens: E stayed below {1 / budget.alpha:g}"
        if values[False] * math.log(10) >= limit:
            detail += "; without the numeric envelope it would have alarmed: a tiny deviation"
    claims = tuple(
        _claim(
            name,
            "equivalence.log10_e",
            {"table": "strict", "envelope": e},
            value=values[e],
            unit="log10",
        )
        for e, name in ((True, "equivalence.log10_e"), (False, "equivalence.log10_e.bare"))
    )
    part = Part("strict e-process", outcome, detail, mandatory, figures)
    needed = max(0, budget.sampled.min_tokens - fewest) * max(1, len(context.settings))
    return _Judged(part, figures, claims, example, needed)


def _tolerance(
    budget: EquivalenceBudget, context: Context, tables: Mapping[str, pd.DataFrame]
) -> _Judged:
    table = tables["tolerance"]
    name = "tolerance"
    t = budget.tolerance
    count = 2 * len(tolerance.FEATURES) * max(1, len(context.settings))
    declared = tolerance.Sequences(t.window, t.bonus, t.pass_alpha, t.fail_alpha, count)
    if table.empty:
        part = Part(name, Outcome.INCONCLUSIVE, "no sampled tokens")
        return _Judged(part, [], still_needed=budget.sampled.min_tokens)
    keys = ["setting", "stratum", "feature"]
    summed = table.groupby(keys, sort=False, as_index=False)[["n", "s", "v"]].sum()
    outcome, judged = tolerance.judge(summed, declared)
    missing = [
        f"{setting}, {stratum}"
        for setting in context.settings
        for stratum in context.strata
        if not ((summed["setting"] == setting) & (summed["stratum"] == stratum)).any()
    ]
    first_out = tolerance.first_outside(table, declared)
    if first_out is not None:
        outcome = Outcome.FAIL
    elif missing and outcome is Outcome.PASS:
        outcome = Outcome.INCONCLUSIVE
    worst_row = judged.iloc[int(np.argmax(judged["deviation"].abs() / judged["tolerance"]))]
    shown = (
        f"largest deviation {worst_row['deviation']:+.4f} of {worst_row['tolerance']:g} in "
        f"{worst_row['feature']} ({worst_row['stratum']}, {worst_row['setting']})"
    )
    undecided = judged[judged["outcome"] == str(Outcome.INCONCLUSIVE)]
    details = {
        Outcome.PASS: f"all {len(judged)} sequences inside; {shown}",
        Outcome.FAIL: f"outside at {first_out}; {shown}",
        Outcome.INCONCLUSIVE: f"{len(undecided)} of {len(judged)} sequences undecided"
        + (f", no tokens in {'; '.join(missing)}" if missing else "")
        + f"; {shown}",
    }
    total = tokens(tables["requests"])
    rows = [
        {key: (float(v) if isinstance(v, float) else v) for key, v in row.items()}
        for row in judged.drop(columns=["s", "v"]).to_dict("records")
    ]
    claims = tuple(
        _claim(
            f"equivalence.tolerance.{i:02d}.deviation",
            "equivalence.tolerance.deviation",
            {"table": "tolerance", **{key: row[key] for key in keys}},
            value=row["deviation"],
            unit="mean difference",
        )
        for i, row in enumerate(rows)
    )
    part = Part(name, outcome, details[outcome], figures={"sequences": len(judged)})
    return _Judged(part, rows, claims, still_needed=tolerance.more_tokens(undecided, total))
