"""Runs the blocks of the outcome gate: decode, verify each answer, bill each request."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.gates import outcome
from gatekeeper.load import MeteredEngine, transcripts
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gatekeeper.core.acceptance import Round
    from gatekeeper.load import Transcript
    from gatekeeper.protocols import Engine
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.workloads.tasks import Task

__all__ = ["run_outcome"]


def run_outcome(
    plan: outcome.Plan,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
    *,
    tasks: Mapping[str, Task],
) -> Measured:
    """Measure a plan on an engine; ``tasks`` by id hold the verifiers.

    Raises:
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        Unavailable: the engine stopped making progress.
    """
    metered = MeteredEngine(engine, clock)
    for _ in _decode(plan, plan.warm_up, metered, cancelled):
        pass
    answers: list[outcome.Answer] = []
    rounds: list[Round] = []
    for number, block in enumerate(plan.blocks):
        tracker.report("outcome", number, len(plan.blocks), _note(answers))
        attempts = {attempt.request.request_id: attempt for attempt in block.attempts}
        for transcript in _decode(plan, block, metered, cancelled):
            attempt = attempts[transcript.request.request_id]
            text = _text(engine, transcript)
            answers.append(
                outcome.Answer(
                    attempt=attempt,
                    block=block,
                    text=text,
                    success=tasks[attempt.task].verify(text),
                    tokens=len(transcript.tokens),
                    cost_s=metered.settle(transcript.request.request_id),
                )
            )
            if transcript.request.gamma:
                rounds.extend(transcript.rounds)
    tracker.report("outcome", len(plan.blocks), len(plan.blocks), _note(answers))
    files, tables = round_trip({"pairs": plan.pairs(answers)})
    return Measured(outcome.evaluate(plan.budget, tables), files, _acceptance(plan, rounds))


def _decode(
    plan: outcome.Plan,
    block: outcome.Block,
    engine: MeteredEngine,
    cancelled: Callable[[], bool],
) -> Iterator[Transcript]:
    requests = [attempt.request for attempt in block.attempts]
    in_flight = min(plan.concurrency, engine.info.max_batch)
    finished = transcripts(engine, requests, in_flight=in_flight, cancelled=cancelled)
    with closing(finished):
        yield from finished
    if cancelled():
        raise Cancelled


def _text(engine: Engine, transcript: Transcript) -> str:
    """The answer without the token that ended it."""
    tokens = transcript.tokens
    if tokens and tokens[-1] in transcript.request.end_tokens:
        tokens = tokens[:-1]
    return engine.detokenize(tokens)


def _note(answers: list[outcome.Answer]) -> str:
    won = sum(answer.success for answer in answers)
    return f"{won} of {len(answers)} answers succeeded" if answers else ""


def _acceptance(plan: outcome.Plan, rounds: list[Round]) -> list[dict[str, Any]]:
    counts = AcceptanceCounts.from_rounds(rounds).to_dict()
    return [{"concurrency": plan.concurrency, "gamma": plan.gamma, "slice": "tasks", **counts}]
