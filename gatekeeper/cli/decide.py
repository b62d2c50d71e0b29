"""``gatekeeper decide``: enable or bypass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["decide"]


@click.command()
@click.argument("route")
@as_json_option
def decide(route: str, *, as_json: bool) -> None:
    """Print the decision of ROUTE: the lease that gateways get.

    Exit status 0 for enable, if only for the targeting keys that a rollout has let in; 1 for bypass.
    """
    from gatekeeper.cli.http import client, segment
    from gatekeeper.cli.next_steps import next_steps
    from gatekeeper.core.lease import in_force

    with client() as http:
        wire = http.get(f"/v1/routes/{segment(route)}/decision").json()
        lease = in_force(wire)
        steps = [] if as_json else next_steps(http, lease)
    if as_json:
        print_document(wire)
    else:
        window = f", gamma {lease['gamma']}" if lease["gamma"] else ""
        click.echo(f"{route}: {lease['action']}{window} ({lease['reason']})")
        click.echo(printable(lease["explanation"]))
        for line in (_standing(lease), *steps):
            click.echo(line)
    if lease["action"] != "enable":
        sys.exit(1)


def _standing(lease: Mapping[str, Any]) -> str:
    """Since when it is decided so, and how long that stands; what rests on nothing expires never."""
    from gatekeeper.reports.number_forms import count
    from gatekeeper.reports.route_report_gates import moment

    expires = lease["evidence_expires_at"]
    until = (
        f"no evidence to expire: bypass stands {_until(lease)}"
        if expires is None
        else f"its evidence expires at {moment(expires)}"
    )
    _, number = lease["version"]
    return (
        f"decided at {moment(lease['decided_at'])}, the server's decision {count(number)}; {until}"
    )


def _until(lease: Mapping[str, Any]) -> str:
    """What ends a bypass: gates that pass, or the value where they have passed already."""
    from gatekeeper.cli.next_steps import unpriced

    if lease["reason"] == "value_negligible":
        return "until the value exceeds the policy's minimum"
    if unpriced(lease):
        return "until tasks are priced"
    passed = all(
        row["state"] == "current" and row["outcome"] == "PASS"
        for row in lease["gates"]
        if row["mandatory"]
    )
    if passed and lease["reason"] == "insufficient_evidence" and lease["value"] is not None:
        return "until the low end of the value exceeds the policy's minimum"
    return "until gates pass"
