"""``gatekeeper serve``: create, migrate and seed what is missing, then answer."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.listening import listening, url_of
from gatekeeper.cli.show import as_json_option, home_option, print_document
from gatekeeper.cli.typed import typed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gatekeeper.config import Settings
    from gatekeeper.protocols import Executor
    from gatekeeper.store.database import Database

__all__ = ["serve"]


@click.command()
@home_option
@click.option("--host", help="Address to listen on; GATEKEEPER_HOST or loopback otherwise.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--executor", help="Start workers through this executor, such as local.")
@click.option(
    "--ingest",
    metavar="FILE",
    help="Limits and redaction for spans (YAML); GATEKEEPER_INGEST otherwise.",
)
@as_json_option
def serve(
    home: Path | None,
    host: str | None,
    port: int | None,
    executor: str | None,
    ingest: str | None,
    *,
    as_json: bool,
) -> None:
    """Run the API server until it is told to stop.

    The home is created, its database migrated and the shipped policies seeded on the first start.
    """
    from gatekeeper.actions.ingest_settings import IngestSettings
    from gatekeeper.actions.reconcile import Reconciler
    from gatekeeper.actions.start import prepare
    from gatekeeper.actions.webhook_delivery import Courier
    from gatekeeper.actions.webhooks import WebhookSettings, load_key
    from gatekeeper.api.app import create_app
    from gatekeeper.api.rates import RateLimits
    from gatekeeper.api.server import Server
    from gatekeeper.api.services import Services
    from gatekeeper.config import Settings, data_dir
    from gatekeeper.core.webhooks import networks
    from gatekeeper.store.database import open_database
    from gatekeeper.store.lock import sole_server
    from gatekeeper.telemetry import configure_logging

    settings = Settings.load(home=home, host=host, port=port, executor=executor, ingest=ingest)
    intake = IngestSettings.load(settings.ingest)
    allowed = networks(settings.webhook_networks)
    configure_logging(json=as_json, level=logging.INFO)
    with ExitStack() as stack:
        # Before anything is written: a busy port must leave no half-made home behind.
        listener = stack.enter_context(listening(settings.host, settings.port))
        settings.prepare()
        db = open_database(settings.database_url)
        stack.callback(db.close)
        stack.enter_context(sole_server(db))
        migrations = data_dir("migrations")
        prepare(db, migrations=migrations, policies=data_dir("policies"))
        url = url_of(listener)
        launcher = stack.enter_context(_executor(settings, db, url))
        key = load_key(settings.webhook_key, settings.home, shared=not db.sqlite)
        webhooks = WebhookSettings(key, allowed)
        courier = Courier(db, webhooks)
        services = Services(
            db,
            settings.evidence,
            migrations,
            Reconciler(db, launcher, evidence=settings.evidence, courier=courier),
            ingest=intake,
            rates=RateLimits(settings.rate_per_s),
            webhooks=webhooks,
        )
        courier.count = services.metrics.count_notice
        _announce(settings, url, as_json=as_json)
        # uvicorn stops in order and then raises the signal again: let that end in our own exit,
        # status 0, with everything on the stack closed.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        Server(create_app(services)).run(sockets=[listener])


@contextmanager
def _executor(settings: Settings, db: Database, url: str) -> Iterator[Executor | None]:
    """Load the executor and hand its workers a token that dies with this server."""
    if settings.executor is None:
        yield None
        return
    from gatekeeper import plugins
    from gatekeeper.actions.identity import SYSTEM, create_token, revoke_token

    launcher: Executor = plugins.load("gatekeeper.executors", settings.executor)
    record, secret = create_token(
        db, SYSTEM, name=f"executor {settings.executor}", role="worker", ttl_s=None
    )
    os.environ["GATEKEEPER_URL"] = url
    os.environ["GATEKEEPER_TOKEN"] = secret
    os.environ["GATEKEEPER_HOME"] = str(settings.home)
    try:
        yield launcher
    finally:
        revoke_token(db, SYSTEM, record.id)


def _announce(settings: Settings, url: str, *, as_json: bool) -> None:
    if as_json:
        print_document({"url": url, "home": str(settings.home)})
    else:
        click.echo(f"gatekeeper serves {settings.home} on {url}")
        click.echo(typed(f"A token: gatekeeper token create --role admin --home {settings.home}"))
