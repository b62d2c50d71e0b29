"""``gatekeeper route``: what each route serves, and which calls belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.show import (
    as_json_option,
    print_document,
    print_table,
    read_document,
    short_digest,
    unreadable,
)
from gatekeeper.errors import InputError, TraceError

if TYPE_CHECKING:
    from gatekeeper.core.traces import Trace

__all__ = ["route"]


@click.group()
def route() -> None:
    """Say what each route serves, and under which policy."""


@route.command("set")
@click.argument("name")
@click.option("--slice", "slice_name", help="Workload slice of the route's text.")
@click.option("--artifact", help="Digest or alias of what it serves.")
@click.option("--policy", help="Policy that decides it.")
@click.option("--economics", help="What its tasks are priced by; named like the policy otherwise.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="YAML with slice, artifact, policy, rules, slo, sampling, task_rules, economics, rollout; "
    "options win.",
)
@as_json_option
def set_(
    name: str,
    *,
    slice_name: str | None,
    artifact: str | None,
    policy: str | None,
    economics: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Create or replace the route NAME."""
    from gatekeeper.cli.http import client, segment

    body = {} if file is None else read_document(file)
    given = {"slice": slice_name, "artifact": artifact, "policy": policy}
    body |= {key: value for key, value in given.items() if value is not None}
    if economics is not None:
        body["economics"] = economics
    missing = [key for key in given if key not in body]
    if missing:
        options = " ".join(f"--{key} {key.upper()}" for key in missing)
        raise InputError(
            "is missing" if len(missing) == 1 else "are missing",
            field=", ".join(missing),
            remedy=f"give {options}, or put it in --file (gatekeeper artifact list has digests, "
            "gatekeeper policy list policies)",
        )
    with client() as http:
        stored = http.put(f"/v1/routes/{segment(name)}", json=body).json()
    if as_json:
        print_document(stored)
    else:
        click.echo(f"{name}: {stored['artifact']} under policy {stored['policy']}")


@route.command("list")
@as_json_option
def list_(*, as_json: bool) -> None:
    """List routes with their decisions."""
    from gatekeeper.cli.http import client, pages
    from gatekeeper.core.lease import in_force

    with client() as http:
        items = pages(http, "/v1/routes")
        leases = {
            d["route"]: in_force(d) for d in http.get("/v1/decisions/snapshot").json()["items"]
        }
    if as_json:
        print_document({"items": items})
        return
    rows = [
        {
            **i,
            "artifact": short_digest(i["artifact"]),
            "action": leases[i["name"]]["action"],
            "reason": leases[i["name"]]["reason"],
        }
        for i in items
        if i["name"] in leases
    ]
    columns = {n: n for n in ("name", "slice", "artifact", "policy", "action", "reason")}
    print_table(rows, columns, "no routes; create one with gatekeeper route set")


@route.command()
@click.argument("name")
@as_json_option
def show(name: str, *, as_json: bool) -> None:
    """Print the route NAME."""
    del as_json  # a route is a document either way
    from gatekeeper.cli.http import client, segment

    with client() as http:
        print_document(http.get(f"/v1/routes/{segment(name)}").json())


@route.command()
@click.argument("file", type=click.Path(path_type=Path))
@as_json_option
def test(file: Path, *, as_json: bool) -> None:
    """Say for every model call of the trace FILE which route it belongs to, and why.

    A call that names an existing route in gatekeeper.route belongs to it; otherwise routes are
    tried by name, each with its rules in order. Exit status 0 whatever they match.
    """
    from gatekeeper.cli.http import client, pages
    from gatekeeper.core.routing import Rule
    from gatekeeper.core.task_assignment import RoutedRules, Routing, assign
    from gatekeeper.core.tasks import build_task

    found = _traces(file)
    with client() as http:
        routes = pages(http, "/v1/routes")
    routing = Routing(
        tuple(
            RoutedRules(one["name"], tuple(Rule.from_dict(rule) for rule in one["rules"]))
            for one in routes
        )
    )
    rows = [
        {"trace": trace.trace_id, "span": call.span_id, "route": call.route, "why": call.why}
        for trace in found
        for call in assign(build_task(trace), routing)
    ]
    unmatched = sum(row["route"] is None for row in rows)
    if as_json:
        print_document({"calls": rows, "unmatched": unmatched})
    else:
        columns = {"span": "span", "route": "route", "why": "why"}
        print_table(rows, columns, f"{file} holds no model call")
        if unmatched:
            from gatekeeper.reports.number_forms import count

            click.echo(
                f"{count(unmatched)} of {count(len(rows))} calls belong to no route: never priced"
            )


def _traces(file: Path) -> tuple[Trace, ...]:
    from gatekeeper import plugins
    from gatekeeper.core.trace_documents import read_traces

    try:
        data = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error
    try:
        return read_traces(data, list(plugins.load_all("gatekeeper.traces").values()))
    except TraceError as error:
        raise TraceError(error.about(str(file)), field="file", value=str(file)) from error
