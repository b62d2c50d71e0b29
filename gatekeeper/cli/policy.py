"""``gatekeeper policy``: apply and inspect policies and economics; the database is the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.decision_changes import changes, decisions, price_all, print_changes
from gatekeeper.cli.show import as_json_option, print_document, print_table
from gatekeeper.errors import GatekeeperError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["policy"]


@click.group()
def policy() -> None:
    """Apply and inspect policies and economics."""


@policy.command()
@click.argument("path", type=click.Path(path_type=Path))
@as_json_option
def apply(path: Path, *, as_json: bool) -> None:
    """Apply the policies and economics in PATH, and print which decisions changed.

    PATH is one file, or a folder of ``*.yaml`` with prices in its folder ``economics``. All are
    checked before the first is applied. Routes are priced and decided anew before this returns.
    """
    from gatekeeper.cli.http import client, segment

    documents = _read(path)
    with client(timeout_s=600.0) as http:
        before = decisions(http)
        applied = [
            {"kind": kind, **http.put(f"/v1/{kind}/{segment(d['name'])}", json=d).json()}
            for kind, d in documents
        ]
        if any(item["changed"] for item in applied):
            price_all(http)
        after = decisions(http)
    changed = changes(before, after)
    if as_json:
        print_document({"items": applied, "decisions": changed})
        return
    for item in applied:
        state = "applied" if item["changed"] else "unchanged"
        click.echo(f"{item['kind']} {item['name']} {item['digest']} {state}")
    print_changes(changed)


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Documents under PATH with their kinds, each checked.

    Raises:
        GatekeeperError: of the kind that was found, its field with the file's name before it.
    """
    from gatekeeper.actions.start import ECONOMICS_FOLDER, read_documents
    from gatekeeper.core.economics import Economics
    from gatekeeper.core.policies import Policy

    folders = [path / ECONOMICS_FOLDER] if (path / ECONOMICS_FOLDER).is_dir() else []
    files = [file for folder in (path, *folders) for file in sorted(folder.glob("*.yaml"))]
    documents = []
    for file in files or [path]:
        for document in read_documents(file):
            if document.get("kind") in ("policy", "economics"):
                del document["kind"]  # as gatekeeper export writes it
            # only prices have a currency at their top
            kind = "economics" if "currency" in document else "policies"
            try:
                _ = (Economics if kind == "economics" else Policy).from_dict(document)
            except GatekeeperError as error:
                field = f"{file}: {error.field}"
                raise type(error)(
                    error.message, field=field, value=error.value, remedy=error.remedy
                ) from error
            documents.append((kind, document))
    return documents


@policy.command("try")
@click.argument("path", type=click.Path(path_type=Path), metavar="POLICY.yaml")
@click.option(
    "--days",
    type=click.FloatRange(0, 366, min_open=True),
    default=30.0,
    show_default=True,
    help="How far back to look.",
)
@click.option("--route", "routes", multiple=True, help="Route to try it on; all of its name else.")
@as_json_option
def try_(path: Path, *, days: float, routes: tuple[str, ...], as_json: bool) -> None:
    """Say what POLICY.yaml would have decided lately, beside what was decided. Nothing is stored.

    Decisions are taken anew from stored results, values, overrides and alarms. Gates are not run: a
    result counts as it was measured, also where the policy would have had the gate measure otherwise.
    """
    from gatekeeper.cli.http import client

    found = [document for kind, document in _read(path) if kind == "policies"]
    if len(found) != 1:
        raise InputError(
            f"holds {len(found)} policies", field="path", value=str(path), remedy="name one policy"
        )
    body = {"document": found[0], "days": days, "routes": list(routes)}
    with client(timeout_s=600.0) as http:
        answer = http.post("/v1/policies/try", json=body).json()
    if as_json:
        print_document(answer)
        return
    for tried in answer["routes"]:
        _show_tried(tried)


def _show_tried(tried: Mapping[str, Any]) -> None:
    from gatekeeper.errors import printable

    was, would = (_percent(tried[side]["enabled_share"]) for side in ("was", "would"))
    click.echo(f"{tried['route']}: enabled {was} of the time, would have been {would}")
    for one in tried["would"]["decisions"]:
        window = f", gamma {one['gamma']}" if one["gamma"] else ""
        click.echo(printable(f"  {one['at']} {one['action']}{window} ({one['reason']})"))
    for one in tried["assumed"]:
        click.echo(
            f"  assumed: run {one['run']}, measured under other settings of the {one['gate']} gate"
        )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


@policy.command("list")
@as_json_option
def list_(*, as_json: bool) -> None:
    """List the current version of every policy and of all economics."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/policies")
        prices = pages(http, "/v1/economics")
    if as_json:
        print_document({"items": items, "economics": prices})
        return
    rows = [{**item, "gates": ", ".join(item["document"]["mandatory_gates"])} for item in items]
    columns = {"name": "name", "digest": "digest", "gates": "mandatory gates"}
    print_table(rows, columns, "no policies")
    rows = [{**item, "currency": item["document"]["currency"]} for item in prices]
    columns = {"name": "economics", "digest": "digest", "currency": "currency"}
    print_table(rows, columns, "no economics")


@policy.command()
@click.argument("name")
@click.option("--economics", is_flag=True, help="Print the prices of that name instead.")
@as_json_option
def show(name: str, *, economics: bool, as_json: bool) -> None:
    """Print the policy NAME (or a version by its digest)."""
    del as_json  # a policy is a document either way
    from gatekeeper.cli.http import client, segment

    kind = "economics" if economics else "policies"
    with client() as http:
        print_document(http.get(f"/v1/{kind}/{segment(name)}").json())
