"""``gatekeeper policy``: apply and inspect policies; the database is the truth."""

from __future__ import annotations

from pathlib import Path

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table

__all__ = ["policy"]


@click.group()
def policy() -> None:
    """Apply and inspect policies."""


@policy.command()
@click.argument("path", type=click.Path(path_type=Path))
@as_json_option
def apply(path: Path, *, as_json: bool) -> None:
    """Apply the policy in PATH, or every ``*.yaml`` of that folder; all are checked first."""
    from gatekeeper.actions.start import read_documents
    from gatekeeper.cli.http import client, segment
    from gatekeeper.core.policies import Policy

    documents = [(Policy.from_dict(d).name, d) for d in read_documents(path)]
    with client() as http:
        applied = [
            http.put(f"/v1/policies/{segment(name)}", json=d).json() for name, d in documents
        ]
    if as_json:
        print_document({"items": applied})
    else:
        for item in applied:
            state = "applied" if item["changed"] else "unchanged"
            click.echo(f"{item['name']} {item['digest']} {state}")


@policy.command("list")
@as_json_option
def list_(*, as_json: bool) -> None:
    """List the current version of every policy."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/policies")
    if as_json:
        print_document({"items": items})
        return
    rows = [{**item, "gates": ", ".join(item["document"]["mandatory_gates"])} for item in items]
    columns = {"name": "name", "digest": "digest", "gates": "mandatory gates"}
    print_table(rows, columns, "no policies")


@policy.command()
@click.argument("name")
@as_json_option
def show(name: str, *, as_json: bool) -> None:
    """Print the policy NAME (or a version by its digest)."""
    del as_json  # a policy is a document either way
    from gatekeeper.cli.http import client, segment

    with client() as http:
        print_document(http.get(f"/v1/policies/{segment(name)}").json())
