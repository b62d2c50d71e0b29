"""What to type next for a route in bypass: the gates that its decision lacks, as commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gatekeeper.cli.typed import typed
from gatekeeper.core.policies import UNPRICED
from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.errors import printable
from gatekeeper.reports.gate_commands import (
    HOW_TO_PRICE,
    OUTCOME_REFUSED,
    files_route,
    outcome_elsewhere,
    run_command,
    runs_here,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

__all__ = [
    "gates_lacking",
    "lines",
    "next_steps",
    "open_texts",
    "pricing_steps",
    "unpriced",
]


def gates_lacking(lease: Mapping[str, Any]) -> list[str]:
    """Mandatory gates of the route that are no current PASS, each with what it is."""
    words = {"missing": "has not run", "expired": "has expired"}
    return [
        f"{row['gate']} {words.get(row['state'], 'is ' + str(row['outcome']))}"
        for row in lease["gates"]
        if row["mandatory"] and (row["state"], row["outcome"]) != ("current", "PASS")
    ]


def next_steps(http: httpx.Client, lease: Mapping[str, Any]) -> list[str]:
    """Lines for the gates that a decision misses or finds expired, or for tasks that are not priced."""
    wanted = [
        row["gate"]
        for row in lease["gates"]
        if row["mandatory"] and row["state"] in {"missing", "expired"}
    ]
    if not wanted:
        return pricing_steps(lease)
    from gatekeeper.cli.http import segment

    artifact = http.get(f"/v1/artifacts/{segment(lease['artifact'])}").json()["document"]
    return lines(lease["route"], wanted, on_servers=is_running_pair(artifact))


def lines(route: str, gates: list[str], *, on_servers: bool) -> list[str]:
    """The command for each gate; servers that already run cannot be put through every one."""
    found = [
        f"to run {gate}: {run_command(route, gate)} --wait"
        for gate in gates
        if runs_here(gate, on_servers=on_servers)
    ]
    if not all(runs_here(gate, on_servers=on_servers) for gate in gates):
        pairs, files = outcome_elsewhere(route)
        found += [f"{OUTCOME_REFUSED}; {pairs}", files]
    return [typed(printable(line)) for line in found]


def unpriced(lease: Mapping[str, Any]) -> bool:
    """Whether it is the value of the tasks alone that nobody knows: what the policy demands passed."""
    passed = all(
        row["state"] == "current" and row["outcome"] == "PASS"
        for row in lease["gates"]
        if row["mandatory"]
    )
    asked = UNPRICED in lease["explanation"]
    return passed and asked and lease["reason"] == "insufficient_evidence"


def pricing_steps(lease: Mapping[str, Any]) -> list[str]:
    """What shows the tasks that a pricing lacks; none where it lacks none."""
    if not unpriced(lease):
        return []
    listed = f"gatekeeper traces list --route {shlex.quote(lease['route'])}"
    return [typed(printable(f"to see the tasks there are: {listed}")), HOW_TO_PRICE]


def open_texts(view: Mapping[str, Any]) -> str | None:
    """How to have every token of two servers judged, where their texts alone left it open."""
    result = view.get("result") or {}
    summary = result.get("summary") or {}
    rule = (summary.get("scoring") or {}).get("rule")
    if result.get("outcome") != "INCONCLUSIVE" or rule != "two-sample":
        return None  # arms of an engine are words, those of servers documents
    urls = [arm.get("url") for arm in summary["arms"].values()]
    if None in urls:
        return None
    baseline, candidate = (shlex.quote(str(url)) for url in urls)
    line = printable(
        "to have every token judged (SOURCE: the model files that both have loaded): gatekeeper "
        f"gate run --route {shlex.quote(files_route(view['route']))} --baseline-url {baseline} "
        f"--candidate-url {candidate} --target SOURCE --wait"
    )
    return typed(line)
