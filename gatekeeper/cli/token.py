"""``gatekeeper token``: on the machine of the database; there is no default password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gatekeeper.cli.local import local_database
from gatekeeper.cli.show import as_json_option, home_option, print_document, print_table

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["token"]


@click.group()
def token() -> None:
    """Create, list and revoke access tokens."""


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
@home_option
@as_json_option
def create(
    role: str, name: str | None, ttl_s: float | None, home: Path | None, *, as_json: bool
) -> None:
    """Create a token and print it, this once."""
    from gatekeeper.actions.identity import SYSTEM, create_token
    from gatekeeper.api.views import token_view

    with local_database(home, create=True) as (_, db):
        record, secret = create_token(db, SYSTEM, name=name or role, role=role, ttl_s=ttl_s)
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
        "expires_at": "expires",
        "revoked_at": "revoked",
    }
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
