"""Equivalence runs as documents of the plain page: on an engine, on two servers, in every state."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pandas as pd
from reported import artifact as reference_artifact
from shipped_policies import shipped_policy

from gatekeeper import workloads
from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.running_pair import pair_document
from gatekeeper.core.verdicts import GateResult, to_json
from gatekeeper.gates import equivalence, servers_equivalence, servers_own_forward
from gatekeeper.load import transcripts
from gatekeeper.protocols import PairInfo
from gatekeeper.reports.plain_verdict import collect
from gatekeeper.testing import FakeEngine
from gatekeeper.worker.evidence import decode, digest
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.testing import Fault
    from gatekeeper.worker.measured import Measured

__all__ = ["ALL", "CASES", "case", "document", "explained", "policy", "servers"]


def policy(least: int = 120, most: int = 300, tolerance: float = 0.4) -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("demo")
    document["serving"] |= {"tokens_per_request": 8, "max_prompt_tokens": 400}
    document["equivalence"]["tolerance"] |= {"window": tolerance, "bonus": tolerance}
    sampled = document["equivalence"]["sampled"]
    sampled |= {"min_tokens": least, "max_tokens": most}
    return document


@cache
def explained(
    fault: Fault | None = None,
    *,
    contract: str = "exact",
    greedy: bool = True,
    least: int = 120,
    most: int = 300,
    tolerance: float = 0.4,
    agreement: float = 0.2,
    after: str | None = None,
) -> dict[str, Any]:
    """The document of a real run on the fake engine; without ``greedy`` its fault is a sampler's alone."""
    artifact = reference_artifact()
    artifact["acceptance"]["contract"] = contract
    rules = policy(least, most, tolerance)
    engine = (FakeEngine if greedy else SampledFault)(agreement=agreement, fault=fault)
    measured = measured_on(engine, artifact, rules)
    if after is not None:
        rule = "deficit" if after == "the same" else "bitwise"
        again = FakeEngine(agreement=agreement, identity_rule=rule)
        measured = measured_on(again, artifact, rules, measured.files)
    tables = [{"table": n, "sha256": digest(data)} for n, data in measured.files.items()]
    return document(artifact, rules, measured.result, tables)


def measured_on(
    engine: FakeEngine,
    artifact: dict[str, Any],
    rules: dict[str, Any],
    before: Mapping[str, bytes] | None = None,
) -> Measured:
    """A run on an engine; it goes on from the tables of a run before, where there is one."""
    continues = None
    if before is not None:
        continues = {"run": "run-0", "evidence": {n: digest(data) for n, data in before.items()}}
    run = ClaimedRun(
        id="run-1",
        gate="equivalence",
        route="prose",
        slice="prose",
        artifact_digest="a" * 64,
        artifact=artifact,
        policy=Policy.from_dict(rules),
        parameters={} if continues is None else {"continues": continues},
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(GREEDY, SamplingSettings(temperature=1.0)),
        slo=None,
    )
    clock = time.monotonic
    return measure(
        run,
        engine,
        Tracker(clock),
        lambda: False,
        clock,
        fetch=lambda _, name, sha256: decode((before or {})[name], name=name, sha256=sha256),
    )


class SampledFault(FakeEngine):
    """An engine whose fault shows only where chance plays a part."""

    def __init__(self, *, agreement: float, fault: Fault | None) -> None:
        super().__init__(agreement=agreement, fault=fault)
        self._sampled = fault

    def _decide(self, sequence: Any, *rest: Any) -> Any:
        self._fault = None if sequence.request.sampling.greedy else self._sampled
        return super()._decide(sequence, *rest)


def document(
    artifact: dict[str, Any],
    rules: dict[str, Any],
    result: GateResult | None,
    tables: list[dict[str, str]],
    **run: Any,
) -> dict[str, Any]:
    """What the API would answer of the run, joined."""
    stored = None
    if result is not None:
        stored = {**to_json(replace(result, claims=())), "expires_at": "2030-01-02T10:00:00+00:00"}
    view = {
        "id": "run-1",
        "route": "prose",
        "slice": "prose",
        "gate": "equivalence",
        "artifact": "a" * 64,
        "policy": "b" * 64,
        "state": "finished",
        "waiting_for": None,
        "finished_at": "2030-01-01T10:00:00+00:00",
        "result": stored,
        "evidence": tables,
        **run,
    }
    claims = () if result is None else result.claims
    return collect(
        view,
        artifact,
        rules,
        [{**claim.to_dict(), "id": f"run/run-1/{claim.id}"} for claim in claims],
        prompts={prompt.id: prompt.text for prompt in workloads.prompts("prose")},
        written_at="2030-01-01T12:00:00+00:00",
    )


def servers(candidate: Any, n: int = 10) -> dict[str, Any]:
    """The document of a run on two servers whose texts are ``candidate(i)`` and, without a draft, TOKENS."""
    rows = []
    for i, prompt in enumerate(workloads.prompts("prose")[:n]):
        for arm in ("baseline", "repeat", "candidate"):
            tokens = candidate(i) if arm == "candidate" else TOKENS
            scored = [] if arm == "candidate" else tokens
            rows.append(
                {
                    "arm": arm,
                    "prompt": prompt.id,
                    "text": "".join(tokens),
                    "pieces": tokens,
                    "reason": "length",
                    "tokens": len(tokens),
                    "scored": scored,
                    "top_tokens": [[token, " black", " dark"] for token in scored],
                    "top_logprobs": [[-0.1, -3.1, -7.1] for _ in scored],
                }
            )
    said = pd.DataFrame([("pair", "gamma", "unknown")], columns=["arm", "name", "value"])
    rules = policy()
    samples = pd.DataFrame(
        [
            (arm, prompt.id, i, "the red sun", "stop", 3)
            for prompt in workloads.prompts("prose")[:n]
            for arm in ("baseline", "candidate")
            for i in range(4)
        ],
        columns=["arm", "prompt", "replicate", "text", "reason", "tokens"],
    )
    tables = {"texts": pd.DataFrame(rows), "samples": samples, "servers": said}
    result = servers_equivalence.evaluate(Policy.from_dict(rules).equivalence, tables)
    pair = pair_document("http://a:1", "http://b:2", model=None, gamma=None, version="1")
    return document(
        pair,
        rules,
        result,
        [{"table": table, "sha256": "c" * 64} for table in ("texts", "samples")],
    )


TOKENS = ["the", " red", " sun", " is", " up"]


@cache
def scored(how: str) -> dict[str, Any]:
    """The document of a run on two servers whose tokens the declared weights have scored."""
    rules = policy()
    weights = {
        "engine": "reference",
        "source": "file:/models/target",
        "revision": None,
        "files": {"model.safetensors": "0" * 64},
        "tokenizer": "1" * 64,
        "vocab_size": 32,
    }
    pair = pair_document(
        "http://a:1", "http://b:2", model=None, gamma=None, version="1", weights=weights
    )
    said = pd.DataFrame([("pair", "gamma", "unknown")], columns=["arm", "name", "value"])
    sides = {name: FakeEngine(max_context=4096) for name in ("baseline", "candidate")}
    if how != "pass":
        sides["candidate"] = Hot(max_context=4096)
    if how == "both":
        sides["baseline"] = Hot(max_context=4096)
    scorer = FakeEngine(max_context=4096)
    plan = servers_own_forward.plan(
        Policy.from_dict(rules),
        pair,
        prompts=workloads.tokenised("prose", scorer.tokenize, max_tokens=400),
    )
    info = servers_own_forward.info_of(PairInfo("openai_http", "1"), scorer.info, said, 2e-5)
    found = equivalence.Accumulator(plan, info)
    _fill(found, sides, scorer, found)
    tables = equivalence.worded(plan.budget, found.tables(), scorer.detokenize)
    if found.alarmed:
        control = equivalence.Accumulator(plan, info)
        _fill(control, {"candidate": sides["baseline"]}, scorer, found)
        own = control.tables()
        tables |= {other: own[name] for name, other in servers_own_forward.CONTROL.items()}
    tables["servers"] = said
    tables["answers"] = pd.DataFrame([("candidate", "length")], columns=["arm", "reason"])
    rows = [("p", 0, 1, -1.0, -1.00001)]
    columns = ["prompt", "position", "token", "served", "own"]
    tables["calibration"] = pd.DataFrame(rows, columns=columns)
    result = servers_equivalence.evaluate(plan.budget, tables)
    return document(pair, rules, result, [{"table": n, "sha256": "c" * 64} for n in tables])


class Hot(FakeEngine):
    """Samples at another temperature than it is asked for; greedy text is right."""

    def submit(self, request: DecodeRequest) -> None:
        hot = replace(request.sampling, temperature=2.5 * request.sampling.temperature)
        super().submit(replace(request, sampling=hot))


def _fill(
    into: equivalence.Accumulator,
    sides: dict[str, FakeEngine],
    scorer: FakeEngine,
    until: equivalence.Accumulator,
) -> None:
    for trial in into.plan.trials:
        if trial.arm != equivalence.SAMPLED and "baseline" not in sides:
            continue
        if into.settled or (into is not until and into.tokens > 2 * until.tokens):
            break
        ordinary = trial.arm == equivalence.ORDINARY
        engine = sides["baseline" if ordinary else "candidate"]
        request = replace(trial.request, gamma=0 if ordinary else 2, evidence=False)
        (done,) = transcripts(engine, [request], in_flight=1)
        marks = scorer.score(request.prompt, done.tokens, request.sampling)
        evidence = servers_own_forward.evidence_of_tokens(trial, done.tokens, marks)
        into.add(trial, evidence, marks)


FAILS = {"fault": "correction_from_q"}
STRICT = {"fault": "correction_from_q", "greedy": False}
OPEN = {"least": 200, "tolerance": 0.05}
LOOSE = {"contract": "approximate"}
CASES = {
    "pass": {},
    "fail": FAILS,
    "strict fail": STRICT,
    "open": OPEN,
    "gone on": {**OPEN, "after": "the same"},
    "begun anew": {**OPEN, "after": "another"},
    "approximate pass": {**LOOSE, **FAILS, "agreement": 0.6, "tolerance": 0.7},
    "approximate fail": {**LOOSE, **STRICT, "tolerance": 0.05},
}


def case(name: str) -> dict[str, Any]:
    if name == "servers fail":
        return servers(lambda i: ["the", " black", " sun"] if i == 3 else TOKENS)
    if name == "servers open":
        return servers(lambda _: TOKENS)
    if name.startswith("scored "):
        return copy.deepcopy(scored(name.removeprefix("scored ")))
    return copy.deepcopy(explained(**CASES[name]))


ALL = (*CASES, "servers fail", "servers open", "scored pass", "scored fail", "scored both")
