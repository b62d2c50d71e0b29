"""``gatekeeper delivered``: what a rollout brought, beside what was promised."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["delivered"]

_HELD = "held"


@click.command()
@click.argument("route")
@as_json_option
def delivered(route: str, *, as_json: bool) -> None:
    """Print what the rollout of ROUTE delivered against its holdout, and its ramp's step.

    Exit status 0 where the window that was judged last holds its promise, 1 otherwise: too little
    evidence is no success.
    """
    from gatekeeper.cli.http import client, segment
    from gatekeeper.errors import printable

    with client() as http:
        view = http.get(f"/v1/routes/{segment(route)}/delivered").json()
    if as_json:
        print_document(view)
    else:
        for line in _lines(view):
            click.echo(printable(line))
    judged = view["windows"]
    sys.exit(0 if judged and judged[0]["outcome"] == _HELD else 1)


def _lines(view: Mapping[str, Any]) -> Iterator[str]:
    if view["rollout"] is None:
        yield f"{view['route']}: {view['action']} for every request; it has no rollout"
        return
    split, window = view["split"], view["window"]
    steps = ", ".join(f"{share:g}" for share in view["rollout"]["steps"])
    where = f"step {split['step']} of {split['steps']}" if split and split["step"] else "no step"
    yield (
        f"{view['route']}: {view['action']} ({view['reason']}), {where} "
        f"(steps {steps}; {view['rollout']['holdout']:g} held out)"
    )
    if window is not None:
        yield f"present window, since {window['since']}: {window['outcome']}"
        yield from _figures(window)
        for need in window["still_needed"]:
            yield f"  still needed: {need}"
    for past in view["windows"]:
        yield f"{past['since']} to {past['until']}, share {past['share']:g}: {past['outcome']}"
        yield from _figures(past)


def _figures(window: Mapping[str, Any]) -> Iterator[str]:
    sides = window["sides"]
    numbers = ", ".join(
        f"{side['tasks']} {name} tasks in {side['sessions']} sessions"
        for name, side in sides.items()
    )
    mixed = f", {window['mixed']} left out (mixed arms)" if window["mixed"] else ""
    yield f"  {numbers}{mixed}"
    for finding in window["findings"]:
        yield f"  {finding['name']}: {finding['says']} [{finding['outcome']}]"
