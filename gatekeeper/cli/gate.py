"""``gatekeeper gate``: plan, start, follow and cancel gate runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.following import OVER
from gatekeeper.cli.show import as_json_option, print_document, print_table
from gatekeeper.cli.typed import typed
from gatekeeper.cli.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

__all__ = ["gate"]

_GATES = ("equivalence", "serving", "outcome")


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
@click.option("--wait", is_flag=True, help="Follow to the end; exit 0 only for PASS.")
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

    The plan is printed first; --plan ends there. A run that is pending or running already is not
    queued again: the command attaches to it. With --json and no GATE the answer lists one item for
    each gate.

    With --wait, exit status 0 means that GATE passed or, without GATE, every gate that the route
    must pass, none missing; else 1, and the answer says which are lacking.

    With --baseline-url and --candidate-url the two servers are registered and ROUTE is created
    where there is none; --plan then only tries whether both answer, and needs no server of
    gatekeeper's.
    """
    from gatekeeper.cli.http import client
    from gatekeeper.cli.report import write_report
    from gatekeeper.cli.servers import plans as plans_of_pair
    from gatekeeper.cli.servers import register, running_pair, silent

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
            warnings = silent(pair)
        _show_plans(plans, name, as_json=as_json)
        for line in warnings:
            click.echo(line, err=True)
        return
    parameters = {} if seed is None else {"seed": seed}
    with client() as http:
        with waiting(f"the server at {_server(http)} to look up {route}", quiet=as_json):
            if pair is not None:
                register(http, pair, route)
            gates = [name] if name else _demanded(http, route)
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
        views = _run(http, bodies, _again(route, name, seed), wait=wait, quiet=as_json)
        lacking, lines = _verdict(http, route, name, on_pair=pair is not None) if wait else ([], [])
        if html is not None:
            write_report(http, route, html=html, quiet=as_json)
    if as_json:
        more = {"lacking": lacking} if wait else {}
        print_document(views[0] if name else {"items": views, **more})
    else:
        _show_runs(views, lines, followed=wait)
    if wait and (lacking or any(view["outcome"] != "PASS" for view in views)):
        sys.exit(1)


def _run(
    http: httpx.Client, bodies: list[dict[str, Any]], again: str, *, wait: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Queue the runs, or attach to those under way; with ``wait`` return them as they ended."""
    from gatekeeper.cli.following import coming_back, follow
    from gatekeeper.cli.queueing import queue, served

    taken = served(http, bodies[0]["route"]).taken if bodies else {}
    views: dict[str, dict[str, Any]] = {}
    with coming_back(views, again):
        for body in bodies:
            view = queue(http, body, taken, quiet=quiet)
            views[view["id"]] = view
        if wait:
            for run_id in list(views):
                views[run_id] = follow(http, run_id, quiet=quiet)
    return list(views.values())


def _again(route: str, name: str | None, seed: int | None) -> str:
    """The command that waits for the same runs."""
    words = ["gatekeeper", "gate", "run", route, *([name] if name else [])]
    return shlex.join([*words, *(() if seed is None else ("--seed", str(seed))), "--wait"])


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


def _show_runs(views: list[dict[str, Any]], lines: list[str], *, followed: bool) -> None:
    for view in views:
        if followed:
            _print_run(view)
        elif view["state"] == "pending":
            click.echo(f"run {view['id']} waits for {view['waiting_for']}")
    for line in lines:
        click.echo(line)


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


def _lease(http: httpx.Client, route: str) -> Mapping[str, Any]:
    from gatekeeper.cli.http import segment
    from gatekeeper.core.lease import in_force

    return in_force(http.get(f"/v1/routes/{segment(route)}/decision").json())


def _verdict(
    http: httpx.Client, route: str, name: str | None, *, on_pair: bool
) -> tuple[list[str], list[str]]:
    """Gates that the route lacks where all were asked for, and the lines that say what follows."""
    from gatekeeper.cli.next_steps import gates_lacking, next_steps

    lease = _lease(http, route)
    lacking = [] if name else gates_lacking(lease)
    if not lacking and not on_pair:
        return [], []
    unmet = f"no success: of the gates that {route} must pass, {', '.join(lacking)}"
    return lacking, [
        f"{route}: {lease['action']} ({lease['reason']}): {lease['explanation']}",
        *([unmet] if lacking else []),
        *next_steps(http, lease),
        typed(f"the whole report: gatekeeper report {shlex.quote(route)}"),
    ]


def _show_plans(plans: list[dict[str, Any]], name: str | None, *, as_json: bool) -> None:
    from gatekeeper.cli.plan_words import print_limits, print_plan

    if as_json:
        print_document(plans[0] if name else {"items": plans})
        return
    for plan in plans:
        print_plan(plan)
    print_limits(plans)


def _demanded(http: httpx.Client, route: str) -> list[str]:
    """Gates that the route must pass, without those that servers cannot be put through."""
    from gatekeeper.cli.queueing import served
    from gatekeeper.cli.servers import demanded_of
    from gatekeeper.core.running_pair import is_running_pair

    demanded = [row["gate"] for row in _lease(http, route)["gates"] if row["mandatory"]]
    if is_running_pair(served(http, route).artifact):
        return demanded_of(demanded)
    return [gate for gate in _GATES if gate in demanded]


def _print_run(view: dict[str, Any]) -> None:
    from gatekeeper.cli.next_steps import open_texts
    from gatekeeper.reports.number_forms import count

    click.echo(f"run {view['id']}: {view['gate']} of {view['route']} {view['state']}")
    if view["error"]:
        click.echo(f"  {view['error']}")
    result = view.get("result")
    if result:
        click.echo(f"  {result['outcome']}{_reach(result)}")
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


def _reach(result: Mapping[str, Any]) -> str:
    """Up to which load a serving gate passed, where not all of its levels did.

    The lowest level decides the gate, and each one above it only how far the verdict reaches.
    """
    most = (result["summary"].get("envelope") or {}).get("max_concurrency")
    levels = [part for part in result["parts"] if part["name"].startswith("concurrency ")]
    if result["outcome"] != "PASS" or all(part["outcome"] == "PASS" for part in levels) or not most:
        return ""
    return (
        f" up to concurrency {most}: the lowest level has to pass and did; a level that did not bounds "
        "the load at which the route may speculate, and takes nothing from the verdict"
    )


def _print_cost(cost: dict[str, dict[str, float]]) -> None:
    """What the parts of the equivalence gate took by the clock, beside decoding."""
    shown = [f"{name.replace('_', ' ')} {part['ms_per_token']:.3g}" for name, part in cost.items()]
    if shown:
        click.echo(f"  cost, ms a token: {', '.join(shown)}")


@gate.command("list")
@click.option("--route", help="Only this route's.")
@click.option("--state", type=click.Choice(["pending", "running", *OVER]), help="Only these.")
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
