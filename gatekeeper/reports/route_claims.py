"""The claims behind a route's report that stand in no ledger of their own.

A number of a gate's summary is the gate's evaluation of its evidence; a number of a decision is the
decision rule on the gates' results; a number that somebody declared is what their document says.
Rows have the form of a ledger claim and, for the first two, the ids under which ``claims verify``
recomputes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import Claim
from gatekeeper.core.documents import is_number, leaves
from gatekeeper.core.progress import break_even_progress
from gatekeeper.core.stats.power import (
    ASSUMED_SPREAD,
    REFERENCE,
    TARGET_POWER,
    detectable_speedup,
    power,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "counted",
    "decision_claims",
    "declared",
    "delivered",
    "derived",
    "judged",
    "priced",
]


def judged(
    run: str, gate: str, result: Mapping[str, Any], evidence: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Every number of a result, and the sentences that hold numbers.

    ``evidence`` maps the run's tables to their sha256: the inputs that the gate evaluated.
    """
    for path, value in leaves({k: v for k, v in result.items() if k != "claims"}):
        sentence = path == "still_needed" or path.endswith(".detail")
        if is_number(value) or (sentence and isinstance(value, str)):
            yield _row(
                f"run/{run}/{path}",
                f"{gate}.evaluate",
                evidence,
                value,
                "sentence" if sentence else "as in the summary",
                status="measured",
                source=f"{gate} gate, run {run}",
            )


def decision_claims(lease: Mapping[str, Any], policy: str) -> Iterator[dict[str, Any]]:
    """Every number of a lease, and its explanation."""
    inputs = {
        "artifact": lease["artifact"],
        "policy": policy,
        "runs": {gate["gate"]: gate["run_id"] for gate in lease["gates"] if gate["run_id"]},
    }
    skipped = ("version", "gates", "route")
    document = {k: v for k, v in lease.items() if k not in skipped}
    for path, value in leaves(document):
        if is_number(value) or path == "explanation":
            yield _row(
                f"decision/{lease['route']}/{path}",
                "policies.decide",
                inputs,
                value,
                "sentence" if path == "explanation" else "as in the lease",
                status="measured",
                source="decision of the route",
            )


def declared(
    name: str, document: Mapping[str, Any], inputs: Mapping[str, Any], source: str
) -> Iterator[dict[str, Any]]:
    """Every number of a document that somebody wrote; ``inputs`` say which document it is."""
    for path, value in leaves(dict(document)):
        if is_number(value):
            yield _row(
                f"{name}/{path}",
                "as declared",
                {**inputs, "path": path},
                value,
                "as declared",
                status="declared",
                source=source,
            )


def priced(route: str, pricing: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every number of a pricing document, and the sentences on what would change it."""
    inputs = {"curves": pricing.get("evidence") or "none"}
    for path, value in leaves(dict(pricing)):
        sentence = path.startswith(("still_needed[", "what_would_change["))
        if is_number(value) or sentence:
            yield _row(
                f"pricing/{route}/{path}",
                "pricing.price",
                inputs,
                value,
                "sentence" if sentence else "as in the pricing",
                status="estimated",
                source=f"pricing of route {route}",
            )


def counted(route: str, tasks: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How many tasks there are."""
    for path, value in leaves(dict(tasks)):
        yield _row(
            f"tasks/{route}/{path}",
            "as counted",
            {"route": route},
            value,
            "calls" if path == "unmatched_calls" else "tasks",
            status="measured",
            source="stored tasks",
        )


def delivered(route: str, windows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every number of the judged windows of a rollout."""
    for window in windows:
        for path, value in leaves({k: v for k, v in window.items() if k != "id"}):
            if is_number(value):
                yield _row(
                    f"delivered/{route}/{window['id']}/{path}",
                    "delivered.judge",
                    {"route": route, "window": window["id"]},
                    value,
                    "as in the window",
                    status="measured",
                    source=f"rollout of route {route}",
                )


def derived(route: str, gates: Mapping[str, Mapping[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """Figures that the report adds: attainable power, and each load's break-even."""
    prefix = f"report/{route}"
    equivalence, serving = gates.get("equivalence"), gates.get("serving")
    strict = ((equivalence or {}).get("result") or {}).get("summary", {}).get("strict")
    if strict and strict.get("proposal", True):  # the reference points rest on the draft's chances
        tokens, alpha = strict["tokens"], strict["alpha"]
        for index, (fault, median) in enumerate(REFERENCE.items()):
            inputs = {"median": median, "tokens": tokens, "alpha": alpha}
            yield _estimated(
                f"{prefix}/equivalence.power.{index}",
                "equivalence.power",
                inputs,
                power(median, tokens, alpha=alpha),
                unit="probability",
                source=fault,
            )
    summary = ((serving or {}).get("result") or {}).get("summary", {})
    if summary.get("pairs"):
        budget = {
            "pairs": summary["pairs"],
            "spread": ASSUMED_SPREAD,
            "confidence": summary["confidence"],
            "target_power": TARGET_POWER,
        }
        yield _estimated(
            f"{prefix}/serving.detectable_speedup",
            "serving.detectable_speedup",
            budget,
            detectable_speedup(**budget),
            unit="ratio",
            source="smallest speed-up that the pairs prove",
        )
    yield from _break_even(prefix, summary.get("regions", ()))


def _break_even(prefix: str, regions: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tokens that a round must commit at each load to take no longer than ordinary decoding."""
    for region in regions:
        parts = region.get("times") or {}
        names = ("ordinary_s", "draft_s", "verify_s", "overhead_s")
        known: dict[str, float] = {n: parts[n] for n in names if parts.get(n) is not None}
        if len(known) < len(names) or not known["ordinary_s"]:
            continue
        yield _estimated(
            f"{prefix}/break_even.c{region['concurrency']}",
            "progress.break_even",
            known,
            break_even_progress(**known),
            unit="tokens per round",
            source="progress at which a round takes as long as ordinary decoding",
        )


def _estimated(
    name: str, equation: str, inputs: Mapping[str, Any], value: float, **more: str
) -> dict[str, Any]:
    return Claim(name, equation, inputs, float(value), status="estimated", **more).to_dict()


def _row(
    name: str,
    equation: str,
    inputs: Mapping[str, Any],
    value: object,
    unit: str,
    *,
    status: str,
    source: str,
) -> dict[str, Any]:
    return {
        "id": name,
        "equation": equation,
        "inputs": dict(inputs),
        "value": value,
        "unit": unit,
        "status": status,
        "source": source,
    }
