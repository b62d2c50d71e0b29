"""``gatekeeper token``: on the machine of the database; there is no default password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gatekeeper.cli.local import local_database
from gatekeeper.cli.schedule import Duration
from gatekeeper.cli.show import as_json_option, home_option, minute, print_document, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database

__all__ = ["token"]


@click.group()
def token() -> None:
    """Create, list, rotate and revoke access tokens."""


@token.command()
@click.option(
    "--role",
    required=True,
    type=click.Choice(["reader", "ingester", "worker", "operator", "admin"]),
    help="What its holder may do.",
)
@click.option("--name", help="Who will use it; the role otherwise.")
@click.option(
    "--ttl", "ttl_s", type=float, metavar="SECONDS", help="Lifetime; none: until revoked."
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="NAME",
    help="A route that it is for, again for more; none: all. For reader, ingester, operator.",
)
@click.option(
    "--rate",
    "rate_per_s",
    type=float,
    metavar="PER_SECOND",
    help="Requests that it may make a second of each server; none: what GATEKEEPER_RATE says.",
)
@home_option
@as_json_option
def create(
    *,
    role: str,
    name: str | None,
    ttl_s: float | None,
    routes: tuple[str, ...],
    rate_per_s: float | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Create a token and print it, this once."""
    from gatekeeper.actions.identity import SYSTEM, create_token
    from gatekeeper.api.views import token_view

    with local_database(home, create=True) as (_, db):
        record, secret = create_token(
            db,
            SYSTEM,
            name=name or role,
            role=role,
            ttl_s=ttl_s,
            routes=routes or None,
            rate_per_s=rate_per_s,
        )
        lost = _no_routes(db, routes)
    for name_ in lost:
        click.echo(
            f"gatekeeper: warning: route={name_}: no such route yet; the token reaches it once "
            "it is set, or name another (gatekeeper route list)",
            err=True,
        )
    if as_json:
        print_document({**token_view(record), "token": secret})
    else:
        click.echo(secret)


def _no_routes(db: Database, routes: tuple[str, ...]) -> list[str]:
    """Those of the names that no route has, or not yet."""
    from gatekeeper.store import catalog

    with db.read() as session:
        known = set(catalog.route_names(session))
    return [name for name in dict.fromkeys(routes) if name not in known]


@token.command()
@click.argument("token_id", metavar="ID")
@click.option(
    "--overlap",
    "overlap_s",
    type=Duration(min=0),
    default=0.0,
    help="Leave the old one good for so long (24h), to take the new one into use; otherwise it ends.",
)
@home_option
@as_json_option
def rotate(token_id: str, overlap_s: float, home: Path | None, *, as_json: bool) -> None:
    """Replace the token ID by a new one of the same role and scope, and print it, this once."""
    from gatekeeper.actions.identity import SYSTEM, rotate_token
    from gatekeeper.api.views import token_view

    with local_database(home) as (_, db):
        record, secret = rotate_token(db, SYSTEM, token_id, overlap_s=overlap_s)
    if as_json:
        print_document({**token_view(record), "token": secret})
    else:
        click.echo(secret)


@token.command("list")
@home_option
@as_json_option
def list_(home: Path | None, *, as_json: bool) -> None:
    """List tokens, revoked ones included; secrets are not stored."""
    from gatekeeper.actions.identity import list_tokens
    from gatekeeper.api.views import token_view

    rows = []
    with local_database(home) as (_, db):
        after = None
        while batch := list_tokens(db, after=after, limit=500):
            rows += [token_view(record) for record in batch]
            after = batch[-1].id
    if as_json:
        print_document({"items": rows})
        return
    columns = {
        "id": "id",
        "name": "name",
        "role": "role",
        "routes": "routes",
        "rate_per_s": "rate",
        "expires_at": "expires",
        "revoked_at": "revoked",
    }
    times = ("expires_at", "revoked_at")
    rows = [{**row, **{name: minute(row[name]) for name in times}} for row in rows]
    print_table(rows, columns, "no tokens; create one with gatekeeper token create")


@token.command()
@click.argument("token_id", metavar="ID")
@home_option
@as_json_option
def revoke(token_id: str, home: Path | None, *, as_json: bool) -> None:
    """Revoke the token ID at once."""
    from gatekeeper.actions.identity import SYSTEM, revoke_token
    from gatekeeper.api.views import token_view

    with local_database(home) as (_, db):
        record = revoke_token(db, SYSTEM, token_id)
    if as_json:
        print_document(token_view(record))
    else:
        click.echo(f"revoked {record.name} ({record.id})")
