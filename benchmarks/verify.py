"""Long stages: ``make verify STAGE=equivalence``.

A stage is a list of parts; a finished part is kept under ``.cache/verify`` and not run again for the
same commit and engine, so an interrupted stage goes on where it stopped. Figures go to
``docs/evidence/STAGE.json`` with the commit hash.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

import yaml

from gatekeeper import plugins
from gatekeeper.cli.demo.setup import documents, load_setup
from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome, to_json
from gatekeeper.worker.progress import Progress, Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("GATEKEEPER_TEST_CACHE") or ROOT / ".cache")
DONE = ROOT / ".cache" / "verify"

GREEDY = SamplingSettings()
PLAIN = SamplingSettings(temperature=1.0)
FILTERED = SamplingSettings(temperature=0.7, top_k=20, top_p=0.9)


def equivalence_parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """51 prompts × 64 greedy tokens, then 20,000 sampled tokens for each of two settings.

    The cut draft has a dense q and is nearly always rejected, so every round draws from a
    residual; look-up proposes point masses.
    """
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        f"greedy-{name}": partial(_equivalence, "ngram", name, PLAIN, prompts=17, sampled=200)
        for name in ("tool_calls", "prose", "code")
    }
    parts["sampled-T1-cut"] = partial(
        _equivalence, "cut", "prose", PLAIN, prompts=2, sampled=20_000
    )
    parts["sampled-T.7-p.9-k20-ngram"] = partial(
        _equivalence, "ngram", "code", FILTERED, prompts=2, sampled=20_000
    )
    return parts


def engine_parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """The engine beside its peers, one run (benchmarks/engine.py)."""
    return {"engine": _engine_benchmark}


STAGES = {"equivalence": equivalence_parts, "engine": engine_parts}


def _equivalence(
    name: str, slice_name: str, setting: SamplingSettings, *, prompts: int, sampled: int
) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "policies" / "production.yaml").read_text())
    document["equivalence"] |= {"max_batch": 8, "tokens_per_request": 64}
    document["equivalence"]["greedy"]["prompts"] = prompts
    document["equivalence"]["sampled"] |= {"min_tokens": sampled, "max_tokens": sampled}
    # 20,000 tokens hold 9,400 for a window of .02; bonus tokens are a few in a hundred here.
    document["equivalence"]["tolerance"] |= {"window": 0.02, "bonus": 0.1}
    policy = Policy.from_dict(document)
    provider = plugins.load("gatekeeper.engines", "reference")
    setup = load_setup()
    setup = {**setup, "artifacts": {name: setup["artifacts"][name]}}
    artifact = documents(setup, provider, provider, CACHE, note=_say)[name]
    run = ClaimedRun(
        id="verify",
        gate="equivalence",
        route=slice_name,
        slice=slice_name,
        artifact_digest="",
        artifact=artifact,
        policy=policy,
        parameters={},
        attempt=1,
        fence=0,
        cancel_requested=False,
        sampling=(setting,),
        slo=None,
    )
    engine = provider.open(artifact, cache=CACHE, max_batch=8, device="cpu")
    try:
        measured = measure(
            run, engine, Tracker(time.monotonic, _progress), lambda: False, time.monotonic
        )
        info = dataclasses.asdict(engine.info)
    finally:
        engine.close()
    return {
        "slice": slice_name,
        "setting": setting.label,
        "result": to_json(measured.result),
        "acceptance": list(measured.acceptance),
        "engine": info,
    }


def _engine_benchmark() -> dict[str, Any]:
    out = DONE / "engine-figures.json"
    subprocess.run(  # noqa: S603 - our own benchmark
        [sys.executable, str(ROOT / "benchmarks" / "engine.py"), "--json", str(out)], check=True
    )
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _progress(progress: Progress) -> None:
    _say(str(progress))


def _commit() -> str:
    done = subprocess.run(  # noqa: S603 - a fixed command
        ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty"],  # noqa: S607 - git from the PATH
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _write(stage: str, commit: str, figures: Mapping[str, Any], missing: list[str]) -> None:
    """Write what is known so far; ``missing`` names the parts that have not run yet."""
    for part in figures.values():
        part.get("result", {}).pop("claims", None)  # each has its table in a real run's evidence
    evidence = ROOT / "docs" / "evidence" / f"{stage}.json"
    evidence.parent.mkdir(exist_ok=True)
    machine = platform.processor() or platform.machine()
    document = {"commit": commit, "machine": machine, "missing": missing, "parts": figures}
    evidence.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: {evidence.relative_to(ROOT)}")


def main() -> int:
    """Run a stage; exit 0 when no part failed its gate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=sorted(STAGES))
    stage = parser.parse_args().stage
    commit = _commit()
    folder = DONE / stage / commit
    folder.mkdir(parents=True, exist_ok=True)
    parts = STAGES[stage]()
    figures: dict[str, Any] = {}
    for name, part in parts.items():
        kept = folder / f"{name}.json"
        if kept.exists():
            print(f"{stage} {name}: kept from before")
        else:
            print(f"{stage} {name}: running", flush=True)
            start = time.monotonic()
            answer = {**part(), "seconds": round(time.monotonic() - start, 1)}
            half = kept.with_suffix(".part")
            half.write_text(json.dumps(answer, indent=1))
            half.rename(kept)
        figures[name] = json.loads(kept.read_text())
        _write(stage, commit, figures, missing=[other for other in parts if other not in figures])
    failed = [name for name, f in figures.items() if not _holds(f)]
    for name in failed:
        print(f"does not hold: {name}")
    return 1 if failed else 0


def _holds(figures: Mapping[str, Any]) -> bool:
    """Whether the gate's exact parts, greedy identity and the strict e-process, both passed."""
    if "result" not in figures:
        return True
    parts = {p["name"]: p["outcome"] for p in figures["result"]["parts"]}
    return {parts["greedy identity"], parts["strict e-process"]} == {Outcome.PASS}


if __name__ == "__main__":
    sys.exit(main())
