"""Runs a gate on two servers that already run: requests over HTTP, tables, verdict.

Where the target's files are declared and can be loaded here, and both servers tell token ids, our
own forward scores them (``own_forward_run``); else texts have to do, and the result says why.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper import workloads
from gatekeeper.core.decoding import Rates
from gatekeeper.core.running_pair import SERVER_GATES, declared_weights
from gatekeeper.core.stats.server_texts import BASELINE, REPEAT
from gatekeeper.core.stats.serving_blocks import ORDINARY, SPECULATIVE
from gatekeeper.errors import InputError, MissingExtra
from gatekeeper.gates import servers_equivalence, servers_serving, serving
from gatekeeper.gates.servers_equivalence import COMPANY, TextPrompt
from gatekeeper.load import serve_requests
from gatekeeper.protocols import DraftCounters, ServerRequest
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured
from gatekeeper.worker.own_forward_run import NotTheirWeights, Watch, run_own_forward

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from gatekeeper.core.policy_schema import ServingBudget
    from gatekeeper.gates.serving import BlockTrial
    from gatekeeper.load import Answer, Served
    from gatekeeper.protocols import Connection, Engine, ServerPair
    from gatekeeper.worker.equivalence_run import Fetch
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["run_on_servers"]

ONE_TOKEN = 8
"""Characters of a first piece that are taken for one token without asking the server."""

_QUANTILES = (0.5, 0.95, 1.0)


def run_on_servers(
    run: ClaimedRun,
    pair: ServerPair,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
    *,
    scorer: Callable[[], Engine] | None = None,
    fetch: Fetch | None = None,
) -> Measured:
    """Measure a gate on a pair of servers.

    ``scorer`` opens the declared weights, and raises ``MissingExtra`` where this worker cannot.

    Raises:
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        InputError: a gate that needs an engine, or a run that can no longer be gone on from.
        EvidenceError: the declared files, or the evidence to go on from, are not what was recorded.
        Unavailable: a server stopped answering.
    """
    if run.gate not in SERVER_GATES:
        raise InputError(
            "cannot be measured on servers that already run: it needs an engine's tokens",
            field="gate",
            value=run.gate,
            remedy=f"use {' or '.join(SERVER_GATES)}, or register the models as files",
        )
    prompts = [TextPrompt(p.id, p.slice, p.text) for p in workloads.prompts(run.slice)]
    seed = int(run.parameters.get("seed", run.policy.equivalence.seed))
    session = _Session(pair, run.artifact["gamma"], tracker, cancelled, clock)
    if run.gate == "equivalence":
        found = _own_forward(run, pair, scorer, session, fetch=fetch)
        if isinstance(found, Measured):
            return found
        texts = servers_equivalence.plan(run.policy, run.artifact, prompts=prompts, seed=seed)
        return asyncio.run(session.equivalence(replace(texts, why=found)))
    budget = run.policy.serving if run.slo is None else replace(run.policy.serving, slo=run.slo)
    blocks = servers_serving.plan(
        run.policy, run.artifact, prompts=prompts, sampling=run.sampling, seed=seed, budget=budget
    )
    by_id = {prompt.id: prompt.text for prompt in prompts}
    return asyncio.run(session.serving(blocks, budget, by_id))


def _own_forward(
    run: ClaimedRun,
    pair: ServerPair,
    scorer: Callable[[], Engine] | None,
    session: _Session,
    *,
    fetch: Fetch | None,
) -> Measured | str:
    """The verdict by our own forward, or why it does not apply.

    Raises:
        InputError: the run goes on from one that was judged so.
    """
    sides = {"baseline": pair.baseline, "candidate": pair.candidate}
    silent = [name for name, server in sides.items() if server.info.token_ids is None]
    if declared_weights(run.artifact) is None:
        return servers_equivalence.Plan.why
    if silent:
        why = f"no token ids are told by the {' and the '.join(silent)}"
    elif scorer is None:
        why = "no engine is at hand to score with"
    else:
        try:
            engine = scorer()
            longest = engine.info.max_context - run.policy.equivalence.tokens_per_request
            prompts = workloads.tokenised(
                run.slice,
                engine.tokenize,
                max_tokens=min(run.policy.serving.max_prompt_tokens, longest),
            )
            return run_own_forward(
                run,
                pair,
                engine,
                prompts,
                servers=session.said(),
                watch=session.watch,
                fetch=fetch,
            )
        except (MissingExtra, NotTheirWeights) as error:
            why = str(error)
    if run.continues is not None:
        raise InputError(
            f"cannot be gone on from: {why}",
            field="parameters.continues",
            value=run.continues[0],
            remedy="run it where the declared files can be loaded, beside the same servers",
        )
    return why


class _Session:
    """One run on a pair; connections live in its event loop."""

    def __init__(
        self,
        pair: ServerPair,
        gamma: int | None,
        tracker: Tracker,
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._pair = pair
        self._gamma = gamma
        self._tracker = tracker
        self._cancelled = cancelled
        self._clock = clock
        self._connections: dict[str, Connection] = {}
        self._failed: dict[str, int] = {}

    async def equivalence(self, plan: servers_equivalence.Plan) -> Measured:
        rows: list[dict[str, Any]] = []
        samples: list[dict[str, Any]] = []
        answers: list[Answer] = []
        async with self._connected(COMPANY):
            for number, step in enumerate(plan.steps):
                self._tracker.report("equivalence", number, len(plan.steps), "passes over prompts")
                requests = [
                    ServerRequest(
                        f"{step.arm}-{prompt.id}-{place}",
                        prompt.text,
                        step.max_tokens,
                        step.sampling,
                        seed=step.seeds[place] if step.seeds else 0,
                        top=step.top,
                    )
                    for place, prompt in enumerate(step.prompts)
                ]
                side = ORDINARY if step.arm in {BASELINE, REPEAT} else SPECULATIVE
                served = await self._serve(side, requests, step.concurrency)
                for place, (prompt, answer) in enumerate(
                    zip(step.prompts, served.answers, strict=True)
                ):
                    if step.seeds:
                        samples.append(_sample_row(step.arm, prompt.id, place, answer))
                    else:
                        rows.append(_text_row(step.arm, prompt.id, answer))
                    if step.arm == BASELINE:
                        answers.append(answer)
        self._tracker.report("equivalence", len(plan.steps), len(plan.steps))
        files, tables = round_trip(
            {"texts": _texts(rows), "samples": _samples(samples), "servers": self.said()}
        )
        result = servers_equivalence.evaluate(plan.budget, tables, why=plan.why)
        return Measured(result, files, rates=_rates(answers))

    async def serving(
        self, plan: serving.Plan, budget: ServingBudget, texts: Mapping[str, str]
    ) -> Measured:
        blocks = _Blocks(texts)
        async with self._connected(max(budget.concurrency)):
            for arm in (ORDINARY, SPECULATIVE):
                # first touches belong to no arm
                await self._serve(arm, blocks.requests(plan.warm_up), plan.warm_up.concurrency)
            for phase in ("sweep", "confirm"):
                trials = plan.trials
                if phase == "confirm":
                    trials = plan.confirm(serving.choose(blocks.table("sweep"), plan.suite.budget))
                for number, trial in enumerate(trials):
                    self._tracker.report(phase, number, len(trials), "blocks")
                    await self._block(trial, blocks)
                self._tracker.report(phase, len(trials), len(trials), "blocks")
        files, tables = round_trip({**blocks.tables(), "servers": self.said()})
        return Measured(servers_serving.evaluate(budget, tables), files)

    @property
    def watch(self) -> Watch:
        """What a run is followed and ended by."""
        return Watch(self._tracker, self._cancelled, self._clock)

    @asynccontextmanager
    async def _connected(self, at_most: int) -> AsyncIterator[None]:
        async with (
            self._pair.baseline.connect(at_most) as baseline,
            self._pair.candidate.connect(at_most) as candidate,
        ):
            self._connections = {ORDINARY: baseline, SPECULATIVE: candidate}
            yield

    async def _block(self, trial: BlockTrial, blocks: _Blocks) -> None:
        connection = self._connections[trial.arm]
        before = await connection.counters()
        served = await self._serve(trial.arm, blocks.requests(trial), trial.concurrency)
        after = await connection.counters()
        counted = [await connection.count_tokens(answer.text) for answer in served.answers]
        firsts = [
            await connection.count_tokens(answer.texts[0])
            if answer.texts and len(answer.texts[0]) > ONE_TOKEN
            else None
            for answer in served.answers
        ]
        blocks.add(trial, served, counted, firsts, _between(before, after))

    async def _serve(self, arm: str, requests: Sequence[ServerRequest], concurrency: int) -> Served:
        served = await serve_requests(
            self._connections[arm],
            requests,
            concurrency,
            self._clock,
            cancelled=self._cancelled,
            failed_before=self._failed.get(arm, 0),
        )
        self._failed[arm] = served.failed_on_end
        if not served.complete:
            raise Cancelled
        return served

    def said(self) -> pd.DataFrame:
        """The ``servers`` table: each server's own words, and what was declared of the pair."""
        rows = [("pair", "gamma", "unknown" if self._gamma is None else str(self._gamma))]
        for arm, server in (("baseline", self._pair.baseline), ("candidate", self._pair.candidate)):
            info = server.info
            rows += [(arm, "url", info.url), (arm, "api", info.api)]
            rows += [(arm, name, value) for name, value in sorted(info.readings.items())]
        return pd.DataFrame(rows, columns=["arm", "name", "value"])


class _Blocks:
    """Turns blocks into the rows of the evidence tables."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._requests: dict[str, list[pd.DataFrame]] = {"sweep": [], "confirm": []}
        self._drafts: list[pd.DataFrame] = []
        self._health: list[pd.DataFrame] = []

    def requests(self, trial: BlockTrial) -> list[ServerRequest]:
        return [
            ServerRequest(
                request.request_id,
                _apart(self._texts[label["prompt"]], request.seed),
                request.max_tokens,
                request.sampling,
                seed=request.seed,
            )
            for request, label in zip(trial.requests, trial.labels, strict=True)
        ]

    def add(
        self,
        trial: BlockTrial,
        served: Served,
        counted: Sequence[int | None],
        firsts: Sequence[int | None],
        totals: DraftCounters | None,
    ) -> None:
        rows = pd.DataFrame(
            [
                _request_row(answer, count, first)
                for answer, count, first in zip(served.answers, counted, firsts, strict=True)
            ]
        ).astype({"counted": "Int64"})
        self._requests[trial.phase].append(trial.request_rows(rows))
        drafts = pd.DataFrame([_draft_row(served.answers, totals)], dtype="Int64")
        self._drafts.append(trial.tag(drafts))
        self._health.append(trial.tag(pd.DataFrame([_health_row(served.lags_s)])))

    def table(self, phase: str) -> pd.DataFrame:
        return pd.concat(self._requests[phase], ignore_index=True)

    def tables(self) -> dict[str, pd.DataFrame]:
        return {
            "sweep": self.table("sweep"),
            "confirm": self.table("confirm"),
            "rounds": servers_serving.no_rounds(),
            "memory": servers_serving.no_memory(),
            "drafts": pd.concat(self._drafts, ignore_index=True),
            "health": pd.concat(self._health, ignore_index=True),
        }


def _apart(text: str, seed: int) -> str:
    """A prompt that no server has seen: the number leads its first turn, the same in both arms.

    Else the server that happens to hold more prefixes of earlier runs would win on TTFT.
    """
    opening, newline, rest = text.partition("\n")
    return f"{opening}{newline}({seed}) {rest}"


def _request_row(answer: Answer, counted: int | None, first: int | None) -> dict[str, Any]:
    """Row of ``sweep`` or ``confirm``.

    An answer that broke off has no verified tokens and no first token: its block is undefined,
    never shorter. One that ended without a piece of text showed its first sign at the end.
    """
    ending = answer.ending
    reason = ending.reason
    if ending.complete and (ending.tokens is None or ending.prompt_tokens is None):
        reason = "no usage"
    row: dict[str, Any] = {
        "request_id": answer.request.request_id,
        "prompt_tokens": math.nan if ending.prompt_tokens is None else ending.prompt_tokens,
        "arrival_s": answer.sent_s,
        "gaps_s": answer.gaps_s,
        "reason": reason,
        "chunks": sum(bool(text) for text in answer.texts),
        "counted": counted,
    }
    if reason not in {"stop", "length"}:
        return row | {
            "first_s": math.nan,
            "finish_s": answer.ended_s,
            "tokens": 0,
            "first_tokens": 0,
        }
    tokens = int(ending.tokens or 0)
    if not answer.times_s:
        return row | {
            "first_s": answer.ended_s,
            "finish_s": answer.ended_s,
            "tokens": tokens,
            "first_tokens": tokens,
        }
    return row | {
        "first_s": answer.first_s,
        "finish_s": answer.last_s,
        "tokens": tokens,
        # a first piece of several tokens is no gift to speculation
        "first_tokens": min(tokens, max(1, first or 1)),
    }


def _draft_row(answers: Sequence[Answer], totals: DraftCounters | None) -> dict[str, int | None]:
    """Counters where the server has them, else the sums of its timings, else unknown."""
    if totals is not None:
        return {"rounds": totals.rounds, "drafted": totals.drafted, "accepted": totals.accepted}
    told = [a.ending for a in answers if a.ending.drafted is not None]
    if not told:
        return {"rounds": None, "drafted": None, "accepted": None}
    return {
        "rounds": None,
        "drafted": sum(ending.drafted or 0 for ending in told),
        "accepted": sum(ending.accepted or 0 for ending in told),
    }


def _between(before: DraftCounters | None, after: DraftCounters | None) -> DraftCounters | None:
    """Growth of the counters; None where one is unknown or the server began to count anew."""
    if before is None or after is None:
        return None
    grown = DraftCounters(
        after.rounds - before.rounds,
        after.drafted - before.drafted,
        after.accepted - before.accepted,
    )
    return grown if min(grown.rounds, grown.drafted, grown.accepted) >= 0 else None


def _health_row(lags_s: Sequence[float]) -> dict[str, float]:
    names = ("lag_p50_s", "lag_p95_s", "lag_max_s")
    if not lags_s:
        return dict.fromkeys(names, math.nan)
    return dict(zip(names, np.quantile(lags_s, _QUANTILES).tolist(), strict=True))


def _text_row(arm: str, prompt: str, answer: Answer) -> dict[str, Any]:
    """Row of ``texts``, see :mod:`gatekeeper.core.stats.server_texts`."""
    scored = answer.tokens
    return {
        "arm": arm,
        "prompt": prompt,
        "text": answer.text,
        "pieces": answer.texts,
        "reason": answer.ending.reason,
        "tokens": answer.ending.tokens,
        "drafted": answer.ending.drafted,
        "accepted": answer.ending.accepted,
        "scored": [one.token for one in scored],
        "top_tokens": [[token for token, _ in one.top] for one in scored],
        "top_logprobs": [[logprob for _, logprob in one.top] for one in scored],
    }


def _sample_row(arm: str, prompt: str, replicate: int, answer: Answer) -> dict[str, Any]:
    """Row of ``samples``, see :mod:`gatekeeper.core.stats.server_samples`."""
    ending = answer.ending
    return {
        "arm": arm,
        "prompt": prompt,
        "replicate": replicate,
        "text": answer.text,
        "reason": ending.reason,
        "tokens": ending.tokens,
    }


def _samples(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows)).astype({"tokens": "Int64"})


def _texts(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    counts = dict.fromkeys(("tokens", "drafted", "accepted"), "Int64")
    return pd.DataFrame(list(rows)).astype(counts)


def _rates(answers: Sequence[Answer]) -> Rates | None:
    """Speeds of the baseline alone: what the next plan's minutes are estimated from."""
    good = [a for a in answers if a.ending.complete and a.ending.tokens and a.times_s]
    decoding_s = sum(a.last_s - a.first_s for a in good)
    prefill_s = sum(a.first_s - a.sent_s for a in good)
    tokens = sum((a.ending.tokens or 0) - 1 for a in good)
    prompt_tokens = sum(a.ending.prompt_tokens or 0 for a in good)
    if not (tokens > 0 and prompt_tokens > 0 and decoding_s > 0 and prefill_s > 0):
        return None
    return Rates(tokens / decoding_s, prompt_tokens / prefill_s)
