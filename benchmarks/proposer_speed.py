"""What each kind of proposer costs and brings on each kind of text, and whether that was predictable.

    python benchmarks/proposer_speed.py [--slices …] [--kinds …] [--dtype bfloat16] [--quick]

Batch 1, one thread, process CPU time, one engine that holds every proposer. On half of the prompts every
kind decodes at gamma 2 and 8, on the other half at gamma 4; ordinary decoding runs on all of them. Arms
of one prompt follow each other in random order, so that a machine that grows slower grows slower for
all. The first half predicts what gamma 4 does on the second: ``gatekeeper.core.window_fit``.

Drafters were trained on some of these prompts. Acceptance by position is that of prompts they never
saw, which are spread over both halves; ordinary kinds have seen none.

Times are those of steady decoding: the step that reads the prompt, and one that an end token cut, are
left out of both arms. Requests may go on for a whole window beyond the tokens counted, so that no
window is short.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from proposer_kinds import CACHE, GAMMA, KINDS, artifacts, say

from gatekeeper import workloads
from gatekeeper.core.acceptance import AcceptanceCounts
from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.core.window_fit import WindowRun, predict_window

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gatekeeper.core.acceptance import Round
    from gatekeeper.core.decoding import TokenPrompt

__all__ = ["Size", "measure", "parts", "summary"]

FIT = (2, 8)
ORDINARY = "ordinary"
CONTEXT = 1_152
PREFIXES = 2**30
"""Bytes for prompts already read: each arm of a prompt would read it again, and none is timed by it."""


@dataclass(frozen=True)
class Size:
    """Prompts of each half, tokens counted of each answer, and the longest prompt taken."""

    prompts: int
    tokens: int
    longest: int


FULL = Size(prompts=10, tokens=32, longest=300)
LONG = Size(prompts=7, tokens=32, longest=1_000)
QUICK = Size(prompts=2, tokens=12, longest=120)


@dataclass(frozen=True)
class Timed:
    """A round of steady decoding; ``seconds`` of CPU time are those of its whole step.

    ``fitted`` where its prompt is of the half that predicts, ``unseen`` where it trained no drafter.
    """

    kind: str
    fitted: bool
    unseen: bool
    gamma: int
    record: Round
    seconds: float


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """One part a slice."""
    return {
        name: partial(measure, name, tuple(KINDS), LONG if name == "long_context" else FULL)
        for name in workloads.SLICES
    }


def measure(
    slice_name: str, kinds: Sequence[str], size: Size, *, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """The cells of one slice."""
    bench = Bench(kinds, dtype)
    prompts = chosen_prompts(slice_name, bench.engine, size, bench.unseen)
    rng = random.Random(f"{slice_name} {dtype}")
    for kind in kinds:  # weights are touched, caches allocated
        bench.decode(prompts[0], kind, GAMMA, 8)
    timed: list[Timed] = []
    for place, prompt in enumerate(prompts):
        fitted = place % 2 == 0
        arms = [
            (ORDINARY, 0),
            *((kind, g) for kind in kinds for g in (FIT if fitted else (GAMMA,))),
        ]
        for kind, gamma in rng.sample(arms, len(arms)):
            timed += bench.timed(prompt, kind, gamma, size.tokens, fitted=fitted)
        say(f"{slice_name}: {place + 1} of {len(prompts)} prompts")
    cells = [cell(kind, timed, bench.memory[kind]) for kind in kinds]
    return {
        "slice": slice_name,
        "dtype": dtype,
        "size": asdict(size),
        "processor": bench.engine.info.details["processor"],
        "ordinary_ms": 1e3 * tpot([t for t in timed if t.kind == ORDINARY]),
        "cells": cells,
    }


class Bench:
    """One engine with every kind, and what each of them holds in bytes."""

    def __init__(self, kinds: Sequence[str], dtype: str) -> None:
        self.engine = open_several(kinds, dtype)
        self.memory: dict[str, dict[str, int]] = held(self.engine, kinds)
        self.unseen = {name for kind in kinds for name in held_out(kind)}

    def timed(
        self, prompt: TokenPrompt, kind: str, gamma: int, tokens: int, *, fitted: bool
    ) -> list[Timed]:
        """Steady rounds of one arm."""
        rounds, seconds, stopped = self.decode(prompt, kind, gamma, tokens)
        steady = list(zip(rounds, seconds, strict=True))[1 : -1 if stopped else None]
        unseen = prompt.id in self.unseen
        return [Timed(kind, fitted, unseen, gamma, record, spent) for record, spent in steady]

    def decode(
        self, prompt: TokenPrompt, kind: str, gamma: int, tokens: int
    ) -> tuple[list[Round], list[float], bool]:
        """Decode alone until ``tokens`` are there; rounds, CPU seconds of their steps, early end?"""
        engine = self.engine
        request = DecodeRequest(
            prompt.id,
            prompt.tokens,
            tokens + max(FIT) + 1,
            gamma=gamma,
            end_tokens=engine.info.end_tokens,
            proposer=kind if gamma else None,
        )
        engine.submit(request)
        rounds: list[Round] = []
        seconds: list[float] = []
        while sum(record.committed for record in rounds) < tokens:
            start = time.process_time()
            result = engine.step()
            spent = time.process_time() - start
            rounds += result.rounds
            seconds += [spent] * len(result.rounds)
            if gamma:
                memory = self.memory[kind]
                memory["candidates"] = max(memory["candidates"], engine.memory().candidates)
            if result.finished:
                return rounds, seconds, True
        engine.cancel(request.request_id)
        engine.step()
        return rounds, seconds, False


def open_several(
    kinds: Sequence[str], dtype: str, *, slots: int = 1, prefixes: int = PREFIXES
) -> Any:  # noqa: ANN401 - the engine under test
    """One engine over one target whose requests name their proposer; it counts CPU time."""
    # torch arrives here: not for those who only read the figures
    from gatekeeper_adapters.engines.reference import PROVIDER  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.convert import prepare  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.timing import Stopwatch  # noqa: PLC0415

    Stopwatch.clock = staticmethod(time.process_time)
    documents = artifacts(dict.fromkeys(("ngram", *kinds)), dtype=dtype)
    sections = [{**document["proposer"], "name": name} for name, document in documents.items()]
    folders = [prepare(s["source"], CACHE, say) if s.get("source") else None for s in sections]
    first, *others = zip(sections, folders, strict=True)
    return load_engine(
        prepare(documents["ngram"]["target"]["source"], CACHE, say),
        *first,
        version=PROVIDER.version(),
        dtype=dtype,
        others=others,
        options=Options(max_batch=slots, max_context=CONTEXT, prefix_cache_bytes=prefixes),
    )


def held(engine: Any, kinds: Iterable[str]) -> dict[str, dict[str, int]]:  # noqa: ANN401 - as above
    """Bytes of weights and caches of each proposer; ``candidates`` are filled in while it runs."""
    found = {}
    for kind in kinds:
        # the ledger adds all proposers up
        weights, cache = engine._proposer._proposers[kind].held()  # noqa: SLF001
        found[kind] = {"weights": weights, "kv": cache, "candidates": 0}
    return found


def held_out(kind: str) -> list[str]:
    """Prompts that a trained kind's drafter never saw, as it says itself; none for the others."""
    source = KINDS[kind]["proposer"].get("source")
    if source is None:
        return []
    from gatekeeper_adapters.engines.reference.convert import prepare  # noqa: PLC0415 - as above

    config = json.loads((prepare(source, CACHE) / "config.json").read_text())
    found: list[str] = config["provenance"]["data"]["held_out_prompts"]
    return found


def chosen_prompts(
    slice_name: str,
    engine: Any,  # noqa: ANN401 - as above
    size: Size,
    unseen: Collection[str],
) -> list[TokenPrompt]:
    """Both halves, alternating: first what no drafter saw, at most half of all, then others."""
    found = workloads.tokenised(slice_name, engine.tokenize, max_tokens=size.longest)
    fresh = spread([p for p in found if p.id in unseen], size.prompts)
    return fresh + spread([p for p in found if p.id not in unseen], 2 * size.prompts - len(fresh))


def spread(prompts: Sequence[TokenPrompt], count: int) -> list[TokenPrompt]:
    """So many, or all, evenly over their order."""
    count = min(count, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def tpot(timed: Sequence[Timed]) -> float:
    """CPU seconds of a token."""
    return sum(t.seconds for t in timed) / sum(t.record.committed for t in timed)


def ratio(
    plain: Sequence[Timed], own: Sequence[Timed], wanted: Callable[[Timed], bool]
) -> float | None:
    """Ordinary over speculative time of a token at the window tested; None without such rounds."""
    ordinary = [t for t in plain if wanted(t)]
    tested = [t for t in own if wanted(t) and t.gamma == GAMMA]
    return tpot(ordinary) / tpot(tested) if ordinary and tested else None


def cell(kind: str, timed: Sequence[Timed], memory: dict[str, int]) -> dict[str, Any]:
    """One row of the table: what a kind did on a slice, what it costs, and the prediction's error."""
    own = [t for t in timed if t.kind == kind]
    plain = [t for t in timed if t.kind == ORDINARY]
    fit = [run(g, [t for t in own if t.gamma == g]) for g in FIT]
    tested = run(GAMMA, [t for t in own if t.gamma == GAMMA])
    predicted = predict_window(fit, GAMMA, ordinary_s=tpot([t for t in plain if t.fitted])).speedup
    measured = ratio(plain, own, lambda t: not t.fitted)
    trained = "source" in KINDS[kind]["proposer"]
    counts = tested.counts
    return {
        "kind": kind,
        "rounds": counts.rounds,
        "drafted_per_round": counts.drafted / counts.rounds,
        "accepted_per_round": counts.accepted / counts.rounds,
        "conditional_acceptance": by_position([t.record for t in own if t.unseen or not trained]),
        "draft_ms": 1e3 * tested.draft_s,
        "verify_ms": 1e3 * tested.verify_s,
        "overhead_ms": 1e3 * tested.overhead_s,
        "memory_bytes": memory,
        "predicted": predicted,
        "measured": measured,
        "measured_unseen": ratio(plain, own, lambda t: not t.fitted and t.unseen),
        "error": predicted / measured - 1,
    }


def run(gamma: int, timed: Sequence[Timed]) -> WindowRun:
    """The rounds of one window."""
    counts = AcceptanceCounts.from_rounds(t.record for t in timed)
    return WindowRun(gamma, counts, sum(t.seconds for t in timed))


def by_position(records: Sequence[Round]) -> list[dict[str, Any]]:
    """Conditional acceptance at each draft position of every window, its interval by prompt.

    Each round that reached a position is one draft token that was accepted or not.
    """
    found = []
    for position in range(GAMMA):
        tried = [
            replace(record, drafted=1, accepted=int(record.accepted > position))
            for record in records
            if record.drafted > position and record.accepted >= position
        ]
        counts = AcceptanceCounts.from_rounds(tried)
        interval = counts.acceptance_interval()
        ends = (None, None) if interval is None else (interval.low, interval.high)
        found.append(
            {
                "position": position + 1,
                "reached": counts.rounds,
                "value": counts.acceptance_rate,
                "low": ends[0],
                "high": ends[1],
            }
        )
    return found


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors of the predictions over all cells, and the fastest and the slowest cell."""
    cells = [{**c, "slice": part["slice"]} for part in found for c in part["cells"]]
    cells.sort(key=lambda c: abs(c["error"]))
    ranked = sorted(cells, key=lambda c: c["measured"])
    return {
        "cells": len(cells),
        "median_error": median(abs(c["error"]) for c in cells),
        **{
            name: {key: c[key] for key in ("kind", "slice", "predicted", "measured", "error")}
            for name, c in (("worst", cells[-1]), ("slowest", ranked[0]), ("fastest", ranked[-1]))
        },
    }


def show(part: dict[str, Any]) -> None:
    """Print one slice's rows."""
    print(f"\n{part['slice']}, {part['dtype']}: ordinary {part['ordinary_ms']:.1f} ms a token")
    for c in part["cells"]:
        curve = " ".join(
            "  – " if p["value"] is None else f"{p['value']:.2f}"
            for p in c["conditional_acceptance"]
        )
        print(
            f"  {c['kind']:17s} accepted {c['accepted_per_round']:4.2f} of "
            f"{c['drafted_per_round']:4.2f} ({curve})  ms {c['draft_ms']:5.1f} + "
            f"{c['verify_ms']:5.1f} + {c['overhead_ms']:4.1f}  ratio {c['measured']:4.2f}, "
            f"predicted {c['predicted']:4.2f} ({c['error']:+.0%})"
        )


def main() -> None:
    """Measure some cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slices", nargs="+", default=["prose"], choices=workloads.SLICES)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--quick", action="store_true", help="a few tokens, to try it")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = []
    for name in chosen.slices:
        size = LONG if name == "long_context" else FULL
        if chosen.quick:
            size = replace(QUICK, longest=size.longest)
        found.append(measure(name, chosen.kinds, size, dtype=chosen.dtype))
        show(found[-1])
    print(json.dumps(summary(found), indent=1))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
