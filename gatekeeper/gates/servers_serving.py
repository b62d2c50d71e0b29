"""Serving of two servers that already run: the same block pairs, judged from what a client sees.

The statistics are those of :mod:`gatekeeper.gates.serving` on the same tables. Beside them stand
the conditions under which a client's times mean anything: its own event loop kept up, usage agrees with
the stream, the baseline decodes alone and the candidate drafts. Where one fails, the run is void.

Memory is unknown, rounds are the server's own totals, and where gamma was not declared it is -1 in
the tables and None in the result: no lease can name a window that nobody knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from gatekeeper.core.acceptance import ROUND_COLUMNS
from gatekeeper.core.decoding import TokenPrompt
from gatekeeper.core.stats import server_drafts
from gatekeeper.core.stats.serving_blocks import ORDINARY, SPECULATIVE
from gatekeeper.core.verdicts import GateResult, Outcome, Part
from gatekeeper.gates import serving
from gatekeeper.gates.servers_equivalence import fitting
from gatekeeper.gates.servers_missing import account, missing, readings
from gatekeeper.gates.serving_figures import Figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.core.claims import Claim
    from gatekeeper.core.decoding import Rates, SamplingSettings
    from gatekeeper.core.policy_schema import Policy, ServingBudget
    from gatekeeper.gates.servers_equivalence import TextPrompt

__all__ = ["TABLES", "UNKNOWN_GAMMA", "evaluate", "no_memory", "no_rounds", "plan"]

TABLES = (*serving.TABLES, "drafts", "health", "servers")

UNKNOWN_GAMMA = -1

LEAST_LAG_LIMIT_S = 0.010
"""A loop that is late by less than this does not count as starved: times are no finer."""

LAG_SHARE = 0.25
"""Lag, as a share of the ordinary time per token, from which block times measure the client."""

STARVED_SHARE = 0.2
"""Share of a level's blocks that may be starved; the pairs are random, so few such blocks are noise."""

_ALPHA = 0.001


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    prompts: Sequence[TextPrompt],
    sampling: Sequence[SamplingSettings],
    seed: int,
    rates: Rates | None = None,
    budget: ServingBudget | None = None,
) -> serving.Plan:
    """Plan the blocks: the candidate has one window, the one it was started with.

    Prompt lengths are estimated at four characters a token; those beyond the policy's
    ``max_prompt_tokens`` are left out.

    Raises:
        InputError: no prompts that fit, or no sampling settings.
    """
    budget = budget or policy.serving
    sized = [
        TokenPrompt(p.id, p.slice, (0,) * p.estimated_tokens)
        for p in fitting(prompts, budget.max_prompt_tokens)
    ]
    gamma = UNKNOWN_GAMMA if artifact["gamma"] is None else int(artifact["gamma"])
    return serving.plan(
        policy,
        {"gamma": gamma},
        prompts=sized,
        sampling=sampling,
        end_tokens=(),
        seed=seed,
        rates=rates,
        budget=replace(budget, gammas=(abs(gamma),)),
    )


def no_rounds() -> pd.DataFrame:
    """Return an empty ``rounds`` table: a client sees no rounds."""
    kinds: dict[str, Any] = dict.fromkeys(ROUND_COLUMNS, "float64")
    kinds |= dict.fromkeys(("index", "gamma", "drafted", "accepted", "committed"), "int64")
    kinds |= dict.fromkeys(("batch", "context", "memory_bytes", "step", "pair"), "int64")
    kinds |= {"rejection_position": "Int64", "steady": "bool", "step_s": "float64"}
    kinds |= {"request_id": "str", "phase": "str", "arm": "str", "concurrency": "int64"}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def no_memory() -> pd.DataFrame:
    """Return an empty ``memory`` table: a server tells nobody what it holds."""
    kinds: dict[str, Any] = {"phase": "str", "concurrency": "int64", "gamma": "int64"}
    kinds |= {"purpose": "str", "bytes": "int64", "measured": "bool", "slots": "int64"}
    kinds |= {"predicted": "float64"}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def evaluate(budget: ServingBudget, tables: Mapping[str, pd.DataFrame]) -> GateResult:
    """Judge a run from its evidence tables alone.

    ERROR where the measurement is void, FAIL where the candidate loses answers that the baseline
    gives, else what the blocks say.
    """
    judged = serving.evaluate(budget, tables)
    figures = Figures(tables)
    said = readings(tables["servers"])
    conditions = [
        *_client(figures, judged.summary["regions"]),
        _usage(figures, budget),
        _answers(figures),
        *_drafting(figures),
    ]
    worst = {part.outcome for part in conditions if part.mandatory}
    if Outcome.ERROR in worst:
        outcome = Outcome.ERROR
    elif Outcome.FAIL in worst:
        outcome = Outcome.FAIL
    elif judged.outcome is Outcome.PASS and Outcome.INCONCLUSIVE in worst:
        outcome = Outcome.INCONCLUSIVE
    else:
        outcome = judged.outcome
    own = _own(figures, judged.summary, said)
    summary = _disclose({**judged.summary, **own})
    drafted = [row["drafted_per_round"] for row in own["acceptance_matrix"]]
    most = max((value for value in drafted if value is not None), default=None)
    lacking = [one for one in missing(said, drafted=most) if one.name in _MATTERS]
    if outcome is not Outcome.PASS:
        summary |= {"envelope": None, "gamma_by_concurrency": {}}
    return replace(
        judged,
        outcome=outcome,
        parts=(
            *conditions,
            *judged.parts,
            *(
                Part(one.name, Outcome.INCONCLUSIVE, f"unverified: {one.seen}", mandatory=False)
                for one in lacking
            ),
        ),
        summary={**summary, "missing": account(lacking)},
        claims=(*judged.claims, *map(_renamed, figures.claims)),
        still_needed=_still_needed(conditions, judged)
        if outcome in {Outcome.INCONCLUSIVE, Outcome.ERROR}
        else None,
    )


_MATTERS = ("version of both servers", "gamma")


def _renamed(claim: Claim) -> Claim:
    return replace(claim, id=claim.id.replace("serving.", "serving.servers.", 1))


def _still_needed(conditions: Sequence[Part], judged: GateResult) -> str:
    bad = [f"{p.name}: {p.detail}" for p in conditions if p.outcome is not Outcome.PASS]
    return "; ".join([*bad, *([judged.still_needed] if judged.still_needed else [])])


def _client(figures: Figures, regions: Sequence[Mapping[str, Any]]) -> list[Part]:
    """One part for all levels: a client that was starved measured itself."""
    starved, limits = {}, {}
    for region in regions:
        concurrency, ordinary = region["concurrency"], region["tpot_s"][ORDINARY]
        limit = max(LEAST_LAG_LIMIT_S, LAG_SHARE * (ordinary or 0.0))
        share = figures.add(
            f"starved_share.c{concurrency}",
            "servers.starved_share",
            "health",
            "share",
            concurrency=concurrency,
            limit_s=limit,
        )
        starved[concurrency], limits[concurrency] = share, limit
    lag = figures.add("client_lag", "servers.client_lag", "health", "s")
    numbers = {"lag_p95_s": lag, "starved": {str(c): share for c, share in starved.items()}}
    if lag is None or not starved:
        return [Part("client health", Outcome.ERROR, "was not measured", figures=numbers)]
    bad = [c for c, share in starved.items() if share is None or share > STARVED_SHARE]
    if bad:
        where = ", ".join(f"{starved[c]:.0%} of blocks at concurrency {c}" for c in bad)
        detail = (
            f"the client's event loop was late by more than {max(limits.values()) * 1000:.0f} ms in "
            f"{where}: the times are its own; run the worker on a less loaded machine"
        )
        return [Part("client health", Outcome.ERROR, detail, figures=numbers)]
    detail = f"the client's event loop was late by {lag * 1000:.1f} ms (95th percentile)"
    return [Part("client health", Outcome.PASS, detail, figures=numbers)]


def _usage(figures: Figures, budget: ServingBudget) -> Part:
    """TPOT divides by usage: where it contradicts the stream there is no TPOT."""
    wrong = {
        arm: sum(
            figures.add(
                f"usage_disagreements.{arm}.{table}",
                "servers.usage_disagreements",
                table,
                "answers",
                arm=arm,
                max_tokens=budget.tokens_per_request,
            )
            or 0.0
            for table in ("sweep", "confirm")
        )
        for arm in (ORDINARY, SPECULATIVE)
    }
    rows = pd.concat([figures.tables["sweep"], figures.tables["confirm"]], ignore_index=True)
    how = "and its retokenised text" if rows["counted"].notna().any() else "only"
    if any(wrong.values()):
        detail = (
            f"usage contradicts what was streamed in {wrong[ORDINARY]:.0f} answers of the baseline "
            f"and {wrong[SPECULATIVE]:.0f} of the candidate, of {len(rows)}: times per token mean nothing"
        )
        return Part("usage", Outcome.ERROR, detail, figures=wrong)
    detail = f"the tokens of {len(rows)} answers agree with the stream {how}"
    return Part("usage", Outcome.PASS, detail, figures=wrong)


def _answers(figures: Figures) -> Part:
    """Lost answers: FAIL where the candidate loses significantly more (Fisher, one-sided .001)."""
    lost, n = {}, {}
    for arm in (ORDINARY, SPECULATIVE):
        counted = [
            figures.add(
                f"incomplete.{arm}.{table}", "servers.incomplete", table, "answers", arm=arm
            )
            for table in ("sweep", "confirm")
        ]
        lost[arm] = int(sum(value or 0.0 for value in counted))
        n[arm] = sum(
            int((figures.tables[table]["arm"] == arm).sum()) for table in ("sweep", "confirm")
        )
    name, numbers = "complete answers", {"lost": lost, "answers": n}
    if not any(lost.values()):
        return Part(
            name, Outcome.PASS, f"all {sum(n.values())} ended by themselves", figures=numbers
        )
    table = np.array(
        [
            [lost[SPECULATIVE], n[SPECULATIVE] - lost[SPECULATIVE]],
            [lost[ORDINARY], n[ORDINARY] - lost[ORDINARY]],
        ]
    )
    worse = float(stats.fisher_exact(table, alternative="greater").pvalue) < _ALPHA
    detail = (
        f"{lost[ORDINARY]} of {n[ORDINARY]} answers of the baseline and {lost[SPECULATIVE]} of "
        f"{n[SPECULATIVE]} of the candidate broke off ({_reasons(figures)})"
    )
    return Part(name, Outcome.FAIL if worse else Outcome.INCONCLUSIVE, detail, figures=numbers)


def _reasons(figures: Figures) -> str:
    rows = pd.concat([figures.tables["sweep"], figures.tables["confirm"]], ignore_index=True)
    seen = rows.loc[~rows["reason"].isin(server_drafts.COMPLETE), "reason"].value_counts()
    return ", ".join(f"{reason} {count}" for reason, count in sorted(seen.items()))


def _drafting(figures: Figures) -> list[Part]:
    """Readback: the baseline must not draft, the candidate must."""
    seen = {
        arm: figures.add(f"drafted.{arm}", "servers.drafted", "drafts", "tokens", arm=arm)
        for arm in (ORDINARY, SPECULATIVE)
    }
    parts = []
    if seen[ORDINARY]:
        detail = f"the baseline drafted {seen[ORDINARY]:.0f} tokens: start it without speculation"
        parts.append(Part("baseline decodes alone", Outcome.ERROR, detail))
    name = "candidate speculates"
    if seen[SPECULATIVE] is None:
        detail = "unknown: the candidate gives no counters of drafts"
        parts.append(Part(name, Outcome.INCONCLUSIVE, detail, mandatory=False))
    elif seen[SPECULATIVE] == 0:
        detail = "the candidate drafted nothing: its flags did not take effect, or nothing matched"
        parts.append(Part(name, Outcome.INCONCLUSIVE, detail))
    else:
        detail = f"the candidate drafted {seen[SPECULATIVE]:.0f} tokens"
        parts.append(Part(name, Outcome.PASS, detail))
    return parts


def _own(
    figures: Figures, summary: Mapping[str, Any], said: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """What servers count, in the places where rounds would have stood."""
    matrix = []
    for row in summary["acceptance_matrix"]:
        at = {"concurrency": row["concurrency"], "arm": SPECULATIVE}
        counted = {
            name: figures.add(
                f"{name}.c{row['concurrency']}",
                "servers.acceptance",
                "drafts",
                "share" if name == "acceptance_rate" else "tokens per round with a draft",
                figure=name,
                **at,
            )
            for name in ("drafted_per_round", "accepted_per_round", "acceptance_rate")
        }
        matrix.append({**row, **counted})
    return {
        "acceptance_matrix": matrix,
        "memory": {},
        "servers": {arm: dict(names) for arm, names in said.items()},
    }


def _disclose(value: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON is any
    """Copy of a summary in which an unknown gamma is None; ``name`` is the key it stands under."""
    if isinstance(value, dict):
        windows = name == "gamma_by_concurrency"
        return {key: _disclose(item, "gamma" if windows else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_disclose(item) for item in value]
    return None if name == "gamma" and value == UNKNOWN_GAMMA else value
