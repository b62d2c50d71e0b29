"""``gatekeeper webhook``: who is told of decisions."""

from __future__ import annotations

from typing import Any

import click

from gatekeeper.cli.show import as_json_option, minute, print_document, print_table

__all__ = ["webhook"]


@click.group()
def webhook() -> None:
    """Tell other systems of decisions, signed."""


@webhook.command()
@click.argument("url")
@click.option("--route", "routes", multiple=True, help="Only decisions of this route; repeatable.")
@as_json_option
def add(url: str, routes: tuple[str, ...], *, as_json: bool) -> None:
    """Subscribe URL to decisions and print the secret that signs them, this once.

    Each notice carries webhook-id, webhook-timestamp and webhook-signature as Standard Webhooks has
    them. It is sent until it is answered with 2xx: ten times over two days.
    """
    from gatekeeper.cli.http import client

    with client() as http:
        made = http.post("/v1/webhooks", json={"url": url, "routes": list(routes) or None}).json()
    if as_json:
        print_document(made)
    else:
        click.echo(f"{made['id']}: {made['url']}, {_routes(made)}")
        click.echo(made["secret"])


@webhook.command("list")
@click.option(
    "--events",
    "state",
    type=click.Choice(["pending", "delivered", "dead"]),
    help="List the notices in this state instead.",
)
@as_json_option
def list_(state: str | None, *, as_json: bool) -> None:
    """List webhooks, or what became of their notices."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/webhooks")
        if state is not None:
            items = [
                {"webhook": item["id"], **event}
                for item in items
                for event in pages(http, f"/v1/webhooks/{item['id']}/events", state=state)
            ]
    if as_json:
        print_document({"items": items})
    elif state is not None:
        columns = {"webhook": "webhook", "event": "event", "route": "route"}
        columns |= {"attempt": "tries", "status": "status", "error": "error", "next_at": "next"}
        rows = [{**item, "next_at": minute(item["next_at"])} for item in items]
        print_table(rows, columns, f"no notice is {state}")
    else:
        rows = [{**item, "for": _routes(item), **_counts(item)} for item in items]
        columns = {"id": "id", "url": "url", "for": "for", "pending": "pending"}
        columns |= {"delivered": "delivered", "dead": "dead"}
        print_table(rows, columns, "no webhooks; add one with gatekeeper webhook add")


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@as_json_option
def remove(webhook_id: str, *, as_json: bool) -> None:
    """Remove the webhook ID; notices that were not delivered are dropped."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        gone = http.delete(f"/v1/webhooks/{segment(webhook_id)}").json()
    if as_json:
        print_document(gone)
    else:
        click.echo(f"{webhook_id}: removed")


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@click.option("--event", help="This notice alone, such as decision_1764550000_17.")
@as_json_option
def redeliver(webhook_id: str, event: str | None, *, as_json: bool) -> None:
    """Send the dead notices of the webhook ID again, or the one that is named."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        path = f"/v1/webhooks/{segment(webhook_id)}/redeliver"
        queued = http.post(path, json={"event": event}).json()
    if as_json:
        print_document(queued)
    else:
        click.echo(f"{len(queued['items'])} queued again")


def _routes(item: dict[str, Any]) -> str:
    return ", ".join(item["routes"]) if item["routes"] else "every route"


def _counts(item: dict[str, Any]) -> dict[str, int]:
    return {state: item["events"].get(state, 0) for state in ("pending", "delivered", "dead")}
