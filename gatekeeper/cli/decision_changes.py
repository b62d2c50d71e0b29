"""Which decisions a command has changed, and what they are worth before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

__all__ = ["changes", "decisions", "price_all", "print_changes"]


def decisions(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """Every route's decision in force."""
    from gatekeeper.core.lease import in_force

    items: list[dict[str, Any]] = http.get("/v1/decisions/snapshot").json()["items"]
    return {lease["route"]: dict(in_force(lease)) for lease in items}


_TOLD = ("action", "reason", "gamma", "value", "policy", "explanation")


def changes(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Routes whose decision or value differs, with what tells them apart."""
    changed = []
    for route in sorted(after):
        one, two = (
            {name: side[name] for name in _TOLD if name in side}
            for side in (before.get(route, {}), after[route])
        )
        if one != two:
            changed.append({"route": route, "before": one, "after": two})
    return changed


def _said(side: Mapping[str, Any]) -> str:
    from gatekeeper.reports.number_forms import digits

    if not side:
        return "no decision"
    value = side.get("value")
    worth = (
        "value unknown"
        if value is None
        else f"{digits(value['per_task'], 3)} [{digits(value['low'], 3)}, "
        f"{digits(value['high'], 3)}] {value['currency']} a task"
    )
    return f"{side['action']} ({side['reason']}, {worth})"


def price_all(http: httpx.Client) -> None:
    """Have every route priced by what it rests on now: each is before its value is answered."""
    from gatekeeper.cli.http import pages, segment

    for route in pages(http, "/v1/routes"):
        http.get(f"/v1/routes/{segment(route['name'])}/value")


def print_changes(changed: Sequence[Mapping[str, Any]]) -> None:
    """Print what ``changes`` found."""
    for change in changed:
        click.echo(f"{change['route']}: {_said(change['before'])} → {_said(change['after'])}")
    if not changed:
        click.echo("no decision changed")
