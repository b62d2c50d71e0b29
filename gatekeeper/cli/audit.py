"""``gatekeeper audit``: who changed what, newest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, minute, print_document, short_digest
from gatekeeper.core.configuration import field_changes
from gatekeeper.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ACTIONS", "audit"]

ACTIONS = {
    "alias": ("move", "remove"),
    "artifact": ("register",),
    "configuration": ("apply",),
    "economics": ("apply", "remove", "seed"),
    "epoch": ("begin",),
    "fires": ("remove",),
    "outcomes": ("remove",),
    "override": ("clear", "set"),
    "policy": ("apply", "remove", "seed"),
    "rollout": ("regate",),
    "route": ("set",),
    "run": ("cancel", "fail", "finish", "reap", "submit"),
    "schedule": ("delete", "pause", "resume", "set"),
    "spans": ("remove",),
    "token": ("create", "remove", "revoke", "rotate"),
    "watch": ("alarm",),
    "webhook": ("add", "redeliver", "remove"),
}
"""Every kind of change: ``alias.move`` and so on."""

_PAGE = 500
_LINES = 8
"""So many lines say what changed; a new route alone has more fields than anybody reads here."""
_LONGEST = 32
_BOOKKEEPING = {"id", "name", "created_by", "revision"}
"""Fields of a record that are no change of their own; so are its points in time."""


@click.command()
@click.option("--actor", help="Only what this one did: a name as listed, or a token's id.")
@click.option(
    "--action",
    help="Only this kind of change, such as policy.apply; where there is none, the kinds are listed.",
)
@click.option("--object", "object_", help="Only changes of this route, policy, run, token, ....")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Newest.")
@as_json_option
def audit(
    actor: str | None, action: str | None, object_: str | None, limit: int, *, as_json: bool
) -> None:
    """Print the newest changes and who made them; it takes an admin's token.

    An actor is named as it was then, also where its token is gone by now. --json has every change
    in full.
    """
    from gatekeeper.cli.http import client

    asked = {"actor": actor, "action": action, "object": object_}
    query = {name: value for name, value in asked.items() if value is not None}
    items: list[dict[str, Any]] = []
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
    if not items:
        click.echo("no such change")
        if action is not None:
            kinds = [f"{thing}.{what}" for thing, done in ACTIONS.items() for what in done]
            click.echo(f"actions there are: {', '.join(kinds)}")
        return
    _print(items)


def _print(items: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each change and below it, indented, what became of which field."""
    for item in items:
        who, what = printable(item["actor"]), printable(item["action"])
        thing = short_digest(printable(item["object"]))
        # not aligned: names and ids in columns are wider than a terminal
        click.echo(f"{minute(item['at'])}  {who}  {what}  {thing}")
        lines = list(_changed(item["detail"]))
        shown = lines if len(lines) <= _LINES else lines[: _LINES - 1]
        for line in shown:
            click.echo(f"    {printable(line)}")
        if len(lines) > len(shown):
            click.echo(f"    and {len(lines) - len(shown)} more (--json)")


def _changed(detail: Mapping[str, Any]) -> Iterator[str]:
    """Say the fields of an entry: before and after where it has both, else what it notes."""
    rest = dict(detail)
    if "from" in rest and "to" in rest:
        before, after = rest.pop("from"), rest.pop("to")
        if isinstance(after, dict):
            for field in field_changes(before, after):
                if field.field not in _BOOKKEEPING and not field.field.endswith("_at"):
                    yield _sides(field.to_dict())
        else:
            yield f"{_short(before, absent='none')} → {_short(after)}"
    for field in rest.pop("fields", ()):
        yield _sides(field)
    for name, value in rest.items():
        if value is not None and value != []:
            yield f"{name}: {_short(value)}"


def _sides(field: Mapping[str, Any]) -> str:
    before, after = (
        _short(field[side]) if side in field else "unset" for side in ("before", "after")
    )
    return f"{field['field']}: {before} → {after}"


def _short(value: object, *, absent: str = "null") -> str:
    if value is None:
        return absent
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = short_digest(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
