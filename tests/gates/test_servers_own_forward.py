"""Plan and verdict of two servers under a common scorer, without servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from equivalence_runs import BUDGET, HOT, PROMPTS, greedy_result, info, model
from faults.synthetic import decode
from shipped_policies import shipped_policy

from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.stats.server_logprobs import COLUMNS
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence, servers_own_forward
from gatekeeper.gates.servers_own_forward import Calibration
from gatekeeper.protocols import PairInfo, Scored

PAIR = {"gamma": None}
SAID = pd.DataFrame(
    [("baseline", "version", "7"), ("candidate", "version", "8"), ("pair", "gamma", "unknown")],
    columns=["arm", "name", "value"],
)


def plan(**artifact: Any) -> equivalence.Plan:
    document = shipped_policy("demo")
    policy = replace(Policy.from_dict(document), equivalence=BUDGET)
    assert policy.serving.gammas, "no other window is on offer"
    return servers_own_forward.plan(policy, PAIR | artifact, prompts=PROMPTS)


def calibration(gap: float, rows: int = 10) -> pd.DataFrame:
    found = [("p", i, 7, -1.0 + gap * (-1) ** i, -1.0) for i in range(rows)]
    return pd.DataFrame(found, columns=list(COLUMNS))


def filled(fault: str | None = None) -> equivalence.Accumulator:
    """A run in which a server with a window of 4 tells tokens alone."""
    lm, made = model(), plan()
    into = equivalence.Accumulator(made, info())
    for trial in made.trials:
        if into.settled:
            break
        if trial.arm == equivalence.SAMPLED:
            (e,) = decode(
                lm,
                np.random.default_rng(trial.request.seed),
                requests=1,
                tokens=trial.request.max_tokens,
                fault=fault,
                prompts=1000,
                first_request=trial.prompt,
            )
            tokens, scored = e.token, Scored(e.p, np.zeros(e.rows, dtype=np.float32))
        else:
            (emission,), scored = greedy_result(trial, broken=False)
            tokens = np.array(emission.tokens)
        evidence = servers_own_forward.evidence_of_tokens(trial, tokens.tolist(), scored)
        into.add(trial, evidence, scored)
    return into


@pytest.fixture(scope="module")
def sound() -> dict[str, pd.DataFrame]:
    answers = pd.DataFrame([("candidate", "length")], columns=["arm", "reason"])
    other = {"servers": SAID, "calibration": calibration(1e-4), "answers": answers}
    return {**filled().tables(), **other}


def judged(found: dict[str, pd.DataFrame], **other: pd.DataFrame) -> Any:
    return servers_own_forward.evaluate(plan().budget, {**found, **other})


def part(result: Any, name: str) -> Any:
    return next(part for part in result.parts if part.name == name)


def test_one_window_is_asked_for_as_no_server_can_be_asked_for_another() -> None:
    for gamma, told in ((None, -1), (4, 4)):
        made = plan(gamma=gamma)
        sampled = {t.request.gamma for t in made.trials if t.arm == equivalence.SAMPLED}
        assert sampled == {told}
        assert (made.gamma, made.positions) == (told, False)
        assert made.design["gammas"] == [gamma]
        assert made.design["declared_effect"] is None
    assert plan().settings == (HOT,)


def test_batches_are_alone_odd_and_full_in_turn() -> None:
    trials = list(plan().trials)
    found = list(servers_own_forward.batches(trials, 8))
    assert [len(batch) for batch in found[:4]] == [1, 3, 8, 1]
    assert [trial for batch in found for trial in batch] == trials
    assert {len(batch) for batch in servers_own_forward.batches(trials, 1)} == {1}


@pytest.mark.parametrize(("gap", "refused"), [(0.0, False), (0.09, False), (0.11, True)])
def test_weights_are_the_declared_ones_up_to_a_noise(gap: float, refused: bool) -> None:  # noqa: FBT001
    found = Calibration(calibration(gap))
    assert (found.refusal is not None) is refused
    assert found.sigma >= max(gap, 1e-5)
    assert Calibration(calibration(0.0, rows=0)).refusal is None


def test_what_is_judged_is_both_servers_and_their_scorer() -> None:
    found = servers_own_forward.info_of(PairInfo("openai_http", "1"), info(), SAID, 0.01)
    assert found.version == "1, servers 7 and 8, scored by fake 1"
    assert (found.identity_rule, found.details["logit_sigma"]) == ("deficit", 0.01)


def test_rows_have_to_match_the_tokens() -> None:
    trial = plan().trials[0]
    nothing = Scored(np.zeros((0, 5), dtype=np.float32), np.zeros(0, dtype=np.float32))
    assert servers_own_forward.evidence_of_tokens(trial, (), nothing).rows == 0
    with pytest.raises(InputError, match="0 rows for 1 tokens"):
        servers_own_forward.evidence_of_tokens(trial, (3,), nothing)


def test_exact_tokens_pass_and_what_stays_unknown_only_informs(
    sound: dict[str, pd.DataFrame],
) -> None:
    result = judged(sound)
    assert result.outcome is Outcome.PASS, [p.detail for p in result.parts]
    assert {row["stratum"] for row in result.summary["tolerance"]} == {"all"}
    unknown = [p for p in result.parts if p.name in {"version of both servers", "gamma"}]
    assert [p.mandatory for p in unknown] == [False, False]
    assert result.summary["strict"]["proposal"] is False
    assert result.summary["scoring"]["rule"] == "own forward"


def test_answers_that_were_lost_or_weights_that_differ_forbid_a_pass(
    sound: dict[str, pd.DataFrame],
) -> None:
    lost = pd.DataFrame([("candidate", "timeout")] * 2, columns=["arm", "reason"])
    result = judged(sound, answers=lost)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert part(result, "complete answers").detail == "2 of candidate ended as timeout"
    assert "complete answers" in result.still_needed
    result = judged(sound, calibration=calibration(0.3))
    assert result.outcome is Outcome.ERROR
    silent = judged(sound, calibration=calibration(0.0, rows=0))
    assert silent.outcome is Outcome.PASS
    assert part(silent, "declared weights").outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("shared", [False, True])
def test_an_alarm_counts_where_the_baseline_stays_silent(
    sound: dict[str, pd.DataFrame],
    shared: bool,  # noqa: FBT001
) -> None:
    faulty = filled("off_by_one_p")
    assert faulty.alarmed
    control = faulty.tables() if shared else sound
    own = {other: control[name] for name, other in servers_own_forward.CONTROL.items()}
    result = judged({**sound, **faulty.tables()}, **own)
    assert result.outcome is (Outcome.ERROR if shared else Outcome.FAIL)
    told = part(result, "server without a draft")
    assert told.outcome is (Outcome.ERROR if shared else Outcome.PASS)
    assert (result.summary["counter_example"] is None) is shared
    assert result.summary["scoring"]["control_tokens"] == control["requests"]["tokens"].sum()
