"""``gatekeeper watch``: hold a running engine against the evidence of the routes that it serves."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import Seconds, as_json_option

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["watch"]

_ENGINES = ("auto", "vllm", "sglang", "llamacpp", "reference")


@click.command()
@click.option("--url", required=True, metavar="URL", help="The engine's metrics, or its root.")
@click.option("--route", "routes", required=True, multiple=True, help="Route that it serves.")
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(min=0.1, max=86_400),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="What lasts is acted on within it; the engine is asked twice in it.",
)
@click.option(
    "--engine",
    type=click.Choice(_ENGINES),
    default="auto",
    show_default=True,
    help="Whose names the metrics have.",
)
@click.option("--model", help="The model to watch, where the server has several.")
@click.option("--source", help="Name of this watch; the engine's address otherwise.")
@click.option(
    "--max-drift",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.2,
    show_default=True,
    metavar="SHARE",
    help="How far acceptance may lie outside what the gate measured, either way.",
)
@click.option("--once", is_flag=True, help="Watch for one interval and end.")
@as_json_option
def watch(
    *,
    url: str,
    routes: tuple[str, ...],
    interval_s: float,
    engine: str,
    model: str | None,
    source: str | None,
    max_drift: float,
    once: bool,
    as_json: bool,
) -> None:
    """Watch the engine that serves a route, and bypass the route when it is not what was gated.

    Acceptance too low or too high, memory or queue over the policy's limits, another version or
    another target. It can only ever cause a bypass, which evidence begun after it ends. The token
    comes from GATEKEEPER_TOKEN (role ingester), the engine's key from GATEKEEPER_SERVERS_KEY. Exit status with --once: 0 where all is well, 1 on
    an alarm or where what had to be seen was not.
    """
    import time

    import httpx

    from gatekeeper.cli.http import client
    from gatekeeper.config import Settings
    from gatekeeper.worker.scrape import Target, metrics_address
    from gatekeeper.worker.watch import Watcher, WatchOptions

    root, metrics_url = metrics_address(url)
    options = WatchOptions(
        routes=routes,
        source=source or root,
        interval_s=interval_s,
        max_drift=max_drift,
        once=once,
    )
    headers = _key(Settings.load().servers_key)
    # a proxy in between would be asked instead, and redirects lead to another engine
    with client() as api, httpx.Client(timeout=5.0, trust_env=False, headers=headers) as http:

        def send(body: Mapping[str, Any], key: str) -> dict[str, Any]:
            sent = {"Idempotency-Key": key}
            answer: dict[str, Any] = api.post("/v1/watches", json=body, headers=sent).json()
            return answer

        well = Watcher(
            look=Target(http, root, metrics_url, None if engine == "auto" else engine, model).look,
            send=send,
            say=_say_json if as_json else _say,
            complain=_complain,
            sleep=time.sleep,
            options=options,
        ).run()
    sys.exit(0 if well else 1)


def _key(key: str | None) -> dict[str, str]:
    from gatekeeper.errors import Unauthorized

    if key is not None and not (key.isascii() and key.isprintable()):
        raise Unauthorized(
            "holds what no key holds",
            field="GATEKEEPER_SERVERS_KEY",
            remedy="set it to the one line that the engine was given",
        )
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _say(answer: Mapping[str, Any]) -> None:
    from gatekeeper.errors import printable

    decision = answer["decision"]
    click.echo(
        printable(
            f"{answer['last_at']} {answer['route']}: {answer['outcome']}; "
            f"decision {decision['action']} ({decision['reason']})"
        )
    )
    for finding in answer["findings"]:
        mark = "" if finding["outcome"] == "ok" else f" [{finding['outcome']}]"
        click.echo(printable(f"  {finding['name']}: {finding['says']}{mark}"))


def _say_json(answer: Mapping[str, Any]) -> None:
    click.echo(json.dumps(answer, ensure_ascii=False))


def _complain(route: str, why: str) -> None:
    click.echo(f"gatekeeper: {route}: not judged, the look is kept: {why}", err=True)
