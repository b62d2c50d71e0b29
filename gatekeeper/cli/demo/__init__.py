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
    """From artifacts to decisions: real model, real server, real worker, three gates.

    Registers three target-proposer pairs on SmolLM2-135M and routes with different text, runs the
    gates on each, lets an agent work with and without speculation, prices what its tasks gain, and
    writes a report per route. Run it again to resume from what is there.
    """
    from gatekeeper.cli.demo import workflow
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
        with walk.worker():
            rows = _follow(walk, client, screen)
        # The worker is gone: the agent has the processor to itself, as the gates had.
        screen.pause()
        names = [route.name for route in walk.routes]
        first = rows[0]
        agent = workflow.compare_arms(walk, first, settings.home, screen.note)
        expected = {} if agent is None else {first["route"].name: workflow.priced_tasks(agent)}
        values = workflow.wait_for_values(client, names, expected=expected)
        for row in rows:
            row["value"] = values[row["route"].name]
            row["decision"] = walk.decision(client, row["route"])
        reports = workflow.write_reports(client, names, settings.home / "reports")
        steps = workflow.next_steps(client, settings, rows)
    if as_json:
        decisions = [row["decision"] for row in rows]
        document = {
            "policy": walk.policy,
            "decisions": decisions,
            "values": values,
            "agent": agent,
            "reports": {name: str(path) for name, path in reports.items()},
        }
        click.echo(json.dumps(document))
        return
    screen.finish(rows, walk.policy, agent=agent, reports=reports)
    screen.next_steps(steps)


def _follow(walk: Demo, client: httpx.Client, screen: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a Screen, imported late
    """Redraw the table until every run has ended; then return its rows."""
    while True:
        rows = walk.rows(client)
        screen.show(rows)
        if all(row["done"] for row in rows):
            return rows
        walk.check_alive()
        time.sleep(_POLL_S)
