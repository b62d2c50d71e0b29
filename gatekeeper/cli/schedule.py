"""``gatekeeper schedule``: when routes are gated again."""

from __future__ import annotations

import re
from typing import Any

import click

from gatekeeper.cli.show import as_json_option, minute, print_document, print_table

__all__ = ["schedule"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_GATES = ("equivalence", "serving", "outcome")
_FIRES_SHOWN = 10


class Duration(click.FloatRange):
    """Seconds, or a number with ``s``, ``m``, ``h`` or ``d`` after it."""

    name = "duration"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Convert to seconds."""
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value} is no duration such as 90s, 15m, 36h or 2d.", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.group()
def schedule() -> None:
    """Say when routes are gated again."""


@schedule.command("set")
@click.argument("name")
@click.option("--route", required=True, help="Route to gate.")
@click.option("--cron", help="Minute, hour, day of month, month, day of week: '30 3 * * mon-fri'.")
@click.option("--zone", help="Zone of the cron expression, such as UTC or Europe/Berlin.")
@click.option(
    "--jitter",
    "jitter_s",
    type=Duration(min=0),
    default=0.0,
    help="Begin up to this much later (15m), the same for a slot wherever it is asked.",
)
@click.option(
    "--before-expiry",
    "before_expiry_s",
    type=Duration(min=0),
    help="Also gate again this long before evidence lapses (2d).",
)
@click.option("--on-new-version", is_flag=True, help="Also gate a new artifact version.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice(_GATES),
    help="Gate to run, again for more; otherwise all that the policy demands then.",
)
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True)
@as_json_option
def set_(
    name: str,
    *,
    route: str,
    cron: str | None,
    zone: str | None,
    jitter_s: float,
    before_expiry_s: float | None,
    on_new_version: bool,
    gates: tuple[str, ...],
    priority: int,
    as_json: bool,
) -> None:
    """Create or replace the schedule NAME; a paused one stays paused.

    It queues gate runs at the times of --cron, and whenever --before-expiry or --on-new-version says
    so. At least one of the three is needed.
    """
    from gatekeeper.cli.http import client, segment

    body = {
        "route": route,
        "cron": cron,
        "zone": zone,
        "jitter_s": jitter_s,
        "before_expiry_s": before_expiry_s,
        "on_new_version": on_new_version,
        "gates": list(gates) or None,
        "priority": priority,
    }
    with client() as http:
        stored = http.put(f"/v1/schedules/{segment(name)}", json=body).json()
    if as_json:
        print_document(stored)
    else:
        click.echo(_sentence(stored))
        _print_upcoming(stored)


@schedule.command("list")
@click.option("--route", help="Only those of this route.")
@as_json_option
def list_(route: str | None, *, as_json: bool) -> None:
    """List schedules."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/schedules", route=route)
    if as_json:
        print_document({"items": items})
        return
    rows = [{**item, "fires": _fires_on(item), "next": _next(item)} for item in items]
    columns = {"name": "name", "route": "route", "fires": "fires", "next": "next"}
    print_table(rows, columns, "no schedules; create one with gatekeeper schedule set")


@schedule.command()
@click.argument("name")
@as_json_option
def show(name: str, *, as_json: bool) -> None:
    """Print the schedule NAME, its next times, and what became of its newest ones."""
    from gatekeeper.cli.http import client, segment

    path = f"/v1/schedules/{segment(name)}"
    with client() as http:
        found = http.get(path).json()
        history = http.get(f"{path}/fires", params={"limit": _FIRES_SHOWN}).json()["items"]
    if as_json:
        print_document({**found, "fires": history})
        return
    click.echo(_sentence(found))
    _print_upcoming(found)
    rows = [
        {
            **fire,
            "fire_at": minute(fire["fire_at"]),
            "result": ", ".join(fire["runs"]) or fire["note"],
        }
        for fire in history
    ]
    columns = {"fire_at": "time", "trigger": "for", "outcome": "outcome", "result": "runs or note"}
    print_table(rows, columns, "it has not fired yet")


@schedule.command()
@click.argument("name")
@as_json_option
def pause(name: str, *, as_json: bool) -> None:
    """Let the schedule NAME rest; what falls into the pause is not made up for."""
    _change(name, "pause", as_json=as_json)


@schedule.command()
@click.argument("name")
@as_json_option
def resume(name: str, *, as_json: bool) -> None:
    """Let the paused schedule NAME go on with its next time."""
    _change(name, "resume", as_json=as_json)


@schedule.command()
@click.argument("name")
@as_json_option
def delete(name: str, *, as_json: bool) -> None:
    """Remove the schedule NAME and its history; runs that it queued stay."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        gone = http.delete(f"/v1/schedules/{segment(name)}").json()
    if as_json:
        print_document(gone)
    else:
        click.echo(f"{name}: deleted")


def _change(name: str, what: str, *, as_json: bool) -> None:
    from gatekeeper.cli.http import client, segment

    with client() as http:
        stored = http.post(f"/v1/schedules/{segment(name)}/{what}").json()
    if as_json:
        print_document(stored)
    else:
        click.echo(_sentence(stored))


def _sentence(item: dict[str, Any]) -> str:
    gates = ", ".join(item["gates"]) if item["gates"] else "all gates that its policy demands"
    state = f"; paused since {minute(item['paused_at'])}" if item["paused_at"] else ""
    return f"{item['name']}: {gates} of {item['route']}, {_fires_on(item)}{state}"


def _fires_on(item: dict[str, Any]) -> str:
    parts = []
    if item["cron"]:
        jitter = f" within {_duration(item['jitter_s'])}" if item["jitter_s"] else ""
        parts.append(f"{item['cron']} {item['zone']}{jitter}")
    if item["before_expiry_s"]:
        parts.append(f"{_duration(item['before_expiry_s'])} before evidence lapses")
    if item["on_new_version"]:
        parts.append("on a new version")
    return "; ".join(parts)


def _next(item: dict[str, Any]) -> str | None:
    return "paused" if item["paused_at"] else minute(item["next_at"])


def _duration(seconds: float) -> str:
    """Say seconds in the largest unit that divides them."""
    for unit in "dhm":
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def _print_upcoming(item: dict[str, Any]) -> None:
    for slot in item.get("upcoming", ()):
        click.echo(f"  {slot['local']}  (UTC {slot['at']}, queued from {slot['due_at']})")
