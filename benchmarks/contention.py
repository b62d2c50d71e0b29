"""What target and drafter cost each other on one device.

    python benchmarks/contention.py [--dtype float32 bfloat16] [--device cpu] [--json FILE]

A forward of each is timed alone, then both by turns. By turns each finds the caches full of the
other's weights, and on a GPU waits for the other's kernels; the ratio to *alone* is the contention.
CPU time of one thread on a processor; on a GPU wall time with the device waited for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.cut import cut_layers
from gatekeeper_adapters.engines.reference.devices import synchronise
from gatekeeper_adapters.engines.reference.model import LlamaDecoder, load_llama
from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.sources import SMOLLM2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPO = Path(__file__).parents[1]
CONTEXT, PLACE = 512, 256
KEPT, VOCABULARY = (0, 1, 29), 8192


def contention(
    forwards: Mapping[str, Callable[[], object]], *, clock: Callable[[], float], repeats: int
) -> dict[str, dict[str, float]]:
    """Median seconds of each forward ``alone`` and by ``turns``, and their ratio.

    Each is run once beforehand: first touches belong to nobody.
    """

    def timed(forward: Callable[[], object]) -> float:
        start = clock()
        forward()
        return clock() - start

    for forward in forwards.values():
        forward()
    alone = {
        name: median(timed(forward) for _ in range(repeats)) for name, forward in forwards.items()
    }
    rounds = [{name: timed(one) for name, one in forwards.items()} for _ in range(repeats)]
    found = {}
    for name, seconds in alone.items():
        turns = median(each[name] for each in rounds)
        found[name] = {"alone_s": seconds, "turns_s": turns, "ratio": turns / seconds}
    return found


def decoder(folder: Path, dtype: str, device: str, slots: int) -> LlamaDecoder:
    """A Llama-family model over its own cache.

    Raises:
        ValueError: another family.
    """
    weights = load_llama(folder, dtype=getattr(torch, dtype), device=device)
    if weights is None:
        raise ValueError(folder)
    return LlamaDecoder(weights, slots=slots, positions=CONTEXT)


def one_step(model: LlamaDecoder, batch: int, rows: int) -> Callable[[], object]:
    """A forward of so many rows of each of so many sequences, waited for."""
    packed = pack([Segment(slot, PLACE, [5] * rows, rows) for slot in range(batch)], model.cache)

    def forward() -> None:
        with torch.inference_mode():
            model.forward(packed)
        synchronise(torch.device(model.device))

    return forward


def measure(
    target: Path, draft: Path, dtype: str, device: str, *, gamma: int, repeats: int
) -> dict[str, Any]:
    """Contention by batch: verification of ``gamma`` tokens beside one draft step."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    slots = 8
    models = [decoder(folder, dtype, device, slots) for folder in (target, draft)]
    found = {}
    for batch in (1, slots):
        forwards = {
            "target": one_step(models[0], batch, gamma + 1),
            "draft": one_step(models[1], batch, 1),
        }
        found[f"batch {batch}"] = contention(forwards, clock=clock, repeats=repeats)
    return found


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cache", type=Path, default=REPO / ".cache")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    target = prepare(SMOLLM2, chosen.cache, print)
    draft = cut_layers(target, KEPT, range(VOCABULARY), chosen.cache / "models" / "contention-cut")
    found = {}
    for dtype in chosen.dtype:
        found[dtype] = measure(
            target, draft, dtype, chosen.device, gamma=chosen.gamma, repeats=chosen.repeats
        )
        for batch, parts in found[dtype].items():
            for name, part in parts.items():
                alone, turns = 1e3 * part["alone_s"], 1e3 * part["turns_s"]
                print(
                    f"{dtype} {batch:8s} {name:7s} alone {alone:7.2f} ms, "
                    f"by turns {turns:7.2f} ms, {part['ratio']:.3f} ×"
                )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
