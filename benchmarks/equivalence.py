"""What the strict bank finds that other tests miss, and that it never cries wolf.

    python benchmarks/equivalence.py [FAULT ...] [--seeds N]     one table
    make verify STAGE=detection                                  everything

The planted faults, benign controls and the synthetic model are those of ``tests/faults``. Tokens to
detection at alpha .001: for the bank, the first token after which E >= 1,000; for a fixed-size test, the
smallest size of a grid at which half (90 %) of the seeds reject.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gate_cost
import numpy as np
import real_faults
import real_llamacpp
import rivals
from detection_page import TESTS

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where the planted faults live
from faults.benign import CONTROLS
from faults.catalogue import FAULTS
from faults.detection import ALPHA, tokens_to_alarm
from faults.effect import leaking
from faults.markov import MarkovLM, with_setting
from faults.sampler import Sampler
from faults.stopping import false_passes
from faults.synthetic import arrays, decode_with, stream

from gatekeeper.core.stats.eprocess import Bank
from gatekeeper.core.stats.evidence import RequestEvidence
from gatekeeper.core.stats.power import effect_of, tokens_needed
from gatekeeper.core.verdicts import Outcome
from gatekeeper.gates.equivalence_check import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from faults.catalogue import Fault

__all__ = ["parts", "summary"]

SEEDS, RIVAL_SEEDS = 21, 9
LIMIT, TEXT = 10_000, 32
SIZES = (512, 1024, 2048, 4096, 8192, 16_384)
PROMPTS = 8
"""Prompts of the two-sample tests, which need many texts of each."""

UNSEEN, UNSEEN_TOKENS, UNSEEN_SEEDS = ("bonus_from_q", "lenient"), 100_000, 5

FAULT_PARTS, EXACT_PARTS = 8, 2
EXACT_RUNS, CONTROL_RUNS, RUN_TOKENS = 2000, 200, 1000
ALARMS = 5
"""Alarms that 2,000 exact runs may raise: alpha lets 2 be expected."""

CERTAIN = 3000
"""Faults of a smaller reference must be found within ``LIMIT`` by every seed."""

FACTOR = 1.5
POINTS = 0.05
"""How far simulated detection may lie from the declared power; three standard errors are about that."""

VOCABULARY = 49_152


def model() -> MarkovLM:
    """500 tokens, entropy 1.7 nats, acceptance .76: the conditions of the reference points."""
    return MarkovLM.make(np.random.default_rng(1), spread=4.5, noise=0.9)


def detection(
    names: Sequence[str], *, seeds: int = SEEDS, others: int = RIVAL_SEEDS
) -> list[dict[str, Any]]:
    """One row a fault: tokens to detection, ours and theirs."""
    rows = []
    for name in names:
        fault, lm = FAULTS[name], with_setting(model(), FAULTS[name].setting)
        ours = [_ours(fault, lm, seed) for seed in range(seeds)]
        row = {
            "fault": name,
            "setting": fault.setting,
            "source": fault.source,
            "reference": fault.reference,
            "bank": _quantiles(ours),
            "not_found": sum(tokens > LIMIT for tokens in ours),
            "group-sequential chi-square": _quantiles(
                [_group_sequential(fault, lm, seed) for seed in range(others)]
            ),
            **_theirs(fault, lm, others),
        }
        rows.append(row)
        _say(row)
    return rows


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a row keeps the promise; faults with a reference of 3,000 and more are reported only."""
    reference, median = row["reference"], row["bank"]["median"]
    if reference is None:
        return median is not None
    if reference >= CERTAIN:
        return True
    return row["not_found"] == 0 and median is not None and median <= FACTOR * reference


def _ours(fault: Fault, lm: MarkovLM, seed: int) -> float:
    return tokens_to_alarm(
        _stream(fault.sampler, lm, 1000 + seed, LIMIT),
        lm,
        seed,
        replicates_only=fault.replicates_only,
    )


def _group_sequential(fault: Fault, lm: MarkovLM, seed: int) -> float:
    looks = [size for size in (SIZES[0] // 2, *SIZES) if size <= LIMIT]
    evidence = list(_stream(fault.sampler, lm, 1000 + seed, LIMIT))
    return rivals.group_sequential(evidence, looks, alpha=ALPHA)


def _stream(
    sampler: type[Sampler], lm: MarkovLM, seed: int, tokens: int, gamma: int = 4
) -> Iterator[RequestEvidence]:
    requests = -(-tokens // TEXT)
    rng = np.random.default_rng(seed)
    return stream(sampler, lm, rng, requests=requests, tokens=TEXT, gamma=gamma)


def _decode(
    sampler: type[Sampler], lm: MarkovLM, seed: int, tokens: int, **options: int
) -> list[RequestEvidence]:
    return decode_with(
        sampler,
        lm,
        np.random.default_rng(seed),
        requests=-(-tokens // TEXT),
        tokens=TEXT,
        **options,
    )


def _theirs(fault: Fault, lm: MarkovLM, seeds: int) -> dict[str, dict[str, float | None]]:
    """Power of the fixed-size tests over the grid, as the smallest sizes of power .5 and .9."""
    rejected: dict[str, list[list[bool]]] = {}
    for seed in range(seeds):
        ours = _decode(fault.sampler, lm, 2000 + seed, SIZES[-1], prompts=PROMPTS)
        theirs = _decode(Sampler, lm, 3000 + seed, SIZES[-1], prompts=PROMPTS, gamma=0)
        for size in SIZES:
            a, b = ours[: size // TEXT], theirs[: size // TEXT]
            rng = np.random.default_rng(seed)
            found = {
                "per-prompt chi-square": rivals.per_prompt(a, b),
                "two-sample chi-square": rivals.two_sample(a, b),
                "MMD-Hamming": rivals.hamming(a, b, length=TEXT, rng=rng),
            }
            for name, p_value in found.items():
                rejected.setdefault(name, [[] for _ in SIZES])[SIZES.index(size)].append(
                    p_value <= ALPHA
                )
    return {
        name: {"median": _smallest(by_size, 0.5), "90 %": _smallest(by_size, 0.9)}
        for name, by_size in rejected.items()
    }


def _smallest(by_size: Sequence[Sequence[bool]], power: float) -> float | None:
    found = (size for size, hits in zip(SIZES, by_size, strict=True) if np.mean(hits) >= power)
    return next(found, None)


def _quantiles(found: Sequence[float]) -> dict[str, float | None]:
    """Median and 90 % of the tokens to detection; None where it lies beyond ``LIMIT``."""
    ordered = sorted(found)
    picked = {"median": ordered[len(ordered) // 2], "90 %": ordered[int(0.9 * (len(ordered) - 1))]}
    return {name: value if value <= LIMIT else None for name, value in picked.items()}


def blind() -> dict[str, Any]:
    """What MMD-Hamming is said not to see: its rejections at six times the largest size."""
    rejected, lm = {}, model()
    for name in UNSEEN:
        p_values = []
        for seed in range(UNSEEN_SEEDS):
            ours = _decode(FAULTS[name].sampler, lm, 4000 + seed, UNSEEN_TOKENS, prompts=PROMPTS)
            theirs = _decode(Sampler, lm, 5000 + seed, UNSEEN_TOKENS, prompts=PROMPTS, gamma=0)
            rng = np.random.default_rng(seed)
            p_values.append(rivals.hamming(ours, theirs, length=TEXT, rng=rng))
        rejected[name] = sum(p_value <= ALPHA for p_value in p_values)
    return {
        "tokens": UNSEEN_TOKENS,
        "seeds": UNSEEN_SEEDS,
        "mmd_rejected": rejected,
        "holds": all(2 * count < UNSEEN_SEEDS for count in rejected.values()),
    }


def exact_runs(part: int) -> dict[str, Any]:
    """Exact runs, half of them at gamma 1: how many ever alarm, at any token."""
    runs, lm, largest = EXACT_RUNS // EXACT_PARTS, model(), 0
    for run in range(runs):
        evidence = _stream(Sampler, lm, 10_000 * (part + 1) + run, RUN_TOKENS, (4, 1)[run % 2])
        largest += tokens_to_alarm(evidence, lm, run) < np.inf
    return {
        "runs": runs,
        "tokens": RUN_TOKENS,
        "alarms": largest,
        "holds": largest <= ALARMS // EXACT_PARTS,
    }


def benign(name: str) -> dict[str, Any]:
    """Runs of one benign control through the whole check; none may FAIL."""
    control, lm, outcomes = CONTROLS[name], model(), []
    prepared = control.prepare(lm)
    for run in range(CONTROL_RUNS):
        evidence = list(_stream(control.sampler, prepared, 50_000 + run, RUN_TOKENS))
        shown = control.seen(evidence, np.random.default_rng(run))
        outcomes.append(check(arrays(shown), seed=run)["outcome"])
    failed = outcomes.count(str(Outcome.FAIL))
    return {"runs": CONTROL_RUNS, "tokens": RUN_TOKENS, "failed": failed, "holds": failed == 0}


def declared_effects() -> dict[str, Any]:
    """Detection at the declared number of tokens beside the declared power."""
    lm, rows = model(), []
    for share, power, runs in ((0.3, 0.5, 400), (0.3, 0.9, 400), (0.1, 0.9, 150)):
        effect = effect_of(lm.p, lm.q, share)
        tokens = tokens_needed(effect, alpha=ALPHA, power=power)
        found = [
            tokens_to_alarm(_stream(leaking(share), lm, 70_000 + run, tokens), lm, run) <= tokens
            for run in range(runs)
        ]
        rows.append(
            {"share": share, "power": power, "tokens": tokens, "runs": runs}
            | {"detected": float(np.mean(found))}
        )
    close = all(abs(row["detected"] - row["power"]) <= POINTS for row in rows)
    return {"effects": rows, "holds": close}


def stopping() -> dict[str, Any]:
    """Optional stopping and running again until PASS, just outside the tolerance."""
    runs, alpha = 10_000, 0.05
    found = false_passes(np.random.default_rng(0), runs=runs, reruns=10)
    noise = 3 * (alpha * (1 - alpha) / runs) ** 0.5
    return {
        "runs_until_pass": runs,
        "false_pass_continued": found.continued,
        "false_pass_restarted": found.restarted,
        "bound": alpha,
        "holds": found.continued <= alpha + noise,
    }


def bank_cost(rows: int = 64, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds of CPU time a token that the bank takes at the real model's vocabulary."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((rows, VOCABULARY)).astype(np.float32)
    p, q = (_softmax(x) for x in (logits, logits + rng.standard_normal(logits.shape)))
    token, k = rng.integers(0, VOCABULARY, rows), np.arange(rows) % 5
    found = {}
    for name, proposal, delta in (
        ("with q", q, 1e-6),
        ("with q, bfloat16", q, 0.03),
        ("without q", None, 1e-6),
    ):
        evidence = RequestEvidence(0, 0, 0, token, p, proposal, k)
        times = []
        for _ in range(repeats):
            bank, start = Bank(VOCABULARY, seed=0, delta=delta), time.process_time()
            bank.add(evidence, k == 4)  # noqa: PLR2004 - the bonus of a window of 4
            times.append((time.process_time() - start) / rows * 1e3)
        found[name] = round(min(times), 3)
    return {"vocabulary": VOCABULARY, "bank_ms_per_token": found}


def _softmax(x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts of the stage."""
    names = list(FAULTS)
    found: dict[str, Callable[[], dict[str, Any]]] = {
        f"faults-{i + 1}": partial(_fault_part, names[i::FAULT_PARTS]) for i in range(FAULT_PARTS)
    }
    found |= {f"exact-{i + 1}": partial(exact_runs, i) for i in range(EXACT_PARTS)}
    found |= {name.replace(" ", "-"): partial(benign, name) for name in CONTROLS if name != "exact"}
    found |= {"blind": blind, "power": declared_effects, "stopping": stopping, "cost": bank_cost}
    found |= {"gate-cost": gate_cost.real_model, "formats": _formats}
    return found | real_faults.parts() | real_llamacpp.parts()


def _formats() -> dict[str, Any]:
    from formats import tiny_model  # noqa: PLC0415 - torch arrives here and not before

    return tiny_model()


def _fault_part(names: Sequence[str]) -> dict[str, Any]:
    rows = detection(names)
    return {"rows": rows, "holds": all(holds(row) for row in rows)}


def summary(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Faults in the order of the catalogue, those that break the promise, and false alarms."""
    order = list(FAULTS)
    rows = [row for part in figures for row in part.get("rows", [])]
    rows.sort(key=lambda row: order.index(row["fault"]))
    return {
        "faults": rows,
        "promise_broken": [row["fault"] for row in rows if not holds(row)],
        "exact_runs": sum(part["runs"] for part in figures if "alarms" in part),
        "alarms": sum(part["alarms"] for part in figures if "alarms" in part),
        "benign_failed": sum(part["failed"] for part in figures if "failed" in part),
    }


def _say(row: Mapping[str, Any]) -> None:
    cells = "  ".join(f"{_cell(row[c]['median']):>6} {_cell(row[c]['90 %']):>6}" for c in TESTS)
    reference = "" if row["reference"] is None else f"{row['reference']:g}"
    print(f"{row['fault']:32s} {reference:>6}  {cells}", flush=True)


def _cell(tokens: float | None) -> str:
    return "—" if tokens is None else f"{tokens:.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("fault", nargs="*", help=f"all, or some of {', '.join(FAULTS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    chosen = parser.parse_args()
    print("tokens to detection, median and 90 %; reference, then " + ", ".join(TESTS))
    detection(chosen.fault or list(FAULTS), seeds=chosen.seeds)
    print(f"bank, ms a token: {bank_cost()['bank_ms_per_token']}")


if __name__ == "__main__":
    main()
