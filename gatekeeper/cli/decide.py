"""``gatekeeper decide``: enable or bypass."""

from __future__ import annotations

import sys

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import printable

__all__ = ["decide"]


@click.command()
@click.argument("route")
@as_json_option
def decide(route: str, *, as_json: bool) -> None:
    """Print the decision of ROUTE: the lease that gateways get.

    Exit status 0 for enable, 1 for bypass.
    """
    from gatekeeper.cli.http import client, segment

    with client() as http:
        lease = http.get(f"/v1/routes/{segment(route)}/decision").json()
    if as_json:
        print_document(lease)
    else:
        window = f", gamma {lease['gamma']}" if lease["gamma"] else ""
        click.echo(f"{route}: {lease['action']}{window} ({lease['reason']})")
        click.echo(printable(lease["explanation"]))
    if lease["action"] != "enable":
        sys.exit(1)
