"""``gatekeeper demo``: from artifacts to decisions on a real model, through the public API."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import httpx

    from gatekeeper.cli.demo.flow import Demo

__all__ = ["demo"]

_POLL_S = 2.0


@click.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".gatekeeper"),
    show_default=True,
    help="Everything the demo writes lies here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the decisions as JSON at the end.")
def demo(home: Path, *, as_json: bool) -> None:
    """From artifacts to decisions: real model, real server, real worker, two gates.

    Registers three target-proposer pairs on SmolLM2-135M, routes with different text, and runs the
    equivalence and the serving gate on each. Run it again to resume from what is there.
    """
    from gatekeeper.cli.demo.flow import Demo
    from gatekeeper.cli.demo.screen import Screen
    from gatekeeper.config import Settings

    settings = Settings.load(home=home)
    settings.prepare()
    # As Ctrl-C does: unwind, so that server and worker end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(quiet=as_json))
        walk = Demo(settings, note=screen.note)
        walk.prepare()
        client = stack.enter_context(walk.server())
        walk.register(client)
        stack.enter_context(walk.worker())
        rows = _follow(walk, client, screen)
        policy = walk.policy
    if as_json:
        click.echo(json.dumps({"policy": policy, "decisions": [row["decision"] for row in rows]}))
        return
    screen.finish(rows, policy, settings)


def _follow(walk: Demo, client: httpx.Client, screen: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a Screen, imported late
    """Redraw the table until every run has ended; then return its rows."""
    while True:
        rows = walk.rows(client)
        screen.show(rows)
        if all(row["done"] for row in rows):
            return rows
        walk.check_alive()
        time.sleep(_POLL_S)
