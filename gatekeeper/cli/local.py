"""Commands that work on the database of this machine themselves, without a server."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gatekeeper.config import Settings, data_dir
from gatekeeper.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gatekeeper.store.database import Database

__all__ = ["local_database", "missing_file"]


def missing_file(settings: Settings) -> bool:
    """Whether the settings name a SQLite file that is not there."""
    from gatekeeper.store.database import parse_url

    url = parse_url(settings.database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    from pathlib import Path

    return not Path(url.database).is_file()


@contextmanager
def local_database(
    home: Path | None, *, create: bool = False
) -> Iterator[tuple[Settings, Database]]:
    """Open the database that the settings name, at this installation's schema.

    ``create`` makes and migrates one where there is none; otherwise that is an error, since an
    empty database in a mistyped place would only hide the mistake.

    Raises:
        NotFound: there is no database.
        Unavailable: it has another schema version, or does not answer.
    """
    from gatekeeper.actions.start import prepare
    from gatekeeper.store.database import open_database
    from gatekeeper.store.migrate import require_current

    settings = Settings.load(home=home)
    if not create and missing_file(settings):
        raise NotFound(
            "holds no database",
            field="home",
            value=str(settings.home),
            remedy="name the server's --home, or start gatekeeper serve there first",
        )
    if create:
        settings.prepare()
    db = open_database(settings.database_url)
    try:
        if create:
            prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
        else:
            require_current(db, data_dir("migrations"))
        yield settings, db
    finally:
        db.close()
