"""Runs the trials of the equivalence gate: decode in a continuous batch, score, stop when settled."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.decoding import Rates
from gatekeeper.gates import equivalence
from gatekeeper.load import transcripts
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.core.acceptance import Round
    from gatekeeper.protocols import Engine
    from gatekeeper.worker.progress import Tracker

__all__ = ["run_equivalence"]


def run_equivalence(
    plan: equivalence.Plan,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
) -> Measured:
    """Measure a plan on an engine, and on the way how fast it decodes and scores.

    Raises:
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        Unavailable: the engine stopped making progress.
    """
    trials = {trial.request.request_id: trial for trial in plan.trials}
    accumulator = equivalence.Accumulator(plan, engine.info)
    rounds: dict[tuple[str, int], list[Round]] = {}
    decoded = 0
    scoring_s = 0.0
    began = clock()
    total = int(plan.estimate["tokens"])
    finished = transcripts(
        engine,
        (trial.request for trial in plan.trials),
        in_flight=min(plan.budget.max_batch, engine.info.max_batch),
        cancelled=cancelled,
    )
    with closing(finished):
        for transcript in finished:
            request = transcript.request
            trial = trials[request.request_id]
            before = clock()
            scored = engine.score(
                request.prompt,
                transcript.tokens,
                request.sampling,
                stop=request.end_tokens,
                min_tokens=request.min_tokens,
            )
            scoring_s += clock() - before
            evidence = equivalence.evidence_of(trial, transcript.emissions, scored)
            accumulator.add(trial, evidence, scored)
            if request.gamma:
                rounds.setdefault((trial.setting, request.gamma), []).extend(transcript.rounds)
            decoded += len(transcript.tokens)
            tracker.report(
                "equivalence",
                min(decoded, total),
                total,
                f"tokens, {accumulator.tokens} sampled ones judged",
            )
            if accumulator.settled:
                break
    if cancelled():
        raise Cancelled
    decoding_s = clock() - began - scoring_s
    tracker.report("equivalence", total, total, f"tokens at most, {decoded} decoded")
    measured = equivalence.worded(plan.budget, accumulator.tables(), engine.detokenize)
    files, tables = round_trip(measured)
    result = equivalence.evaluate(plan.budget, tables)
    rates = None
    if decoded and decoding_s > 0 and scoring_s > 0:
        rates = Rates(decoded / decoding_s, decoded / scoring_s)
    return Measured(result, files, _acceptance(rounds), rates)


def _acceptance(rounds: dict[tuple[str, int], list[Round]]) -> list[dict[str, Any]]:
    """Acceptance counts of every sampling setting and window."""
    return [
        {"setting": setting, "gamma": gamma, **AcceptanceCounts.from_rounds(entries).to_dict()}
        for (setting, gamma), entries in rounds.items()
    ]
