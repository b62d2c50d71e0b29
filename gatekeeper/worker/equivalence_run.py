"""Runs the trials of the equivalence gate: decode in a continuous batch, score, stop when settled.

Where the gate was inconclusive before, its evidence is fetched first and the same e-process goes on.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.decoding import Rates
from gatekeeper.core.stats import gate_cost
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence
from gatekeeper.load import transcripts
from gatekeeper.worker.evidence import round_trip
from gatekeeper.worker.measured import Cancelled, Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.acceptance import Round
    from gatekeeper.protocols import Engine, EngineInfo
    from gatekeeper.worker.progress import Tracker

__all__ = ["Fetch", "begin", "run_equivalence"]


class Fetch(Protocol):
    """Gets an evidence table of an earlier run, its digest checked."""

    def __call__(self, run: str, table: str, sha256: str) -> pd.DataFrame:
        """Return the table."""
        ...


def begin(
    make: Callable[[equivalence.Before], equivalence.Plan],
    info: EngineInfo,
    continues: tuple[str, Mapping[str, str]] | None,
    fetch: Fetch | None,
) -> equivalence.Accumulator:
    """Plan a run and open its accumulator, going on from ``continues`` where that is the same test.

    ``make`` plans for what was done before. An earlier run of another engine, or of another design,
    is not continued, and the evidence says why.

    Raises:
        InputError: there is a run to continue and no way to its evidence.
        EvidenceError: its evidence is not what was recorded.
    """
    plan = make(equivalence.Before(runs=0, tokens=0))
    if continues is None:
        return equivalence.Accumulator(plan, info)
    run, evidence = continues
    if fetch is None:
        raise InputError(
            "cannot be continued here",
            field="parameters.continues",
            value=run,
            remedy="run it on a worker that reaches the server",
        )
    context = fetch(run, "context", evidence["context"])
    differs = equivalence.differing(plan, info, context)
    if differs:
        other = {"run": run, "differs": differs}
        return equivalence.Accumulator(plan, info, not_continued=other)
    tables = {name: fetch(run, name, sha256) for name, sha256 in evidence.items()}
    earlier = equivalence.Earlier(run, evidence, tables)
    return equivalence.Accumulator(make(earlier.before), info, earlier=earlier)


def run_equivalence(
    accumulator: equivalence.Accumulator,
    engine: Engine,
    tracker: Tracker,
    cancelled: Callable[[], bool],
    clock: Callable[[], float],
) -> Measured:
    """Measure a plan on an engine, and on the way what decoding, scoring and judging take.

    Raises:
        Cancelled: ``cancelled()`` became true; nothing of the run is kept.
        Unavailable: the engine stopped making progress.
    """
    plan = accumulator.plan
    trials = {trial.request.request_id: trial for trial in plan.trials}
    rounds: dict[tuple[str, int], list[Round]] = {}
    decoded = sampled = read = 0
    scoring_s = bank_s = proposal_s = 0.0
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
            read += len(request.prompt) + len(transcript.tokens)
            evidence = equivalence.evidence_of(trial, transcript.emissions, scored)
            before = clock()
            accumulator.add(trial, evidence, scored)
            bank_s += clock() - before
            if request.evidence:
                sampled += len(transcript.tokens)
                proposal_s += _shown_only(transcript.rounds)
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
    decoding_s = clock() - began - scoring_s - bank_s
    for part, seconds, count in (
        (gate_cost.GENERATION, decoding_s, decoded),
        (gate_cost.SCORING, scoring_s, decoded),
        (gate_cost.PROPOSAL, proposal_s, sampled),
        (gate_cost.BANK, bank_s, sampled),
    ):
        accumulator.spent(part, seconds, count)
    tracker.report("equivalence", total, total, f"tokens at most, {decoded} decoded")
    measured = equivalence.worded(plan.budget, accumulator.tables(), engine.detokenize)
    files, tables = round_trip(measured)
    result = equivalence.evaluate(plan.budget, tables)
    rates = None
    if decoded and decoding_s > 0 and scoring_s > 0:
        rates = Rates(decoded / decoding_s, decoded / scoring_s, read / scoring_s)
    return Measured(result, files, _acceptance(rounds), rates)


def _shown_only(rounds: Sequence[Round]) -> float:
    """Seconds of the draft steps beyond the windows: they show q at the bonus position to the gate alone.

    A round with evidence drafts one step more than its window; each step takes its share of the
    round's draft time.
    """
    return sum(one.draft_s / (one.drafted + 1) for one in rounds)


def _acceptance(rounds: dict[tuple[str, int], list[Round]]) -> list[dict[str, Any]]:
    """Acceptance counts of every sampling setting and window."""
    return [
        {"setting": setting, "gamma": gamma, **AcceptanceCounts.from_rounds(entries).to_dict()}
        for (setting, gamma), entries in rounds.items()
    ]
