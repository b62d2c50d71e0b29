"""``gatekeeper gate``: plan, start, follow and cancel gate runs."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table
from gatekeeper.cli.waiting import waiting

if TYPE_CHECKING:
    import httpx

__all__ = ["gate"]

_POLL_S = 0.5
_TELL_S = 10.0
"""A line at least so often: whoever waits sees that something moves, or what does not."""
_WHOLE = 1000
"""From here on three digits are whole numbers."""

_RUNS = "/v1/gate-runs"
_GATES = ("equivalence", "serving", "outcome")
_OVER = ("finished", "failed", "cancelled")


@click.group()
def gate() -> None:
    """Plan, start, follow and cancel gate runs."""


@gate.command()
@click.argument("route", required=False)
@click.argument("name", metavar="[GATE]", required=False, type=click.Choice(_GATES))
@click.option("--route", "route_option", metavar="ROUTE", help="ROUTE, as an option.")
@click.option("--baseline-url", metavar="URL", help="A server that already runs and decodes alone.")
@click.option("--candidate-url", metavar="URL", help="The same model's server that speculates.")
@click.option("--model", help="Model's name at both servers, where they have several.")
@click.option("--gamma", type=click.IntRange(1), help="The candidate's window, where known.")
@click.option(
    "--target",
    metavar="SOURCE",
    help="The model files that both servers have loaded (file:, hf: or pypi:): their tokens are "
    "then scored by an engine here.",
)
@click.option("--policy", help="Policy that judges the two servers; demo otherwise.")
@click.option("--slice", "slice_name", help="Workload of the two servers; tool_calls otherwise.")
@click.option("--plan", "planned", is_flag=True, help="Only print minutes, tokens and power.")
@click.option("--wait", is_flag=True, help="Follow to the end; exit 1 unless everything passes.")
@click.option("--html", type=click.Path(path_type=Path), help="With --wait: the report, as a page.")
@click.option("--seed", type=click.IntRange(0), help="Draw other requests than the policy's seed.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True)
@as_json_option
def run(
    route: str | None,
    name: str | None,
    *,
    route_option: str | None,
    baseline_url: str | None,
    candidate_url: str | None,
    model: str | None,
    gamma: int | None,
    target: str | None,
    policy: str | None,
    slice_name: str | None,
    planned: bool,
    wait: bool,
    html: Path | None,
    seed: int | None,
    priority: int,
    as_json: bool,
) -> None:
    """Run GATE for what ROUTE serves now; without GATE, all that its policy demands.

    The plan is printed first; --plan ends there. With --json and no GATE the answer lists one item
    for each gate.

    With --baseline-url and --candidate-url the two servers are registered and ROUTE is created
    where there is none; --plan then asks neither of them and needs no server of gatekeeper's.
    """
    from gatekeeper.cli.http import client
    from gatekeeper.cli.report import write_report
    from gatekeeper.cli.servers import plans as plans_of_pair
    from gatekeeper.cli.servers import register, running_pair

    if html is not None and not wait:
        raise click.UsageError("--html needs --wait: a report is of what was measured.")
    route, name = _route_and_gate(route, name, route_option)
    engine = "the engine that reads the target's files" if target else "the servers' engine"
    with waiting(f"{engine} to load", quiet=as_json or baseline_url is None):
        pair = running_pair(
            baseline_url,
            candidate_url,
            model=model,
            gamma=gamma,
            target=target,
            policy=policy,
            slice_name=slice_name,
        )
    if pair is not None and planned:
        with waiting("the plan", quiet=as_json):
            plans = plans_of_pair(pair, route, [name] if name else [])
        _show_plans(plans, name, as_json=as_json)
        return
    parameters = {} if seed is None else {"seed": seed}
    with client() as http:
        with waiting(f"the server at {_server(http)} to look up {route}", quiet=as_json):
            if pair is not None:
                register(http, pair, route)
            gates = [name] if name else _demanded(http, route, on_servers=pair is not None)
        bodies = [
            {"route": route, "gate": gate, "parameters": parameters, "priority": priority}
            for gate in gates
        ]
        plans = [_plan(http, body, quiet=as_json) for body in bodies]
        if planned:
            _show_plans(plans, name, as_json=as_json)
            return
        if not as_json:
            _show_plans(plans, name, as_json=False)
        views = [_queue(http, body) for body in bodies]
        decision = ""
        if wait:
            views = [_follow(http, view["id"], quiet=as_json) for view in views]
            decision = "" if pair is None else _decision(http, route)
            if html is not None:
                write_report(http, route, html=html, quiet=as_json)
    if as_json:
        print_document(views[0] if name else {"items": views})
    else:
        _show_runs(views, decision, followed=wait)
    if wait and any(view["outcome"] != "PASS" for view in views):
        sys.exit(1)


def _server(http: httpx.Client) -> str:
    return str(http.base_url).rstrip("/")


def _plan(http: httpx.Client, body: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Ask for a plan: the server loads workload and statistics first, which may take a while."""
    from gatekeeper.cli.http import TIMEOUT_S

    what = f"the server at {_server(http)} to plan {body['gate']}"
    with waiting(what, quiet=quiet, most_s=TIMEOUT_S):
        answer = http.post("/v1/gate-runs", params={"plan": "true"}, json=body)
    plan: dict[str, Any] = answer.json()
    return plan


def _queue(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    key = {"Idempotency-Key": secrets.token_hex(16)}
    view: dict[str, Any] = http.post("/v1/gate-runs", json=body, headers=key).json()
    return view


def _show_runs(views: list[dict[str, Any]], decision: str, *, followed: bool) -> None:
    for view in views:
        if followed:
            _print_run(view)
        else:
            click.echo(f"run {view['id']} waits for {view['waiting_for']}")
    if decision:
        click.echo(decision)


def _route_and_gate(
    route: str | None, name: str | None, option: str | None
) -> tuple[str, str | None]:
    """ROUTE and GATE from the arguments, the first of which --route takes the place of."""
    if option is None:
        if route is None:
            raise click.UsageError("Missing argument 'ROUTE'.", click.get_current_context())
        return route, name
    if route is None or name is None:
        # with --route the one argument left can only be the gate
        if route is not None and route not in _GATES:
            raise click.UsageError(
                f"{route!r} is neither a gate nor needed beside --route.",
                click.get_current_context(),
            )
        return option, route
    raise click.UsageError("ROUTE is given twice.", click.get_current_context())


def _decision(http: httpx.Client, route: str) -> str:
    """What the route does now, what would change that, and where the whole report is."""
    from gatekeeper.cli.http import segment
    from gatekeeper.cli.next_steps import next_steps
    from gatekeeper.core.lease import in_force

    lease = in_force(http.get(f"/v1/routes/{segment(route)}/decision").json())
    lines = (
        f"{route}: {lease['action']} ({lease['reason']}): {lease['explanation']}",
        *next_steps(http, lease),
        f"the whole report: gatekeeper report {route}",
    )
    return "\n".join(lines)


def _show_plans(plans: list[dict[str, Any]], name: str | None, *, as_json: bool) -> None:
    if as_json:
        print_document(plans[0] if name else {"items": plans})
        return
    for plan in plans:
        _print_plan(plan)


def _demanded(http: httpx.Client, route: str, *, on_servers: bool) -> list[str]:
    """Gates that the route's policy demands, in the order in which a decision reads them."""
    from gatekeeper.cli.http import segment

    policy = http.get(f"/v1/routes/{segment(route)}").json()["policy"]
    document = http.get(f"/v1/policies/{segment(policy)}").json()["document"]
    if on_servers:
        from gatekeeper.cli.servers import demanded_of

        return demanded_of(document["mandatory_gates"])
    return [gate for gate in _GATES if gate in document["mandatory_gates"]]


def _print_plan(plan: dict[str, Any]) -> None:
    minutes = "unknown" if plan.get("minutes") is None else _said(float(plan["minutes"]))
    click.echo(f"plan: {plan['gate']} of {plan['route']}, policy {plan['policy']}")
    click.echo(f"  minutes: {minutes} (speeds {plan['rates']})")
    skip = {"gate", "route", "policy", "minutes", "rates", "artifact"}
    for key, value in plan.items():
        if key not in skip and value is not None:
            click.echo(f"  {key.replace('_', ' ')}: {_said(value)}")


def _said(value: object) -> str:
    """Say a figure with three digits, a number of things whole, alternatives as what each holds for."""
    from gatekeeper.reports.number_forms import count, digits

    if isinstance(value, dict):
        return ", ".join(f"{_said(item)} at {name}" for name, item in value.items())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return count(value) if isinstance(value, int) or abs(value) >= _WHOLE else digits(value, 3)


def _follow(http: httpx.Client, run_id: str, *, quiet: bool) -> dict[str, Any]:
    """Wait for the run's end; on stderr say what it waits for or how far it is."""
    stage, told, began = "", 0.0, time.monotonic()
    while True:
        view: dict[str, Any] = http.get(f"/v1/gate-runs/{run_id}").json()
        now = time.monotonic()
        reached = f"{view['state']} {(view['progress'] or {}).get('phase')}"
        if not quiet and (reached != stage or now - told >= _TELL_S):
            line = _waits(http, view) if view["state"] == "pending" else _status(view)
            click.echo(f"{view['gate']} after {now - began:.0f} s: {line}", err=True)
            stage, told = reached, now
        if view["state"] in _OVER:
            return view
        time.sleep(_POLL_S)


def _waits(http: httpx.Client, view: dict[str, Any]) -> str:
    """Where a pending run stands in the queue, and whether any worker is at work."""
    from gatekeeper.cli.http import pages
    from gatekeeper.reports.number_forms import count

    place = (-view["priority"], view["id"])
    ahead = sum((-r["priority"], r["id"]) < place for r in pages(http, _RUNS, state="pending"))
    busy = [run["id"] for run in pages(http, _RUNS, state="running")]
    queue = f"pending, {count(ahead)} in the queue before it"
    if busy:
        return f"{queue}; workers are at {', '.join(busy)}"
    return f"{queue}; no worker has taken a run. It waits for {view['waiting_for']}"


def _status(view: dict[str, Any]) -> str:
    progress = view["progress"]
    if view["state"] != "running" or progress is None:
        return str(view["state"])
    left = progress.get("seconds_left")
    rest = "" if left is None else f", about {left:.0f} s left"
    return f"running: {progress['phase']} {progress.get('done')}/{progress.get('total')}{rest}"


def _print_run(view: dict[str, Any]) -> None:
    from gatekeeper.cli.next_steps import open_texts
    from gatekeeper.reports.number_forms import count

    click.echo(f"run {view['id']}: {view['gate']} of {view['route']} {view['state']}")
    if view["error"]:
        click.echo(f"  {view['error']}")
    result = view.get("result")
    if result:
        click.echo(f"  {result['outcome']}")
        for part in result["parts"]:
            click.echo(f"  {part['outcome']:<12} {part['name']}: {part['detail']}")
        scoring = result["summary"].get("scoring")
        if scoring:
            tokens = "unknown" if scoring["tokens"] is None else count(scoring["tokens"])
            click.echo(f"  judged by: {scoring['rule']}, {tokens} sampled tokens; {scoring['why']}")
        if result["still_needed"]:
            click.echo(f"  still needed: {result['still_needed']}")
        more = open_texts(view)
        if more is not None:
            click.echo(f"  {more}")
        _print_cost(result["summary"].get("cost") or {})


def _print_cost(cost: dict[str, dict[str, float]]) -> None:
    """What the parts of the equivalence gate took by the clock, beside decoding."""
    shown = [f"{name.replace('_', ' ')} {part['ms_per_token']:.3g}" for name, part in cost.items()]
    if shown:
        click.echo(f"  cost, ms a token: {', '.join(shown)}")


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
@click.argument("run_id", metavar="RUN")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write Markdown.")
@as_json_option
def explain(run_id: str, html: Path | None, markdown: Path | None, *, as_json: bool) -> None:
    """Say in plain words what the equivalence run RUN found.

    What was claimed and tested, the verdict, the first difference, the tokens used and still
    needed, what the test cannot tell, and what to do now. With --html or --markdown that goes into
    the file, with --json the document behind it is printed.
    """
    from gatekeeper.cli.http import client
    from gatekeeper.cli.report import print_report, write_files
    from gatekeeper.reports.plain_verdict import lay_out

    with client() as http:
        document = _explained(http, run_id)
    laid_out = lay_out(document)
    write_files(laid_out, html=html, markdown=markdown, quiet=as_json)
    if as_json:
        print_document({"headline": laid_out.headline, **document})
    elif html is None and markdown is None:
        print_report(laid_out)


def _explained(http: httpx.Client, run_id: str) -> dict[str, Any]:
    """All that the page of a run rests on; prompts are those of the workload as shipped here."""
    from datetime import UTC, datetime

    from gatekeeper import workloads
    from gatekeeper.cli.http import pages, segment
    from gatekeeper.reports.plain_verdict import collect

    view = http.get(f"/v1/gate-runs/{segment(run_id)}").json()
    artifact, policy = (
        http.get(f"/v1/{kind}/{view[name]}").json()["document"]
        for kind, name in (("artifacts", "artifact"), ("policies", "policy"))
    )
    shipped = workloads.prompts(view["slice"]) if view["slice"] in workloads.SLICES else ()
    return collect(
        view,
        artifact,
        policy,
        pages(http, "/v1/claims", run=view["id"]),
        prompts={prompt.id: prompt.text for prompt in shipped},
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


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
