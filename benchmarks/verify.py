"""Long stages: ``make verify STAGE=equivalence``.

A stage is a list of parts; a finished part is kept under ``.cache/verify`` and not run again for the
same commit and engine, so an interrupted stage goes on where it stopped. Figures go to
``docs/evidence/STAGE.json`` with the commit hash. Parts that are not timed run two at a time, each a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

import detection_page
import equivalence as detection
import fuzz
import ingest_crash
import proposer_page
import proposer_speed
import proposers
import traces_stage
import vllm_page
import vllm_stage
from gate_part import Budget, equivalence, exact, open_engine
from proposer_kinds import ROOT, artifacts

from gatekeeper import workloads
from gatekeeper.core.decoding import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Part = Callable[[], dict[str, Any]]

DONE = ROOT / ".cache" / "verify"

PLAIN = SamplingSettings(temperature=1.0)
FILTERED = SamplingSettings(temperature=0.7, top_k=20, top_p=0.9)


@dataclass(frozen=True)
class Stage:
    """``parts`` by name, so many at a time; ``summary`` of the finished ones; pages to write anew."""

    parts: Callable[[], dict[str, Part]]
    jobs: int = 1
    summary: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None
    page: Callable[[Path], Path] | None = None


def equivalence_parts() -> dict[str, Part]:
    """51 prompts × 64 greedy tokens, then 20,000 sampled tokens for each of two settings.

    The cut draft has a dense q and is nearly always rejected, so every round draws from a
    residual; look-up proposes point masses.
    """
    parts: dict[str, Part] = {
        f"greedy-{name}": partial(_gate, "ngram", name, PLAIN, prompts=17, sampled=200)
        for name in ("tool_calls", "prose", "code")
    }
    parts["sampled-T1-cut"] = partial(_gate, "cut", "prose", PLAIN, prompts=2, sampled=20_000)
    parts["sampled-T.7-p.9-k20-ngram"] = partial(
        _gate, "ngram", "code", FILTERED, prompts=2, sampled=20_000
    )
    return parts


def engine_parts() -> dict[str, Part]:
    """The engine beside its peers, one run (benchmarks/engine.py)."""
    return {"engine": _engine_benchmark}


STAGES = {
    "equivalence": Stage(equivalence_parts),
    "engine": Stage(engine_parts),
    "detection": Stage(
        detection.parts, jobs=2, summary=detection.summary, page=detection_page.write
    ),
    "proposers": Stage(proposers.parts, jobs=2, page=proposer_page.write),
    "proposer-speed": Stage(
        proposer_speed.parts, summary=proposer_speed.summary, page=proposer_page.write
    ),
    "fuzz": Stage(fuzz.parts),
    "ingest-crash": Stage(ingest_crash.parts),
    "traces": Stage(traces_stage.parts),
    "vllm": Stage(vllm_stage.parts, page=vllm_page.write),
}


def _gate(
    name: str, slice_name: str, setting: SamplingSettings, *, prompts: int, sampled: int
) -> dict[str, Any]:
    """The gate on one proposer over all prompts of a slice."""
    artifact = artifacts([name])[name]
    # 20,000 tokens hold 9,400 for a window of .02; bonus tokens are a few in a hundred here.
    budget = Budget(prompts=prompts, sampled=sampled, window=0.02, bonus=0.1)
    everything = {slice_name: len(workloads.prompts(slice_name))}
    engine = open_engine(artifact)
    try:
        figures = equivalence(engine, artifact, [setting], budget, slices=everything)
    finally:
        engine.close()
    return {**figures, "holds": exact(figures)}


def _engine_benchmark() -> dict[str, Any]:
    out = DONE / "engine-figures.json"
    subprocess.run(  # noqa: S603 - our own benchmark
        [sys.executable, str(ROOT / "benchmarks" / "engine.py"), "--json", str(out)], check=True
    )
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def _commit() -> str:
    """The commit, marked where files differ from it; the evidence itself, written here, may."""
    changed = _git("status", "--porcelain", "--", ".", ":(exclude)docs/evidence")
    return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(  # noqa: S603 - a fixed command
        ["git", "-C", str(ROOT), *words],  # noqa: S607 - git from the PATH
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _run(stage: str, name: str, kept: Path, *, alone: bool) -> None:
    """Run a part, here or in a process of its own, and keep its figures."""
    if kept.exists():
        print(f"{stage} {name}: kept from before", flush=True)
        return
    print(f"{stage} {name}: running", flush=True)
    if not alone:
        command = [sys.executable, __file__, stage, "--part", name]
        subprocess.run(command, check=True)  # noqa: S603 - this very file
        return
    start = time.monotonic()
    found = STAGES[stage].parts()[name]()
    answer = {**found, "seconds": round(time.monotonic() - start, 1), "commit": _commit()}
    half = kept.with_suffix(".part")
    half.write_text(json.dumps(answer, indent=1))
    half.rename(kept)


def _write(stage: str, commit: str, figures: Mapping[str, Any], missing: list[str]) -> None:
    """Write what is known so far; ``missing`` names the parts that have not run yet."""
    evidence = ROOT / "docs" / "evidence" / f"{stage}.json"
    evidence.parent.mkdir(exist_ok=True)
    machine = platform.processor() or platform.machine()
    document = {"commit": commit, "machine": machine, "missing": missing}
    chosen = STAGES[stage]
    if chosen.summary is not None:
        document["summary"] = chosen.summary(list(figures.values()))
    evidence.write_text(json.dumps({**document, "parts": dict(figures)}, indent=1) + "\n")
    print(f"written: {evidence.relative_to(ROOT)}")
    if chosen.page is not None:
        print(f"written: {chosen.page(evidence.parent).relative_to(ROOT)}")


def main() -> int:
    """Run a stage; exit 0 when every part holds what it promises."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stage", choices=sorted(STAGES))
    parser.add_argument("--part", help="this one only, and keep its figures")
    chosen = parser.parse_args()
    stage, commit = STAGES[chosen.stage], _commit()
    folder = DONE / chosen.stage / commit
    folder.mkdir(parents=True, exist_ok=True)
    names = list(stage.parts())
    kept = {name: folder / f"{name}.json" for name in names}
    if chosen.part is not None:
        _run(chosen.stage, chosen.part, kept[chosen.part], alone=True)
        return 0
    one = partial(_run, chosen.stage, alone=stage.jobs == 1)
    with ThreadPoolExecutor(stage.jobs) as pool:
        apply = map if stage.jobs == 1 else pool.map
        for _ in apply(one, names, kept.values()):
            figures = {name: json.loads(p.read_text()) for name, p in kept.items() if p.exists()}
            missing = [name for name in names if name not in figures]
            _write(chosen.stage, commit, figures, missing)
    failed = [name for name, found in figures.items() if not found.get("holds", True)]
    for name in failed:
        print(f"does not hold: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
