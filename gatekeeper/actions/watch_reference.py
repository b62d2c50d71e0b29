"""What a live watch holds an engine against: the route's evidence, its policy, and what was gated."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from gatekeeper.core.running_pair import SERVERS_ENGINE
from gatekeeper.core.watch import DESIGN_EFFECT, Reference
from gatekeeper.core.watch_counts import ClusterSums, design_effect
from gatekeeper.core.watch_metrics import ENGINES
from gatekeeper.store import catalog, results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.store.database import Session
    from gatekeeper.store.records import ArtifactRecord, DecisionRecord, GateRecord, RouteRecord

__all__ = ["reference_of"]

_COMPARED = ("model", "owned_by", "version")
_COUNTED = ("accepted", "drafted", *ClusterSums.__dataclass_fields__)


def reference_of(
    session: Session, route: RouteRecord, artifact: ArtifactRecord, decision: DecisionRecord
) -> Reference:
    """Limits and measurements of the route's present evidence; unknown where there is none."""
    policy = catalog.current_policy(session, route.policy)
    governing: dict[str, GateRecord] = {}
    if policy is not None:
        governing = results.governing_results(
            session, route=route.name, artifact=artifact.digest, policy=policy.digest
        )
    serving = governing.get("serving")
    summary: Mapping[str, Any] = {} if serving is None else serving.document.get("summary") or {}
    measured, effect = (None, None) if serving is None else _measured(session, serving, summary)
    envelope = decision.document["envelope"]
    runs = [governing[gate].run for gate in ("equivalence", "serving") if gate in governing]
    return Reference(
        basis=" ".join(runs) or "none",
        measured=measured,
        design_effect=max(DESIGN_EFFECT, effect or 0.0),
        min_acceptance=envelope["min_acceptance"],
        max_memory_utilisation=envelope["max_memory_utilisation"],
        max_draft_queue=envelope["max_draft_queue"],
        expected=_expected(artifact.document, summary),
    )


def _measured(
    session: Session, serving: GateRecord, summary: Mapping[str, Any]
) -> tuple[tuple[float, float] | None, float | None]:
    """Range of acceptance over the load levels that passed, and the largest design effect there."""
    windows = summary.get("gamma_by_concurrency") or {}
    rates: list[float] = []
    effects: list[float] = []
    for row in results.rounds(session, run_id=serving.run):
        counts = row["counts"]
        passed = str(counts.get("concurrency")) in windows
        # a worker writes these: what is no count is left out
        if not passed or not all(type(counts.get(name)) is int for name in _COUNTED):
            continue
        accepted, drafted = counts["accepted"], counts["drafted"]
        if 0 <= accepted <= drafted and drafted:
            rates.append(accepted / drafted)
            sums = ClusterSums(**{name: counts[name] for name in ClusterSums.__dataclass_fields__})
            effect = design_effect(accepted, drafted, sums)
            effects += [] if effect is None else [effect]
    if not rates:
        # servers that run have no rounds of ours: their own totals stand in the summary
        for row in summary.get("acceptance_matrix") or ():
            rate = row.get("acceptance_rate")
            if str(row.get("concurrency")) in windows and rate is not None:
                rates.append(float(rate))
    return ((min(rates), max(rates)) if rates else None), max(effects, default=None)


def _expected(artifact: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, str]:
    """Readings of what was gated: as the gate read them back, or as the artifact names them."""
    engine = artifact["engine"]
    if engine["name"] == SERVERS_ENGINE:
        said = (summary.get("servers") or {}).get("candidate", {})
        found = {name: str(said[name]) for name in _COMPARED if name in said}
        if artifact["proposer"]["parameters"].get("model") is not None:
            # the name that was asked for may be an alias, which a look does not tell
            found.pop("model", None)
        if "weights" in said:
            found["weights"] = _digest(str(said["weights"]))
        return found
    found = {"engine": engine["name"]} if engine["name"] in ENGINES else {}
    if engine["name"] == "reference":
        weights = {"files": artifact["target"]["files"], "dtype": engine["dtype"]}
        found |= {
            "version": engine["version"],
            "weights": _digest(json.dumps(weights, sort_keys=True)),
        }
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
