"""``gatekeeper train``: a drafter for one target, from text of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.config import Settings
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.provider import PROVIDER
from gatekeeper_adapters.engines.reference.training import KINDS

if TYPE_CHECKING:
    from gatekeeper_adapters.engines.reference.training.pipeline import Order, Outcome

__all__ = ["train"]


class _Layers(click.ParamType[tuple[int, ...]]):
    """Layer numbers with commas between."""

    name = "layers"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value} is no list of layer numbers such as 0,29.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--target", required=True, metavar="SOURCE", help="The model it is to draft for.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="The folder to write; must be new.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=12.0,
    show_default=True,
    help="CPU minutes of training, sampling not counted.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Updates, in place of --minutes.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=60_000,
    show_default=True,
    help="Tokens to sample from the target.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="Size of the draft vocabulary.",
)
@click.option(
    "--layers",
    type=_Layers(),
    help="Target's layers to begin with: the first two of draft_lm, the last of eagle.",
)
@click.option(
    "--neurons",
    type=click.IntRange(min=1),
    help="Neurons kept of each MLP of a draft_lm, the strongest; all when not given.",
)
@click.option(
    "--heads", type=click.IntRange(1, 8), default=4, show_default=True, help="Heads of medusa."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@as_json_option
def train(
    *,
    kind: str,
    target: str,
    out: Path,
    minutes: float,
    steps: int | None,
    tokens: int,
    rows: int,
    layers: tuple[int, ...] | None,
    neurons: int | None,
    heads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Train a drafter of KIND for a target, and say how it fares on text it never saw.

    The target writes the text itself; that is kept beside the folder and used again by the next
    kind. Interrupt with Ctrl-C, or kill it: the same command goes on where it stopped.
    """
    PROVIDER.version()
    # torch arrives here and not before
    from gatekeeper_adapters.engines.reference.training.data import Recipe  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.training.distill import (  # noqa: PLC0415
        Interrupted,
    )
    from gatekeeper_adapters.engines.reference.training.pipeline import (  # noqa: PLC0415
        Order,
        train_drafter,
    )

    order = Order(
        kind=kind,
        source=target,
        minutes=minutes,
        steps=steps,
        seed=seed,
        rows=rows,
        layers=layers,
        neurons=neurons,
        heads=heads,
        recipe=Recipe(tokens=tokens, seed=seed),
    )
    folder = prepare(target, Settings.load().cache, _note)
    try:
        outcome = train_drafter(order, folder, out, note=_note, clock=time.process_time)
    except Interrupted as stopped:
        _note("stopped; the same command goes on from the checkpoint")
        raise click.Abort from stopped
    pair = out.with_name(f"{out.name}.pair.json")
    pair.write_text(json.dumps(_pair(order, out), indent=1) + "\n")
    if as_json:
        print_document(_document(outcome, pair))
    else:
        _print(outcome, pair)


def _note(line: str) -> None:
    click.echo(line, err=True)


def _pair(order: Order, out: Path) -> dict[str, Any]:
    """An artifact to register; the parts left out are taken from the engine's manifest."""
    device = {"tensor_parallel": 1, "device": "cpu", "draft_device": "cpu"}
    return {
        "schema": 1,
        "target": {"source": order.source},
        "proposer": {"kind": order.kind, "source": f"file:{out.resolve()}", "parameters": {}},
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}],
        "engine": {"name": "reference", "dtype": "float32", "kv_dtype": "float32", **device},
    }


def _document(outcome: Outcome, pair: Path) -> dict[str, Any]:
    return {
        "folder": str(outcome.folder),
        "pair": str(pair),
        "steps": outcome.run.step,
        "cpu_seconds": outcome.run.seconds,
        "windows": outcome.drafter.reached,
        "conditional_acceptance": outcome.drafter.conditional,
        "bigram_conditional_acceptance": outcome.bigram.conditional,
    }


def _print(outcome: Outcome, pair: Path) -> None:
    click.echo(
        "Greedy acceptance on held-out templates, given that the depths before were accepted:"
    )
    click.echo(f"{'depth':>6}  {'windows':>8}  {'drafter':>8}  {'bigram':>8}")
    rows = zip(
        outcome.drafter.reached,
        outcome.drafter.conditional,
        outcome.bigram.conditional,
        strict=True,
    )
    for depth, (windows, drafter, bigram) in enumerate(rows, start=1):
        click.echo(f"{depth:>6}  {windows:>8}  {_share(drafter):>8}  {_share(bigram):>8}")
    click.echo(
        f"{outcome.run.step} steps, {outcome.run.seconds / 60:.1f} CPU-min: {outcome.folder}"
    )
    click.echo(f"Register it: gatekeeper artifact register {pair}")


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
