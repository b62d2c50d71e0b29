"""Alembic's entry: on the connection handed over by the code, else on the configured database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import context

from gatekeeper.store.schema import metadata

if TYPE_CHECKING:
    from sqlalchemy import Connection


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _run() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given)
        return
    from gatekeeper.config import Settings  # noqa: PLC0415 - only for Alembic's own command line
    from gatekeeper.store.database import open_database  # noqa: PLC0415 - as above

    settings = Settings.load()
    settings.prepare()
    db = open_database(settings.database_url)
    try:
        with db.write() as session:
            _migrate(session)
    finally:
        db.close()


_run()
