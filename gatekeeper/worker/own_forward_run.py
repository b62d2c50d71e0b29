"""Two running servers whose tokens our own forward scores: requests in token ids, tables, verdict."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gatekeeper.core.decoding import Rates, SamplingSettings
from gatekeeper.core.stats import gate_cost, server_logprobs
from gatekeeper.errors import InputError, Unavailable
from gatekeeper.gates import equivalence, servers_own_forward
from gatekeeper.gates.equivalence import ORDINARY, SAMPLED, Accumulator
from gatekeeper.gates.servers_own_forward import CONTROL, Calibration
from gatekeeper.load import MAX_FAILURES
from gatekeeper.protocols import Scored
from gatekeeper.worker.equivalence_run import begin
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from gatekeeper.core.decoding import DecodeRequest, TokenPrompt
    from gatekeeper.gates.equivalence import Before, Plan, Trial
    from gatekeeper.protocols import Connection, Emitted, Engine, ServerPair
    from gatekeeper.worker.equivalence_run import Fetch
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["NotTheirWeights", "Watch", "run_own_forward"]

BASELINE, CANDIDATE = "baseline", "candidate"

_CONTROL_FACTOR = 2
"""Tokens of the server without a draft for each of the candidate's, once the candidate alarmed: what
both do for one reason shows there too, if later."""

_HOT = SamplingSettings(temperature=1.0)


class NotTheirWeights(Exception):
    """The declared files are not what the servers run; the message says how that shows."""


@dataclass(frozen=True)
class Watch:
    """What a run is followed and ended by."""

    tracker: Tracker
    cancelled: Callable[[], bool]
    clock: Callable[[], float]


def run_own_forward(
    run: ClaimedRun,
    pair: ServerPair,
    scorer: Engine,
    prompts: Sequence[TokenPrompt],
    *,
    servers: pd.DataFrame,
    watch: Watch,
    fetch: Fetch | None,
) -> Measured:
    """Measure equivalence; ``servers`` is the table of both servers' own words.

    Raises:
        NotTheirWeights: the servers' own log-probabilities contradict the declared files.
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        InputError: a server emits ids that the declared vocabulary does not have.
        EvidenceError: the run to continue has no sound evidence.
        Unavailable: a server stopped answering.
    """
    session = _Session(run, pair, scorer, servers, watch)
    return asyncio.run(session.measure(prompts, fetch))


class _Session:
    """One run; connections live in its event loop, and scoring takes turns with them."""

    def __init__(
        self,
        run: ClaimedRun,
        pair: ServerPair,
        scorer: Engine,
        servers: pd.DataFrame,
        watch: Watch,
    ) -> None:
        self._run = run
        self._pair = pair
        self._scorer = scorer
        self._servers = servers
        self._tracker = watch.tracker
        self._cancelled = watch.cancelled
        self._clock = watch.clock
        self._connections: dict[str, Connection] = {}
        self._answers: list[tuple[str, str]] = []
        self._failed: dict[str, int] = {}
        self._spent = dict.fromkeys(gate_cost.PARTS, (0.0, 0))
        self._read = 0  # tokens that scoring went over, prompts included

    async def measure(self, prompts: Sequence[TokenPrompt], fetch: Fetch | None) -> Measured:
        run = self._run
        full = run.policy.equivalence.max_batch
        async with self._connected(full):
            first = self._plan(prompts, None)
            greedy = [trial for trial in first.trials if trial.arm == ORDINARY]
            known, calibration = await self._calibrate(greedy)
            if calibration.refusal is not None:
                raise NotTheirWeights(calibration.refusal)
            info = servers_own_forward.info_of(
                self._pair.info, self._scorer.info, self._servers, calibration.sigma
            )
            accumulator = begin(
                lambda before: self._plan(prompts, before), info, run.continues, fetch
            )
            plan = accumulator.plan
            again = plan.trials == first.trials
            await self._fill(accumulator, known if again else {}, full)
            control = None
            if accumulator.alarmed:
                control = Accumulator(plan, info)
                await self._fill_control(control, _CONTROL_FACTOR * accumulator.tokens, full)
        for part, (seconds, tokens) in self._spent.items():
            accumulator.spent(part, seconds, tokens)
        tables = equivalence.worded(plan.budget, accumulator.tables(), self._scorer.detokenize)
        tables["servers"] = self._servers
        tables["calibration"] = calibration.table
        tables["answers"] = pd.DataFrame(self._answers, columns=["arm", "reason"])
        if control is not None:
            own = control.tables()
            tables |= {other: own[name] for name, other in CONTROL.items()}
        files, read = round_trip(tables)
        result = servers_own_forward.evaluate(plan.budget, read)
        return Measured(result, files, rates=self._rates())

    def _plan(self, prompts: Sequence[TokenPrompt], before: Before | None) -> Plan:
        run = self._run
        return servers_own_forward.plan(
            run.policy,
            run.artifact,
            prompts=prompts,
            sampling=run.sampling,
            end_tokens=self._scorer.info.end_tokens,
            seed=int(run.parameters.get("seed", run.policy.equivalence.seed)),
            before=before,
        )

    @asynccontextmanager
    async def _connected(self, at_most: int) -> AsyncIterator[None]:
        async with (
            self._pair.baseline.connect(at_most) as baseline,
            self._pair.candidate.connect(at_most) as candidate,
        ):
            self._connections = {BASELINE: baseline, CANDIDATE: candidate}
            yield

    async def _calibrate(
        self, trials: Sequence[Trial]
    ) -> tuple[dict[int, tuple[Emitted, Scored]], Calibration]:
        """Greedy answers of the baseline, with its log-probabilities beside those of our forward."""
        found: dict[int, tuple[Emitted, Scored]] = {}
        rows = []
        for trial in trials:
            (emitted,) = await self._emit(BASELINE, [trial], logprobs=1)
            found[trial.index] = (emitted, self._score(trial, emitted))
            if emitted.logprobs is None or not emitted.tokens:
                continue
            request = trial.request
            p = self._scorer.score(request.prompt, emitted.tokens, _HOT).p
            pairs = zip(
                emitted.tokens, emitted.logprobs, strict=False
            )  # an end token may have none
            rows += [
                (trial.prompt_id, at, token, served, float(np.log(max(p[at, token], 1e-38))))
                for at, (token, served) in enumerate(pairs)
            ]
        table = pd.DataFrame(rows, columns=list(server_logprobs.COLUMNS))
        return found, Calibration(table.astype(server_logprobs.COLUMNS))

    async def _fill(
        self, accumulator: Accumulator, known: dict[int, tuple[Emitted, Scored]], full: int
    ) -> None:
        """Run the plan's trials until the verdict is settled, greedy ones first."""
        plan = accumulator.plan
        total = int(plan.estimate["tokens"])
        done = 0
        for batch in _in_order(plan.trials, full):
            side = BASELINE if batch[0].arm == ORDINARY else CANDIDATE
            asked = [trial for trial in batch if trial.index not in known]
            answers = dict(zip(asked, await self._emit(side, asked), strict=True))
            for trial in batch:
                if trial in answers:
                    emitted = answers[trial]
                    scored = self._score(trial, emitted)
                else:
                    emitted, scored = known[trial.index]
                self._judge(accumulator, trial, emitted, scored)
                done += len(emitted.tokens)
            text = f"tokens, {accumulator.tokens} sampled ones judged"
            self._tracker.report("equivalence", min(done, total), total, text)
            if accumulator.settled:
                break
        self._tracker.report("equivalence", total, total, f"tokens at most, {done} decoded")

    async def _fill_control(self, control: Accumulator, tokens: int, full: int) -> None:
        """The same sampled requests to the server without a draft, until it alarms or has enough."""
        sampled = [trial for trial in control.plan.trials if trial.arm == SAMPLED]
        for batch in servers_own_forward.batches(sampled, full):
            answers = await self._emit(BASELINE, batch)
            for trial, emitted in zip(batch, answers, strict=True):
                self._judge(control, trial, emitted, self._score(trial, emitted))
            done = min(control.tokens, tokens)
            self._tracker.report("control", done, tokens, "tokens of the server without a draft")
            if control.alarmed or control.tokens >= tokens:
                break

    async def _emit(
        self, side: str, trials: Sequence[Trial], *, logprobs: int | None = None
    ) -> list[Emitted]:
        if self._cancelled():
            raise Cancelled
        if not trials:
            return []
        connection, began = self._connections[side], self._clock()
        requests = [_asked(trial, logprobs) for trial in trials]
        answers = await asyncio.gather(*(connection.emit(request) for request in requests))
        self._note(gate_cost.GENERATION, began, sum(len(one.tokens) for one in answers))
        for one in answers:
            self._answers.append((side, one.ending.reason))
            failed = 0 if one.ending.complete else self._failed.get(side, 0) + 1
            self._failed[side] = failed
            if failed >= MAX_FAILURES:
                raise Unavailable(
                    f"failed {MAX_FAILURES} answers on end; the last ended as {one.ending.reason}",
                    field=side,
                    remedy="look at the server's own log, then run the gate again",
                )
        return list(answers)

    def _score(self, trial: Trial, emitted: Emitted) -> Scored:
        vocabulary, request = self._scorer.info.vocab_size, trial.request
        if not emitted.tokens:
            nothing = np.zeros((0, vocabulary), dtype=np.float32)
            return Scored(nothing, np.zeros(0, dtype=np.float32))
        if max(emitted.tokens) >= vocabulary:
            raise InputError(
                f"is outside the vocabulary of the declared files, which has {vocabulary} ids",
                field="token",
                value=max(emitted.tokens),
                remedy="declare with --target the files that both servers have loaded",
            )
        began = self._clock()
        scored = self._scorer.score(
            request.prompt,
            emitted.tokens,
            request.sampling,
            stop=request.end_tokens,
            min_tokens=request.min_tokens,
        )
        self._note(gate_cost.SCORING, began, len(emitted.tokens))
        self._read += len(request.prompt) + len(emitted.tokens)
        return scored

    def _judge(
        self, accumulator: Accumulator, trial: Trial, emitted: Emitted, scored: Scored
    ) -> None:
        # a lost answer has no tokens: it is counted as lost, and the next one is not held up
        evidence = servers_own_forward.evidence_of_tokens(trial, emitted.tokens, scored)
        began = self._clock()
        accumulator.add(trial, evidence, scored)
        if trial.arm == SAMPLED:
            self._note(gate_cost.BANK, began, len(emitted.tokens))

    def _note(self, part: str, began: float, tokens: int) -> None:
        seconds, before = self._spent[part]
        self._spent[part] = (seconds + self._clock() - began, before + tokens)

    def _rates(self) -> Rates | None:
        (decoding_s, decoded), (scoring_s, scored) = (
            self._spent[part] for part in (gate_cost.GENERATION, gate_cost.SCORING)
        )
        if not (decoded and scored and decoding_s > 0 and scoring_s > 0):
            return None
        return Rates(decoded / decoding_s, scored / scoring_s, self._read / scoring_s)


def _in_order(trials: Sequence[Trial], full: int) -> Iterable[tuple[Trial, ...]]:
    """Greedy trials one by one, as each has its own server; then the sampled ones in batches."""
    sampled = [trial for trial in trials if trial.arm == SAMPLED]
    yield from ((trial,) for trial in trials if trial.arm != SAMPLED)
    yield from servers_own_forward.batches(sampled, full)


def _asked(trial: Trial, logprobs: int | None) -> DecodeRequest:
    return trial.request if logprobs is None else replace(trial.request, logprobs=logprobs)
