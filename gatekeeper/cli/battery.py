"""``gatekeeper battery``: does a server keep what its API promises?"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, counted, print_document, print_table
from gatekeeper.core.addresses import without_secrets
from gatekeeper.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.gates.battery.item import Item

__all__ = ["battery"]

_GOOD = ("pass", "not applicable")


@click.command()
@click.argument("url")
@click.option("--baseline-url", metavar="URL", help="The same model decoding alone, to compare.")
@click.option("--model", help="Its name, where a server has several.")
@click.option("--item", "names", multiple=True, metavar="ITEM", help="Only this one. Repeatable.")
@as_json_option
def battery(
    url: str,
    baseline_url: str | None,
    *,
    model: str | None,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Put the contract battery to a server that speaks OpenAI's API.

    Exit status: 0 every item passes or does not apply, 1 one fails or could not be verified, 2 bad
    input. --json holds the requests that show each.
    """
    from gatekeeper import plugins
    from gatekeeper.core.running_pair import SERVERS_ENGINE

    items = _chosen(names)
    provider = plugins.load("gatekeeper.engines", SERVERS_ENGINE)
    done: list[str] = []
    began = time.monotonic()

    def note(finding: Any) -> None:  # noqa: ANN401 - the adapter's type
        done.append(finding.item.id)
        if not as_json:
            click.echo(_reached(done, len(items), time.monotonic() - began), err=True)

    if not as_json:
        click.echo(
            f"{counted(len(items), 'item')} to try at {printable(without_secrets(url))}", err=True
        )

    answer: dict[str, Any] = provider.battery(
        url, baseline_url=baseline_url, model=model, items=items, note=note
    )
    if as_json:
        print_document(answer)
    else:
        _print(answer)
    sys.exit(0 if all(row["state"] in _GOOD for row in answer["items"]) else 1)


def _reached(done: Sequence[str], total: int, so_far_s: float) -> str:
    """Where the battery stands; the time left takes items to be equally long."""
    left = total - len(done)
    rest = f", about {so_far_s / len(done) * left:.0f} s left" if left else ""
    return f"{len(done)} of {total} after {so_far_s:.0f} s: {done[-1]}{rest}"


def _chosen(names: Sequence[str]) -> tuple[Item, ...]:
    from gatekeeper.errors import InputError
    from gatekeeper.gates.battery.catalog import ITEMS

    known = {item.id: item for item in ITEMS}
    for name in names:
        if name not in known:
            raise InputError(
                "is not an item",
                field="--item",
                value=name,
                remedy=f"use one of {', '.join(known)}",
            )
    return tuple(item for item in ITEMS if not names or item.id in names)


def _print(answer: Mapping[str, Any]) -> None:
    columns = {"id": "item", "state": "state", "detail": "what was seen"}
    print_table(answer["items"], columns, "no items")
    for row in answer["items"]:
        if row["state"] != "fail":
            continue
        click.echo(f"\n{row['id']}: {row['claim']}")
        for shown in row["shown"]:
            click.echo(f"  request: {json.dumps(shown['request'], ensure_ascii=False)}")
            click.echo(f"  answer:  {shown['answer']}")
    counts = {
        state: sum(row["state"] == state for row in answer["items"])
        for state in ("pass", "fail", "not applicable", "not verified")
    }
    click.echo("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
