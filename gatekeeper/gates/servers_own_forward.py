"""Two running servers under a common scorer: their token ids, judged by our own forward.

Where the files that both servers loaded are declared and can be loaded here, every emitted token is
scored by an ordinary forward of ours, as the tokens of an engine are: greedy deficits of both
servers, the strict e-process and the declared tolerance on the candidate's sampled tokens. No draft
and no position in a window is known, so the bank has p alone and the tolerance one stratum.

An alarm counts only if the server that decodes alone does not raise it too, on twice as many
tokens: else it is the sampler, the settings or the weights that differ, and not the draft.
``plan`` → ``run`` its trials into an equivalence accumulator → ``evaluate``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core.claims import Claim
from gatekeeper.core.running_pair import SERVERS_ENGINE, UNDISCLOSED
from gatekeeper.core.stats import server_logprobs
from gatekeeper.core.stats.eprocess import tokens
from gatekeeper.core.stats.evidence import RequestEvidence
from gatekeeper.core.stats.greedy import DEFAULT_SIGMA
from gatekeeper.core.verdicts import GateResult, Outcome, Part, worst
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence
from gatekeeper.gates.equivalence import Before
from gatekeeper.gates.servers_missing import Missing, account, missing, parts, readings
from gatekeeper.protocols import EngineInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.decoding import Rates, SamplingSettings, TokenPrompt
    from gatekeeper.core.policy_schema import EquivalenceBudget, Policy
    from gatekeeper.gates.equivalence import Plan, Trial
    from gatekeeper.protocols import PairInfo, Scored

__all__ = [
    "BLIND",
    "CONTROL",
    "OWN_FORWARD",
    "Calibration",
    "batches",
    "evaluate",
    "evidence_of_tokens",
    "info_of",
    "lost_answers",
    "plan",
]

OWN_FORWARD = "own forward"
"""Name of the rule by which tokens were judged."""

CONTROL = {name: f"ordinary_{name}" for name in ("requests", "strict", "tolerance")}
"""Tables of the server that decodes alone, by the table of the candidate that they are like."""

BLIND = (
    "the draft's own probabilities: without them mild faults of acceptance need far more tokens",
    "which tokens were guesses: a fault only of those that follow a window is diluted by the rest",
    "other windows than the one that the server was started with",
    "chat templates, stop texts, streaming and structured output: gatekeeper battery tries those",
)
"""What tokens without their drafts cannot show."""

_SHAPES = (1, 3)
"""Requests at a time beside a full batch: alone, and an odd number."""

_UNKNOWN_WINDOW = -1


@dataclass(frozen=True)
class Calibration:
    """Greedy tokens of the server that decodes alone, and whether they are the declared weights'.

    ``table`` as in ``core.stats.server_logprobs``; empty where the server gives no log-probabilities.
    """

    table: pd.DataFrame

    @property
    def sigma(self) -> float:
        """Per-logit noise between the servers and our forward, on a coarse scale."""
        found = server_logprobs.noise(self.table)
        return server_logprobs.graded(max(DEFAULT_SIGMA.values()) if found is None else found)

    @property
    def refusal(self) -> str | None:
        """Why our forward does not speak for these servers, None where it may."""
        found = server_logprobs.noise(self.table)
        if found is None or found <= server_logprobs.SAME_WEIGHTS:
            return None
        return (
            f"log-probabilities of the server without a draft differ from the declared files' by "
            f"{found:.3g} nats (root mean square; up to {server_logprobs.SAME_WEIGHTS:g} count as "
            "the same weights)"
        )


def plan(
    policy: Policy,
    artifact: Mapping[str, Any],
    *,
    prompts: Sequence[TokenPrompt],
    sampling: Sequence[SamplingSettings] = (),
    end_tokens: Sequence[int] = (),
    seed: int | None = None,
    rates: Rates | None = None,
    before: Before | None = None,
) -> Plan:
    """Lay out the trials as for an engine, at the one window that the candidate runs with.

    No effect is declared: the figures behind one rest on the draft's probabilities.

    Raises:
        InputError: there is no prompt.
    """
    gamma = artifact["gamma"]
    budget = policy.equivalence
    budget = replace(budget, sampled=replace(budget.sampled, effect=None))
    window = 1 if gamma is None else int(gamma)
    known = {
        "gamma": window,
        "proposer": {"kind": UNDISCLOSED},
        "acceptance": {"method": UNDISCLOSED, "contract": "exact"},
    }
    found = equivalence.plan(
        replace(policy, equivalence=budget),
        known,
        prompts=prompts,
        sampling=sampling,
        end_tokens=end_tokens,
        seed=seed,
        rates=rates,
        before=before or Before(runs=0, tokens=0),
        windows=(window,),
    )
    estimate = {
        **found.estimate,
        "gammas": [gamma],
        "attainable_power": (
            "a strict alarm on p alone, valid at any time; how soon a fault shows depends on how far "
            "it moves the target's own distribution"
        ),
    }
    trials = found.trials
    if gamma is None:
        window = _UNKNOWN_WINDOW  # as every table has it
        trials = tuple(replace(t, request=replace(t.request, gamma=window)) for t in trials)
    return replace(found, trials=trials, estimate=estimate, gamma=window, positions=False)


def info_of(pair: PairInfo, scorer: EngineInfo, servers: pd.DataFrame, sigma: float) -> EngineInfo:
    """What is judged, as an engine: both servers' own words, and the scorer that judges them."""
    said = readings(servers)
    words = " and ".join(
        said.get(arm, {}).get("version") or said.get(arm, {}).get("fingerprint") or "unknown"
        for arm in ("baseline", "candidate")
    )
    return EngineInfo(
        name=SERVERS_ENGINE,
        version=f"{pair.version}, servers {words}, scored by {scorer.name} {scorer.version}",
        device=UNDISCLOSED,
        dtype=scorer.dtype,
        vocab_size=scorer.vocab_size,
        max_context=scorer.max_context,
        max_batch=scorer.max_batch,
        end_tokens=scorer.end_tokens,
        identity_rule="deficit",
        details={"logit_sigma": sigma},
    )


def batches(trials: Sequence[Trial], full: int) -> Iterator[tuple[Trial, ...]]:
    """Trials in order, in batches of one, an odd number and a full one, in turn."""
    sizes = tuple(dict.fromkeys(min(size, full) for size in (*_SHAPES, full)))
    begin = number = 0
    while begin < len(trials):
        size = sizes[number % len(sizes)]
        yield tuple(trials[begin : begin + size])
        begin, number = begin + size, number + 1


def evidence_of_tokens(trial: Trial, emitted: Sequence[int], scored: Scored) -> RequestEvidence:
    """Evidence of tokens alone: no draft, kind or place in a window.

    Raises:
        InputError: the scored rows do not match the tokens.
    """
    if len(scored.p) != len(emitted):
        raise InputError(
            f"has {len(scored.p)} rows for {len(emitted)} tokens",
            field="scored.p",
            value=trial.request.request_id,
            remedy="score exactly the emitted tokens",
        )
    return RequestEvidence(
        prompt=trial.prompt,
        replicate=trial.replicate,
        request=trial.index,
        token=np.array(emitted, dtype=np.int64),
        p=scored.p,
    )


def evaluate(budget: EquivalenceBudget, tables: Mapping[str, pd.DataFrame]) -> GateResult:
    """Judge a run from its evidence tables alone.

    Raises:
        EvidenceError: a table does not hold what it must.
    """
    found = equivalence.evaluate(budget, tables)
    said = readings(tables["servers"])
    lacking = _unchecked(said)
    judged, shared = _against_the_baseline(budget, tables, found)
    same, claims = _weights(tables["calibration"])
    every = (
        *judged,
        *lost_answers(tables["answers"]),
        same,
        *(replace(part, mandatory=False) for part in parts(lacking)),
    )
    outcome = worst(part.outcome for part in every if part.mandatory)
    example = None if shared else found.summary["counter_example"]
    return replace(
        found,
        outcome=outcome,
        parts=every,
        summary={
            **found.summary,
            "arms": {
                "baseline": said.get("baseline", {}),
                "candidate": said.get("candidate", {}),
                "speculation not configured": "run: the baseline",
                "configured, gamma 0": "not run: a client cannot ask a server for it",
                "on": "run: the candidate",
            },
            "strict": None if found.summary["strict"] is None else _of_p(found.summary["strict"]),
            "missing": account(lacking),
            "scoring": {
                "rule": OWN_FORWARD,
                "why": same.detail,
                "tokens": found.summary["tokens"],
                "control_tokens": _control_tokens(tables),
                "blind": list(BLIND),
            },
            "tokens_needed": found.summary["tokens_needed"]
            if outcome is Outcome.INCONCLUSIVE
            else None,
            "counter_example": example,
        },
        claims=(*found.claims, *claims),
        still_needed=_still_needed(outcome, every, found.still_needed),
    )


def _of_p(strict: Mapping[str, Any]) -> dict[str, Any]:
    """Power against reference faults is known with the draft's probabilities only."""
    return {**strict, "proposal": False}


def _against_the_baseline(
    budget: EquivalenceBudget, tables: Mapping[str, pd.DataFrame], found: GateResult
) -> tuple[tuple[Part, ...], bool]:
    """The parts, with an alarm that the server without a draft raises too taken back to ERROR."""
    if CONTROL["requests"] not in tables:
        return found.parts, False
    own = {**tables, **{name: tables[other] for name, other in CONTROL.items()}}
    control = {part.name: part for part in equivalence.evaluate(budget, own).parts}
    judged, shared = [], False
    alike = [control[name] for name in ("strict e-process", "tolerance")]
    raised = next((part for part in alike if part.outcome is Outcome.FAIL), None)
    for part in found.parts:
        if part.outcome is not Outcome.FAIL or part.name not in control or raised is None:
            judged.append(part)
        elif part.name in {one.name for one in alike}:
            shared = True
            detail = (
                f"the server without a draft raises an alarm too ({raised.detail}), so this is not "
                f"the draft's: sampler, settings or weights are not what was declared; {part.detail}"
            )
            judged.append(replace(part, outcome=Outcome.ERROR, detail=detail))
        else:
            judged.append(part)
    count = _control_tokens(tables)
    detail = (
        raised.detail
        if raised is not None
        else f"no alarm in {count} tokens of the server without a draft"
    )
    outcome = Outcome.ERROR if raised is not None else Outcome.PASS
    return (*judged, Part("server without a draft", outcome, detail)), shared


def _control_tokens(tables: Mapping[str, pd.DataFrame]) -> int:
    table = tables.get(CONTROL["requests"])
    return 0 if table is None or table.empty else tokens(table)


def _weights(table: pd.DataFrame) -> tuple[Part, list[Claim]]:
    """Whether the declared files are what the servers run: by their own log-probabilities."""
    name = "declared weights"
    noise, most = server_logprobs.noise(table), server_logprobs.largest(table)
    if noise is None or most is None:
        text = (
            "the server gives no log-probabilities to compare; greedy deficits and the strict test "
            "still hold its tokens to the declared files"
        )
        return Part(name, Outcome.INCONCLUSIVE, text, mandatory=False), []
    claims = [
        Claim(
            id=f"equivalence.servers.{key}",
            equation=f"servers.{key}",
            inputs={"table": "calibration"},
            value=value,
            unit="nats",
            status="measured",
            source="equivalence gate, table calibration",
        )
        for key, value in (("logprob_noise", noise), ("logprob_largest", most))
    ]
    detail = (
        f"log-probabilities of {len(table)} greedy tokens differ from the declared files' by "
        f"{noise:.2g} nats (root mean square), {most:.2g} at most"
        if most > 0
        else f"log-probabilities of {len(table)} greedy tokens are the very same by the declared files"
    )
    alike = noise <= server_logprobs.SAME_WEIGHTS
    outcome = Outcome.PASS if alike else Outcome.ERROR
    return Part(name, outcome, detail, figures={"noise": noise, "largest": most}), claims


def _unchecked(said: Mapping[str, Mapping[str, str]]) -> list[Missing]:
    """What stays unknown although the tokens were scored; none of it decides."""
    names = {"version of both servers"}
    if said.get("pair", {}).get("gamma", "unknown") == "unknown":
        names.add("gamma")
    return [one for one in missing(said) if one.name in names]


def lost_answers(answers: pd.DataFrame) -> list[Part]:
    """Answers (``arm``, ``reason``) that broke off: they are no evidence, and are not passed over."""
    lost = answers[~answers["reason"].isin(["stop", "length"])]
    if lost.empty:
        return []
    pairs = lost[["arm", "reason"]].itertuples(index=False)
    seen = Counter(f"of {arm} ended as {reason}" for arm, reason in pairs)
    detail = ", ".join(f"{n} {what}" for what, n in sorted(seen.items()))
    return [Part("complete answers", Outcome.INCONCLUSIVE, detail)]


def _still_needed(outcome: Outcome, every: Sequence[Part], needed: str | None) -> str | None:
    if outcome is Outcome.INCONCLUSIVE:
        return needed or "; ".join(
            f"{part.name}: {part.detail}"
            for part in every
            if part.mandatory and part.outcome is not Outcome.PASS
        )
    if outcome is Outcome.ERROR:
        return (
            "a server without a draft that decodes the declared files under the declared settings"
        )
    return None
