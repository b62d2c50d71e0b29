"""Queue gate runs for ``gate run``: the same run is never queued twice over."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.following import RUNS
from gatekeeper.cli.http import pages, segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

__all__ = ["Served", "queue", "served"]


@dataclass(frozen=True)
class Served:
    """What a route serves now: its artifact, and what every run of it takes from the route."""

    artifact: Mapping[str, Any]
    taken: Mapping[str, Any]


def served(http: httpx.Client, route: str) -> Served:
    """Look up what a run of this route would be of, had it been queued now."""
    from gatekeeper.actions.catalog import covered_sampling

    found = http.get(f"/v1/routes/{segment(route)}").json()
    artifact = http.get(f"/v1/artifacts/{segment(found['artifact'])}").json()
    policy = http.get(f"/v1/policies/{segment(found['policy'])}").json()
    taken = {
        "slice": found["slice"],
        "artifact": artifact["digest"],
        "policy": policy["digest"],
        "sampling": covered_sampling(found["sampling"], artifact["document"], route=route),
        "slo": found["slo"],
    }
    return Served(artifact["document"], taken)


def queue(
    http: httpx.Client, body: Mapping[str, Any], taken: Mapping[str, Any], *, quiet: bool
) -> dict[str, Any]:
    """Attach to the pending or running run that ``body`` asks for, or queue it; say what was done."""
    view = _attached(http, body, taken)
    if view is not None:
        lines = [_attached_line(view, body["priority"])]
    else:
        key = {"Idempotency-Key": secrets.token_hex(16)}
        view = http.post(RUNS, json=dict(body), headers=key).json()
        lines = []
    lines += _goes_on(http, view)
    if not quiet:
        for line in lines:
            click.echo(line)
    return view


def _attached(
    http: httpx.Client, body: Mapping[str, Any], taken: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The run under way that is the same in everything that its result depends on; or None."""
    wanted = {**taken, "gate": body["gate"]}
    for state in ("running", "pending"):
        for view in pages(http, RUNS, route=body["route"], state=state):
            if (
                not view["cancel_requested"]
                and view["parameters"].get("seed") == body["parameters"].get("seed")
                and all(view[name] == value for name, value in wanted.items())
            ):
                return view
    return None


def _attached_line(view: Mapping[str, Any], priority: int) -> str:
    line = f"attached to run {view['id']}: this {view['gate']} run is {view['state']} already"
    if view["state"] == "pending" and view["priority"] < priority:
        line += f", with priority {view['priority']}"
    return line


def _goes_on(http: httpx.Client, view: Mapping[str, Any]) -> list[str]:
    """Whose evidence an equivalence run is judged on too."""
    from gatekeeper.reports.number_forms import count

    before = (view["parameters"].get("continues") or {}).get("run")
    if before is None:
        return []
    result = http.get(f"{RUNS}/{segment(before)}").json()["result"]
    tokens = ((result or {}).get("summary") or {}).get("tokens")
    amount = "" if tokens is None else f": {count(tokens)} tokens"
    return [f"run {view['id']} goes on with run {before}'s evidence{amount}"]
