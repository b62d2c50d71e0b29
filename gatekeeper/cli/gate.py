"""``gatekeeper gate``: plan, start, follow and cancel gate runs."""

from __future__ import annotations

import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table

if TYPE_CHECKING:
    import httpx

__all__ = ["gate"]

_POLL_S = 0.5
_GATES = ("equivalence", "serving", "outcome")
_RUNNABLE = ("equivalence", "serving")
_OVER = ("finished", "failed", "cancelled")


@click.group()
def gate() -> None:
    """Plan, start, follow and cancel gate runs."""


@gate.command()
@click.argument("route")
@click.argument("name", metavar="[GATE]", required=False, type=click.Choice(_GATES))
@click.option("--plan", "planned", is_flag=True, help="Only print minutes, tokens and power.")
@click.option("--wait", is_flag=True, help="Follow to the end; exit 1 unless everything passes.")
@click.option("--seed", type=click.IntRange(0), help="Draw other requests than the policy's seed.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True)
@as_json_option
def run(
    route: str,
    name: str | None,
    *,
    planned: bool,
    wait: bool,
    seed: int | None,
    priority: int,
    as_json: bool,
) -> None:
    """Run GATE for what ROUTE serves now; without GATE, all that its policy demands.

    The plan is printed first; ``--plan`` ends there. With ``--json`` and no GATE the answer lists
    one item for each gate.
    """
    from gatekeeper.cli.http import client

    parameters = {} if seed is None else {"seed": seed}
    with client() as http:
        bodies = [
            {"route": route, "gate": gate, "parameters": parameters, "priority": priority}
            for gate in ([name] if name else _demanded(http, route))
        ]
        plans = [
            http.post("/v1/gate-runs", params={"plan": "true"}, json=body).json() for body in bodies
        ]
        if not as_json:
            for plan in plans:
                _print_plan(plan)
        if planned:
            views = plans
        else:
            keys = ({"Idempotency-Key": secrets.token_hex(16)} for _ in bodies)
            views = [
                http.post("/v1/gate-runs", json=body, headers=key).json()
                for body, key in zip(bodies, keys, strict=True)
            ]
        if wait and not planned:
            views = [_follow(http, view["id"], quiet=as_json) for view in views]
    if as_json:
        print_document(views[0] if name else {"items": views})
    elif not planned:
        for view in views:
            if wait:
                _print_run(view)
            else:
                click.echo(f"run {view['id']} waits for {view['waiting_for']}")
    if wait and not planned and any(view["outcome"] != "PASS" for view in views):
        sys.exit(1)


def _demanded(http: httpx.Client, route: str) -> list[str]:
    """Gates that the route's policy demands and a worker can run."""
    from gatekeeper.cli.http import segment

    policy = http.get(f"/v1/routes/{segment(route)}").json()["policy"]
    document = http.get(f"/v1/policies/{segment(policy)}").json()["document"]
    return [gate for gate in document["mandatory_gates"] if gate in _RUNNABLE]


def _print_plan(plan: dict[str, Any]) -> None:
    minutes = "unknown" if plan.get("minutes") is None else f"{plan['minutes']:.1f}"
    click.echo(f"plan: {plan['gate']} of {plan['route']}, policy {plan['policy']}")
    click.echo(f"  minutes: {minutes} (speeds {plan['rates']})")
    skip = {"gate", "route", "policy", "minutes", "rates", "artifact"}
    for key, value in plan.items():
        if key not in skip:
            click.echo(f"  {key.replace('_', ' ')}: {value}")


def _follow(http: httpx.Client, run_id: str, *, quiet: bool) -> dict[str, Any]:
    shown = ""
    while True:
        view: dict[str, Any] = http.get(f"/v1/gate-runs/{run_id}").json()
        line = _status(view)
        if line != shown and not quiet:
            click.echo(line)
            shown = line
        if view["state"] in _OVER:
            return view
        time.sleep(_POLL_S)


def _status(view: dict[str, Any]) -> str:
    progress = view["progress"]
    if view["state"] == "pending":
        return f"pending: waits for {view['waiting_for']}"
    if view["state"] != "running" or progress is None:
        return str(view["state"])
    left = progress.get("seconds_left")
    rest = "" if left is None else f", about {left:.0f} s left"
    return f"running: {progress['phase']} {progress.get('done')}/{progress.get('total')}{rest}"


def _print_run(view: dict[str, Any]) -> None:
    click.echo(f"run {view['id']}: {view['gate']} of {view['route']} {view['state']}")
    if view["error"]:
        click.echo(f"  {view['error']}")
    result = view.get("result")
    if result:
        click.echo(f"  {result['outcome']}")
        for part in result["parts"]:
            click.echo(f"  {part['outcome']:<12} {part['name']}: {part['detail']}")
        if result["still_needed"]:
            click.echo(f"  still needed: {result['still_needed']}")


@gate.command("list")
@click.option("--route", help="Only this route's.")
@click.option("--state", type=click.Choice(["pending", "running", *_OVER]), help="Only these.")
@as_json_option
def list_(route: str | None, state: str | None, *, as_json: bool) -> None:
    """List runs, newest first."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/gate-runs", route=route, state=state)
    if as_json:
        print_document({"items": items})
        return
    columns = {n: n for n in ("id", "route", "gate", "state", "outcome", "attempt", "owner")}
    print_table(items, columns, "no runs")


@gate.command()
@click.argument("run_id", metavar="ID")
@as_json_option
def show(run_id: str, *, as_json: bool) -> None:
    """Print the run ID with its result."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        view = http.get(f"/v1/gate-runs/{segment(run_id)}").json()
    if as_json:
        print_document(view)
    else:
        _print_run(view)


@gate.command()
@click.argument("run_id", metavar="ID")
@as_json_option
def cancel(run_id: str, *, as_json: bool) -> None:
    """Cancel the run ID, or ask its worker to stop."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        view = http.post(f"/v1/gate-runs/{segment(run_id)}/cancel").json()
    if as_json:
        print_document(view)
    else:
        word = "cancelled" if view["state"] == "cancelled" else "asked to stop"
        click.echo(f"run {run_id}: {word}")
