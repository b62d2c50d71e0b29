"""``gatekeeper override``: somebody's word over the gates', with a reason and an end."""

from __future__ import annotations

import click

from gatekeeper.cli.show import Seconds, as_json_option, print_document

__all__ = ["override"]


@click.group()
def override() -> None:
    """Set or clear a manual override."""


@override.command("set")
@click.argument("route")
@click.argument("action", type=click.Choice(["enable", "bypass"]))
@click.option("--reason", required=True, help="Why; it is audited and shown.")
@click.option(
    "--ttl", "ttl_s", type=Seconds(min=0), default=3600.0, show_default=True, metavar="SECONDS"
)
@click.option("--gamma", type=click.IntRange(1), help="Window to enable with.")
@as_json_option
def set_(
    route: str, action: str, reason: str, ttl_s: float, gamma: int | None, *, as_json: bool
) -> None:
    """Set ROUTE to ACTION for a while. Enabling against the gates takes an admin's token."""
    from gatekeeper.cli.http import client

    body = {"route": route, "action": action, "reason": reason, "ttl_s": ttl_s, "gamma": gamma}
    with client() as http:
        stored = http.post("/v1/overrides", json=body).json()
    if as_json:
        print_document(stored)
    else:
        click.echo(f"{route}: {action} until {stored['expires_at']}")


@override.command()
@click.argument("route")
@as_json_option
def clear(route: str, *, as_json: bool) -> None:
    """End the overrides of ROUTE; the gates decide again."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        cleared = http.delete(f"/v1/overrides/{segment(route)}").json()
    if as_json:
        print_document(cleared)
    else:
        click.echo(f"{route}: {len(cleared['items'])} override(s) cleared")
