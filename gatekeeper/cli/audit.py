"""``gatekeeper audit``: who changed what, newest first."""

from __future__ import annotations

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table

__all__ = ["audit"]

_PAGE = 500


@click.command()
@click.option("--actor", help="Only what this one did: a name as listed, or a token's id.")
@click.option("--action", help="Only this kind of change, such as policy.apply.")
@click.option("--object", "object_", help="Only changes of this route, policy, run, token, ....")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Newest.")
@as_json_option
def audit(
    actor: str | None, action: str | None, object_: str | None, limit: int, *, as_json: bool
) -> None:
    """Print the newest changes and who made them; it takes an admin's token.

    An actor is named as it was then, also where its token is gone by now.
    """
    from gatekeeper.cli.http import client

    asked = {"actor": actor, "action": action, "object": object_}
    query = {name: value for name, value in asked.items() if value is not None}
    items: list[dict[str, object]] = []
    with client() as http:
        while len(items) < limit:
            size = min(_PAGE, limit - len(items))
            page = http.get("/v1/audit", params={**query, "limit": str(size)}).json()
            items += page["items"]
            if page["next"] is None:
                break
            query["after"] = page["next"]
    if as_json:
        print_document({"items": items})
        return
    columns = {n: n for n in ("at", "actor", "action", "object", "detail")}
    print_table(items, columns, "no such change")
