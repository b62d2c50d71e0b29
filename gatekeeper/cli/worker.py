"""``gatekeeper worker``: claim gate runs, measure them, hand in the evidence."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.show import Seconds
from gatekeeper.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.protocols import EngineProvider

__all__ = ["worker"]

_TIMEOUT_S = 300.0  # finishing recomputes every claim on the server


@click.command()
@click.option("--once", is_flag=True, help="End after one run.")
@click.option("--run", "run_id", metavar="ID", help="Claim this run and no other.")
@click.option("--url", help="Server; GATEKEEPER_URL otherwise.")
@click.option("--home", type=click.Path(path_type=Path), help="Folder of the model cache.")
@click.option("--name", help="Name shown as the run's owner; host and process otherwise.")
@click.option("--poll", "poll_s", type=Seconds(min=0.05), default=2.0, show_default=True)
@click.option("--idle-exit", "idle_exit_s", type=Seconds(min=0), metavar="SECONDS")
@click.option("--lease", "lease_s", type=Seconds(min=1), default=60.0, show_default=True)
@click.option(
    "--model-source",
    "model_sources",
    multiple=True,
    metavar="PREFIX",
    help="Open models from here alone: file:/srv/models, hf:our-org, shipped:. Again for more; "
    "GATEKEEPER_MODEL_SOURCES otherwise, with commas; any where neither says so.",
)
@click.option(
    "--allow-pickled-weights",
    is_flag=True,
    help="Also open files that may run code when they are read (.bin, .pt, .pkl, ...).",
)
@click.option("--until-stdin-closes", is_flag=True, help="Leave when whoever started us is gone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def worker(
    *,
    once: bool,
    run_id: str | None,
    url: str | None,
    home: Path | None,
    name: str | None,
    poll_s: float,
    idle_exit_s: float | None,
    lease_s: float,
    model_sources: tuple[str, ...],
    allow_pickled_weights: bool,
    until_stdin_closes: bool,
    as_json: bool,
) -> None:
    """Claim gate runs over HTTP and execute them on the engines installed here.

    The token comes from GATEKEEPER_TOKEN (role worker). Exit status: 0 when a run was finished or
    the worker ended idle, 1 when the one run could not be measured, 4 when it was taken away.
    """
    import time

    import httpx

    from gatekeeper.config import Settings
    from gatekeeper.worker.api import WorkerApi
    from gatekeeper.worker.devices import devices
    from gatekeeper.worker.lease import end_now
    from gatekeeper.worker.loop import Worker, WorkerOptions
    from gatekeeper.worker.model_rules import ModelRules

    settings = Settings.load(home=home).with_server(url=url)
    if settings.token is None:
        raise Unauthorized(
            "is not set",
            field="GATEKEEPER_TOKEN",
            remedy="create one on the server's machine: gatekeeper token create --role worker "
            "--home HOME",
        )
    say = _say_json if as_json else _say
    lost: Callable[[str], None] = lambda reason: end_now(reason, say=say)  # noqa: E731 - typed
    if until_stdin_closes:
        _watch_stdin(lost)
    with httpx.Client(
        base_url=settings.server_url,
        headers={"Authorization": f"Bearer {settings.token}"},
        timeout=_TIMEOUT_S,
    ) as client:
        status = Worker(
            WorkerApi(client, name or _own_name()),
            _providers(say),
            WorkerOptions(
                cache=settings.cache,
                devices=devices(),
                run_id=run_id,
                once=once,
                poll_s=poll_s,
                idle_exit_s=idle_exit_s,
                lease_s=lease_s,
                models=ModelRules(
                    sources=model_sources or settings.model_sources,
                    pickles=allow_pickled_weights,
                ),
            ),
            clock=time.monotonic,
            sleep=time.sleep,
            say=say,
            lost=lost,
        ).run()
    sys.exit(status)


def _providers(say: Callable[[str], None]) -> dict[str, EngineProvider]:
    """Installed engines; one whose library is missing is named and left out."""
    from gatekeeper import plugins
    from gatekeeper.errors import MissingExtra

    found: dict[str, EngineProvider] = {}
    missing: list[MissingExtra] = []
    for name in plugins.names("gatekeeper.engines"):
        try:
            found[name] = plugins.load("gatekeeper.engines", name)
        except MissingExtra as error:
            missing.append(error)
            say(f"not offered: {error}")
    if not found and missing:
        raise missing[0]
    return found


def _own_name() -> str:
    import os
    import socket

    return f"{socket.gethostname()}-{os.getpid()}"


def _say(line: str) -> None:
    click.echo(line)


def _say_json(line: str) -> None:
    click.echo(json.dumps({"worker": line}))


def _watch_stdin(lost: Callable[[str], None]) -> None:
    """Our starter holds the other end of standard input: when it closes, it is gone."""
    import os

    def wait() -> None:
        # the bare descriptor: a thread blocked in a buffered read would upset interpreter exit
        while os.read(sys.stdin.fileno(), 4096):
            pass
        lost("the process that started this worker ended")

    threading.Thread(target=wait, name="starter", daemon=True).start()
