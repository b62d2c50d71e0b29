"""Turns finished requests into compact evidence tables while the equivalence gate runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper.core.stats import gate_cost, greedy, tolerance
from gatekeeper.core.stats.eprocess import MEMBERS, Bank, bonus_by_index, log_e, to_table
from gatekeeper.core.stats.families import EXACT_SUPPORT_RATE, SUPPORT_RATE
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError
from gatekeeper.gates.equivalence_context import CONTINUES, NOT_CONTINUED, facts
from gatekeeper.gates.equivalence_plan import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.stats.eprocess import Increments
    from gatekeeper.core.stats.evidence import RequestEvidence
    from gatekeeper.gates.equivalence_chain import Earlier
    from gatekeeper.gates.equivalence_plan import Plan, Trial
    from gatekeeper.protocols import EngineInfo, Scored

__all__ = ["REQUEST_COLUMNS", "Accumulator", "numeric_noise", "sequences"]

REQUEST_COLUMNS = {
    "request": "int64",
    "setting": "str",
    "gamma": "int64",
    "prompt": "str",
    "replicate": "int64",
    "tokens": "int64",
    "position": "int64",
    "token": "int64",
    "target_probability": "float64",
}
"""One row per sampled request; the last three are its most surprising token."""

_ROUNDING = 1e-6
"""Numeric envelope where the engine's logits do not depend on the batch: float32 rounding."""


def numeric_noise(plan: Plan, info: EngineInfo) -> tuple[float, float]:
    """Per-logit sd σ to assume for the engine's dtype, and the envelope δ of the strict bank.

    δ is one σ at the lowest temperature: noise has no direction, so this is what could line up
    with an alternative at every token. Bitwise engines get float32 rounding alone.
    """
    sigma = info.details.get("logit_sigma")
    if sigma is None:
        sigma = greedy.DEFAULT_SIGMA.get(info.dtype, max(greedy.DEFAULT_SIGMA.values()))
    if info.identity_rule == "bitwise":
        return float(sigma), _ROUNDING
    coldest = min((s.temperature for s in plan.settings), default=1.0)
    return float(sigma), max(_ROUNDING, float(sigma) / coldest)


def sequences(plan: Plan) -> tolerance.Sequences:
    """Declared tolerance of a plan: every feature, in window and bonus, of every setting."""
    t = plan.budget.tolerance
    count = 2 * len(tolerance.FEATURES) * max(1, len(plan.settings))
    return tolerance.Sequences(t.window, t.bonus, t.pass_alpha, t.fail_alpha, count)


class Accumulator:
    """Adds finished trials in any order; sampled ones are processed in the order of the plan.

    The fixed order matters: by order of completion, short answers would come first and an early
    stop would drop the long ones. A request therefore waits for all earlier ones, with its p and q
    (n × V × 8 bytes), so score late rather than early where memory is short.

    Args:
        plan: what was planned.
        info: the engine that really ran.
        earlier: an inconclusive run that ``plan`` continues: the same e-process goes on. What the
            bank has learned of it is not kept: it learns anew, which costs power and no validity.
        not_continued: the id (``run``) of an inconclusive run that was another test, and the facts
            that differ (``differs``).
    """

    def __init__(
        self,
        plan: Plan,
        info: EngineInfo,
        *,
        earlier: Earlier | None = None,
        not_continued: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self._earlier = earlier
        self._not_continued = not_continued
        self._sigma, self._delta = numeric_noise(plan, info)
        self._info = info
        exact = info.identity_rule == "bitwise"
        self._bank = Bank(
            info.vocab_size,
            seed=plan.seed,
            delta=self._delta,
            end_tokens=plan.end_tokens,
            support_rate=EXACT_SUPPORT_RATE if exact else SUPPORT_RATE,
        )
        self._order = [t.index for t in plan.trials if t.arm == SAMPLED]
        self._next = 0
        self._pending: dict[int, tuple[Trial, RequestEvidence]] = {}
        self._parts: dict[str, list[pd.DataFrame]] = {
            name: [] if earlier is None else [earlier.tables[name]]
            for name in ("requests", "strict", "tolerance")
        }
        self._offset = 0
        self._greedy: list[pd.DataFrame] = []
        self._greedy_left = 2 * plan.greedy_prompts
        self._greedy_prompts = plan.greedy_prompts
        self._greedy_outcome = self._tolerance_outcome = Outcome.INCONCLUSIVE
        self._alarm = False
        self._tokens: dict[str, int] = {s.label: 0 for s in plan.settings}
        self._spent = dict(self._tokens)
        self._cost: list[tuple[str, float, int]] = []
        if earlier is not None:
            self._go_on(earlier)
        self._member_log = self._sum_members()

    def _go_on(self, earlier: Earlier) -> None:
        """Take over what earlier runs have counted."""
        requests, context = earlier.tables["requests"], earlier.tables["context"]
        if len(requests):
            self._offset = int(requests["request"].max()) + 1
        for setting, tokens in requests.groupby("setting")["tokens"].sum().items():
            self._tokens[str(setting)] = self._tokens.get(str(setting), 0) + int(tokens)
        self._greedy.append(earlier.tables["greedy"])
        compared = context.loc[context["name"] == "greedy_prompts", "value"]
        self._greedy_prompts += int(compared.iloc[0])
        if self._greedy_left == 0:
            self._judge_greedy()
        if len(requests):
            self._tolerance_outcome = self._judge_tolerance()

    def _sum_members(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        total = np.zeros(len(MEMBERS))
        for table in self._parts["strict"]:
            by_member = table.groupby("member")["log_e_envelope"].sum()
            total += by_member.reindex(list(MEMBERS)).to_numpy(dtype=np.float64)
        return total

    def add(self, trial: Trial, evidence: RequestEvidence, scored: Scored) -> None:
        """Take a finished trial.

        Raises:
            InputError: a sampled trial comes twice, or rows do not match.
        """
        if trial.arm != SAMPLED:
            self._add_greedy(trial, evidence, scored)
            return
        if trial.index in self._pending or trial.index not in self._order[self._next :]:
            raise InputError(
                "was added before or is not of this plan",
                field="trial",
                value=trial.index,
                remedy="add each trial of the plan once",
            )
        self._pending[trial.index] = (trial, evidence)
        while self._next < len(self._order) and self._order[self._next] in self._pending:
            self._add_sampled(*self._pending.pop(self._order[self._next]))
            self._next += 1

    def _add_greedy(self, trial: Trial, evidence: RequestEvidence, scored: Scored) -> None:
        n = evidence.rows
        rows = pd.DataFrame(
            {
                "arm": [trial.arm] * n,
                "prompt": [trial.prompt_id] * n,
                "position": np.arange(n),
                "token": evidence.token,
                "deficit": scored.deficit.astype(np.float64),
            }
        ).astype(greedy.COLUMNS)
        self._greedy.append(rows)
        self._greedy_left -= 1
        if self._greedy_left == 0:
            self._judge_greedy()

    def _judge_greedy(self) -> None:
        self._greedy_outcome = greedy.judge(
            pd.concat(self._greedy, ignore_index=True),
            rule=self._info.identity_rule,
            sigma=self._sigma,
            tau_sigma=self.plan.budget.greedy.tau_sigma,
            prompts=self._greedy_prompts,
        ).outcome

    def _add_sampled(self, trial: Trial, evidence: RequestEvidence) -> None:
        if evidence.rows == 0:
            return  # the prompt's first token ended it: nothing was drawn from p
        plan = self.plan
        bonus = bonus_by_index(evidence, trial.request.gamma, kind_is_past=plan.kind_is_past)
        key = (trial.prompt_id, trial.setting)
        increments = self._bank.add(evidence, bonus, prompt=key)
        number = self._offset + trial.index
        self._parts["strict"].append(to_table(number, increments))
        contrasts = np.concatenate(
            [tolerance.contrasts(r, end_known=bool(plan.end_tokens)) for r in increments.rows]
        )
        sums = tolerance.sufficient(contrasts, bonus if plan.positions else None)
        sums.insert(0, "request", number)
        sums.insert(1, "setting", trial.setting)
        self._parts["tolerance"].append(sums)
        self._parts["requests"].append(_request_row(number, trial, evidence, increments))
        self._tokens[trial.setting] += evidence.rows
        self._spent[trial.setting] += evidence.rows
        self._member_log = self._member_log + increments.log_f_envelope.sum(axis=0)
        if float(log_e(self._member_log)) >= math.log(1 / plan.budget.alpha):
            self._alarm = True
        self._tolerance_outcome = self._judge_tolerance()

    def _judge_tolerance(self) -> Outcome:
        if len(self._parts["tolerance"]) > 1:
            # One table instead of many keeps the running judgement linear in the requests.
            self._parts["tolerance"] = [pd.concat(self._parts["tolerance"], ignore_index=True)]
        keys = ["setting", "stratum", "feature"]
        summed = self._parts["tolerance"][0].groupby(keys, as_index=False)[["n", "s", "v"]].sum()
        strata = summed.groupby("setting")["stratum"].nunique()
        outcome, _ = tolerance.judge(summed, sequences(self.plan))
        wanted = 2 if self.plan.positions else 1  # window and bonus, or all together
        whole = len(strata) == len(self.plan.settings) and bool((strata == wanted).all())
        return outcome if whole or outcome is Outcome.FAIL else Outcome.INCONCLUSIVE

    def spent(self, part: str, seconds: float, tokens: int) -> None:
        """Note what a part of the gate took; see ``gatekeeper.core.stats.gate_cost``."""
        self._cost.append((part, seconds, tokens))

    @property
    def alarmed(self) -> bool:
        """Whether sampled tokens have shown a fault."""
        return self._alarm or self._tolerance_outcome is Outcome.FAIL

    @property
    def tokens(self) -> int:
        """Sampled tokens processed so far, those of earlier runs included."""
        return sum(self._tokens.values())

    @property
    def settled(self) -> bool:
        """Whether more trials can no longer change the verdict, or this run's budget is spent."""
        budget = self.plan.budget.sampled
        strict = self._alarm or self._greedy_outcome is Outcome.FAIL
        if (strict and self.plan.contract == "exact") or self._tolerance_outcome is Outcome.FAIL:
            return True
        if self._greedy_left > 0:
            return False
        fewest = min(self._tokens.values(), default=0)
        proven = self._tolerance_outcome is Outcome.PASS and fewest >= budget.min_tokens
        return proven or min(self._spent.values(), default=0) >= budget.max_tokens

    def tables(self) -> dict[str, pd.DataFrame]:
        """Evidence so far, enough for ``evaluate``; empty tables keep their columns."""
        before = () if self._earlier is None else self._earlier.links
        other = self._not_continued
        pairs = [
            *facts(self.plan, self._info, (self._sigma, self._delta)),
            ("greedy_prompts", str(self._greedy_prompts)),
            *((CONTINUES, json.dumps(link, sort_keys=True)) for link in before),
            *([] if other is None else [(NOT_CONTINUED, json.dumps(other, sort_keys=True))]),
        ]
        strict = {"request": "int64", "member": "str", "log_e": "float64"}
        columns = {
            "requests": REQUEST_COLUMNS,
            "strict": {**strict, "log_e_envelope": "float64"},
            "tolerance": {"request": "int64", "setting": "str", **tolerance.COLUMNS},
        }
        return {
            "context": pd.DataFrame(pairs, columns=["name", "value"]),
            "greedy": _joined(self._greedy, greedy.COLUMNS),
            "cost": pd.DataFrame(self._cost, columns=list(gate_cost.COLUMNS)).astype(
                gate_cost.COLUMNS
            ),
            **{name: _joined(self._parts[name], c) for name, c in columns.items()},
        }


def _joined(parts: list[pd.DataFrame], columns: Mapping[str, str]) -> pd.DataFrame:
    if not parts:
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})
    return pd.concat(parts, ignore_index=True)


def _request_row(
    number: int, trial: Trial, evidence: RequestEvidence, increments: Increments
) -> pd.DataFrame:
    at = int(np.argmax(log_e(increments.log_f)))
    return pd.DataFrame(
        {
            "request": [number],
            "setting": [trial.setting],
            "gamma": [trial.request.gamma],
            "prompt": [trial.prompt_id],
            "replicate": [trial.replicate],
            "tokens": [evidence.rows],
            "position": [at],
            "token": [int(evidence.token[at])],
            "target_probability": [float(evidence.p[at, evidence.token[at]])],
        }
    ).astype(REQUEST_COLUMNS)
