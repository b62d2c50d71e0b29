"""What to type next for a route in bypass: the gates that its decision lacks, as commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gatekeeper.core.running_pair import SERVER_GATES, is_running_pair
from gatekeeper.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

__all__ = ["next_steps", "open_texts"]


def next_steps(http: httpx.Client, lease: Mapping[str, Any]) -> list[str]:
    """Lines for the gates that a decision misses or finds expired; none where it misses none."""
    wanted = [
        row["gate"]
        for row in lease["gates"]
        if row["mandatory"] and row["state"] in {"missing", "expired"}
    ]
    if not wanted:
        return []
    from gatekeeper.cli.http import segment

    artifact = http.get(f"/v1/artifacts/{segment(lease['artifact'])}").json()["document"]
    return lines(lease["route"], wanted, on_servers=is_running_pair(artifact))


def lines(route: str, gates: list[str], *, on_servers: bool) -> list[str]:
    """The command for each gate; servers that already run cannot be put through every one."""
    name = shlex.quote(route)
    found = [
        f"to run {gate}: gatekeeper gate run {name} {gate} --wait"
        for gate in gates
        if not on_servers or gate in SERVER_GATES
    ]
    if on_servers and set(gates) - set(SERVER_GATES):
        pairs = "pairs of your own tasks: gatekeeper outcome check PAIRS.csv"
        files = (
            f"gatekeeper artifact register pair.yaml, gatekeeper route set {name}-files --slice "
            f"SLICE --artifact DIGEST --policy POLICY, gatekeeper gate run {name}-files --wait"
        )
        found += [
            f"outcome cannot be measured on servers that already run; {pairs}",
            f"to have it measured here, register the pair's files: {files}",
        ]
    return [printable(line) for line in found]


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
    return printable(
        "to have every token judged (SOURCE: the model files that both have loaded): gatekeeper "
        f"gate run --route {shlex.quote(view['route'])}-files --baseline-url {baseline} "
        f"--candidate-url {candidate} --target SOURCE --wait"
    )
