"""What recording costs: microseconds a round beside the time of a step.

    python benchmarks/recording.py [--dtype float32 bfloat16] [--json FILE]

Recording is what a step does only to tell of itself: marks in time and their shares, the memory
ledger, a ``Round`` and an ``Emission`` for each request. Each part runs again and again on the objects
of a real step, in CPU time of one thread; the step itself is timed while every slot decodes.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from gatekeeper_adapters.engines.reference import PROVIDER
from gatekeeper_adapters.engines.reference import engine as engine_module
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.loader import Options, load_engine
from gatekeeper_adapters.engines.reference.sources import SMOLLM2
from gatekeeper_adapters.engines.reference.timing import Stopwatch, share

from gatekeeper.core.decoding import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPO = Path(__file__).parents[1]
SLOTS, CONTEXT, GAMMA, PROMPT = 8, 512, 4, 64
MOST_SHARE = 0.02
"""Recording is to take at most this part of a step."""

MARKS = 4


@contextmanager
def watched() -> Iterator[list[Any]]:
    """Keep what the judge is given: the works, trees and logits of every step."""
    judge, seen = engine_module.judge, []

    def keeping(works: Any, trees: Any, logits: Any, verifier: Any) -> Any:  # noqa: ANN401 - as judge
        seen.append((works, trees, logits))
        return judge(works, trees, logits, verifier)

    engine_module.judge = keeping
    try:
        yield seen
    finally:
        engine_module.judge = judge


def least_us(run: Callable[[], object], loops: int = 300, repeats: int = 7) -> float:
    """Microseconds of CPU time of one call: the fastest of several averages."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(loops):
            run()
        found.append((time.process_time() - start) / loops)
    return min(found) * 1e6


def begin(engine: Any, batch: int, gamma: int) -> None:  # noqa: ANN401 - the engine under test
    """Fill so many slots with prompts that decode until they are cancelled."""
    vocab = engine.info.vocab_size
    for i in range(batch):
        prompt = tuple((7 + i + 31 * k) % min(vocab, 90) for k in range(PROMPT))
        limit = engine.info.max_context - PROMPT - 1
        engine.submit(DecodeRequest(str(i), prompt, limit, gamma=gamma))
    started: set[str] = set()
    while len(started) < batch:
        started |= {emission.request_id for emission in engine.step().emitted}


def end(engine: Any, batch: int) -> None:  # noqa: ANN401 - the engine under test
    """Free the slots."""
    for i in range(batch):
        engine.cancel(str(i))
    engine.step()


def step_us(engine: Any, batch: int, gamma: int, steps: int) -> float:  # noqa: ANN401 - as above
    """Median microseconds of CPU time of a step."""
    begin(engine, batch, gamma)
    taken = []
    for _ in range(steps):
        start = time.process_time()
        engine.step()
        taken.append(time.process_time() - start)
    end(engine, batch)
    return median(taken) * 1e6


def parts_us(engine: Any, batch: int, gamma: int) -> dict[str, float]:  # noqa: ANN401 - as above
    """Microseconds of each part of recording one step of ``batch`` rounds."""
    with watched() as seen:
        begin(engine, batch, gamma)
        result = engine.step()
    works, trees, logits = seen[-1]
    account, device = engine._account, engine.info.device  # noqa: SLF001 - what is to be timed

    def clocks() -> None:
        watch = Stopwatch(device, engine._transfers)  # noqa: SLF001 - as above
        for _ in range(MARKS):
            watch.mark()
        share(works, watch)

    def ledger() -> None:
        account.note(trees, logits)
        _ = account.ledger().total

    told = [(type(each), vars(each)) for each in (*result.emitted, *result.rounds)]

    def records() -> None:
        for kind, values in told:
            kind(**values)

    found = {"clocks": least_us(clocks), "ledger": least_us(ledger), "records": least_us(records)}
    end(engine, batch)
    return found


def measure(engine: Any, steps: int) -> dict[str, dict[str, float]]:  # noqa: ANN401 - as above
    """By batch and window: microseconds a round, of the parts a step, and the share of a step."""
    found = {}
    for batch in (1, engine.info.max_batch):
        for gamma in (0, GAMMA):
            parts = parts_us(engine, batch, gamma)
            step = step_us(engine, batch, gamma, steps)
            recording = sum(parts.values())
            found[f"batch {batch}, gamma {gamma}"] = {
                **{f"{name}_us": us for name, us in parts.items()},
                "round_us": recording / batch,
                "step_us": step,
                "share": recording / step,
            }
    return found


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=REPO / ".cache")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    folder = prepare(SMOLLM2, chosen.cache, print)
    found = {}
    for dtype in chosen.dtype:
        engine = load_engine(
            folder,
            {"kind": "ngram"},
            version=PROVIDER.version(),
            dtype=dtype,
            options=Options(max_batch=SLOTS, max_context=CONTEXT),
        )
        found[dtype] = measure(engine, chosen.steps)
        engine.close()
        for name, row in found[dtype].items():
            state = "met" if row["share"] <= MOST_SHARE else "MISSED"
            print(
                f"{dtype} {name:18s} {row['round_us']:6.1f} µs a round "
                f"(clocks {row['clocks_us']:.1f}, ledger {row['ledger_us']:.1f}, "
                f"records {row['records_us']:.1f} a step), step {row['step_us'] / 1e3:7.2f} ms, "
                f"{row['share']:.2%} (at most {MOST_SHARE:.0%}) {state}"
            )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
