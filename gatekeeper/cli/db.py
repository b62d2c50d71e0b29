"""``gatekeeper db``: the schema, the epoch after a restore, and how long things are kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.local import local_database
from gatekeeper.cli.show import as_json_option, counted, home_option, print_document

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["db"]


@click.group()
def db() -> None:
    """Upgrade, back up and restore the database, and remove what is old."""


def _age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Seconds of a text such as 30d, 12h or 90m."""
    if value is None:
        return None
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
@click.argument("file", type=click.Path(path_type=Path))
@home_option
@as_json_option
def backup(file: Path, home: Path | None, *, as_json: bool) -> None:
    """Write the SQLite database as it is now to the new FILE, while the server runs.

    Copy the evidence folder after it. PostgreSQL has pg_dump.
    """
    from gatekeeper.store.backup import back_up

    with local_database(home) as (settings, database):
        size = back_up(database, file)
    if as_json:
        print_document({"file": str(file), "bytes": size, "evidence": str(settings.evidence)})
    else:
        click.echo(f"wrote {file} ({size} bytes); now copy {settings.evidence}")


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
    "spans_s",
    metavar="AGE",
    callback=_age,
    help="Spans of complete tasks that have received none for so long: 30d or 12h.",
)
@click.option(
    "--fires-older-than",
    "fires_s",
    metavar="AGE",
    callback=_age,
    help="What became of a schedule's times so long ago.",
)
@click.option(
    "--outcomes-older-than",
    "outcomes_s",
    metavar="AGE",
    callback=_age,
    help="Outcomes of tasks that were told so long ago.",
)
@click.option(
    "--tokens-ended-for",
    "tokens_s",
    metavar="AGE",
    callback=_age,
    help="Tokens that expired or were revoked so long ago.",
)
@home_option
@as_json_option
def prune(
    *,
    spans_s: float | None,
    fires_s: float | None,
    outcomes_s: float | None,
    tokens_s: float | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Remove what is old: spans, the history of schedules, outcomes, tokens that have ended.

    Tasks and their figures stay, and so do prices and reports; a critical path can no longer be
    shown, and other routing rules no longer change them. Runs of schedules stay, a rollout keeps what
    its judged windows delivered and the outcomes of the one that is open, and the audit trail keeps
    who held a token. Files of uploads that a kill cut off go too. Run it daily, beside the
    server.
    """
    import time

    from gatekeeper.actions import retention
    from gatekeeper.actions.identity import SYSTEM, remove_ended_tokens

    if all(age is None for age in (spans_s, fires_s, outcomes_s, tokens_s)):
        raise click.UsageError("say what goes: --spans-older-than 30d, --fires-older-than 90d, …")
    gone: dict[str, int] = {}
    before: dict[str, float] = {}
    with local_database(home) as (settings, database):
        if spans_s is not None:
            spans = retention.remove_old_spans(database, SYSTEM, age_s=spans_s)
            gone |= {"tasks": spans.tasks, "spans": spans.spans}
            before = {"before": spans.before}
        if fires_s is not None:
            gone["fires"] = retention.remove_old_fires(database, SYSTEM, age_s=fires_s)
        if outcomes_s is not None:
            gone["outcomes"] = retention.remove_old_outcomes(database, SYSTEM, age_s=outcomes_s)
        if tokens_s is not None:
            gone["tokens"] = len(remove_ended_tokens(database, SYSTEM, age_s=tokens_s))
        gone["uploads"] = retention.remove_abandoned_uploads(settings.evidence, at=time.time())
    if as_json:
        print_document(gone | before)
    else:
        _tell(gone)


def _tell(gone: Mapping[str, int]) -> None:
    if "spans" in gone:
        of = f"{counted(gone['spans'], 'span')} of {counted(gone['tasks'], 'task')}"
        click.echo(f"removed {of}, whose figures stay")
    for name, noun in (
        ("fires", "past fire"),
        ("outcomes", "task outcome"),
        ("tokens", "ended token"),
        ("uploads", "cut-off upload"),
    ):
        if gone.get(name):
            click.echo(f"removed {counted(gone[name], noun)}")
    if "spans" not in gone and not any(gone.values()):
        click.echo("nothing to remove: nothing is that old")
