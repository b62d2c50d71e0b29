"""``gatekeeper db``: the schema, the epoch after a restore, and how long spans are kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.local import local_database
from gatekeeper.cli.show import as_json_option, counted, home_option, print_document

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["db"]


@click.group()
def db() -> None:
    """Upgrade the database, tell it that it was restored, or remove old spans."""


def _age(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Seconds of a text such as 30d, 12h or 90m."""
    match = re.fullmatch(r"([0-9]{1,6})([dhms])", value)
    if match is None:
        raise click.BadParameter("is no age; write it like 30d, 12h, 90m or 45s")
    return float(int(match[1]) * {"d": 86_400, "h": 3_600, "m": 60, "s": 1}[match[2]])


@db.command()
@home_option
@as_json_option
def upgrade(home: Path | None, *, as_json: bool) -> None:
    """Bring the database to this installation's schema; create it where there is none."""
    from gatekeeper.store.migrate import current

    with local_database(home, create=True) as (settings, database):
        revision = current(database)
        place = database.engine.url.render_as_string(hide_password=True)
    if as_json:
        print_document({"database": place, "revision": revision, "home": str(settings.home)})
    else:
        click.echo(f"{place} is at revision {revision}")


@db.command()
@home_option
@as_json_option
def restored(home: Path | None, *, as_json: bool) -> None:
    """Begin a new epoch after restoring a backup, so that clients drop newer decisions."""
    from gatekeeper.actions.start import begin_epoch

    with local_database(home) as (_, database):
        version = begin_epoch(database)
    if as_json:
        print_document({"epoch": version.epoch, "counter": version.counter})
    else:
        click.echo("a new epoch begins: clients drop the decisions of the one before")


@db.command()
@click.option(
    "--spans-older-than",
    "age_s",
    required=True,
    metavar="AGE",
    callback=_age,
    help="Such as 30d or 12h.",
)
@home_option
@as_json_option
def prune(age_s: float, home: Path | None, *, as_json: bool) -> None:
    """Remove the spans of tasks that are complete and have received none for so long.

    The tasks and their figures stay, and so do prices and reports; a critical path can no longer
    be shown, and other routing rules no longer change them. Run it daily, beside the server.
    """
    from gatekeeper.actions.identity import SYSTEM
    from gatekeeper.actions.retention import remove_old_spans

    with local_database(home) as (_, database):
        removed = remove_old_spans(database, SYSTEM, age_s=age_s)
    if as_json:
        print_document({"tasks": removed.tasks, "spans": removed.spans, "before": removed.before})
    else:
        spans, tasks = counted(removed.spans, "span"), counted(removed.tasks, "task")
        click.echo(f"removed {spans} of {tasks}, whose figures stay")
