"""``gatekeeper db``: the schema, and the epoch after a restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gatekeeper.cli.local import local_database
from gatekeeper.cli.show import as_json_option, home_option, print_document

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["db"]


@click.group()
def db() -> None:
    """Upgrade the database, or tell it that it was restored."""


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
        click.echo(f"epoch {version.epoch} begins")
