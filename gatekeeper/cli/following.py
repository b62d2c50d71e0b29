"""Follow gate runs to their ends; whoever stops waiting is told how to come back."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gatekeeper.cli.typed import typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

__all__ = ["OVER", "RUNS", "coming_back", "follow"]

RUNS = "/v1/gate-runs"
OVER = ("finished", "failed", "cancelled")

_POLL_S = 0.5
_TELL_S = 10.0
"""A line at least so often: whoever waits sees that something moves, or what does not."""


def follow(http: httpx.Client, run_id: str, *, quiet: bool) -> dict[str, Any]:
    """Wait for the run's end; on stderr say what it waits for or how far it is."""
    stage, told, began = "", 0.0, time.monotonic()
    while True:
        view: dict[str, Any] = http.get(f"{RUNS}/{run_id}").json()
        now = time.monotonic()
        reached = f"{view['state']} {(view['progress'] or {}).get('phase')}"
        if not quiet and (reached != stage or now - told >= _TELL_S):
            line = _waits(http, view) if view["state"] == "pending" else _status(view)
            click.echo(f"{view['gate']} after {now - began:.0f} s: {line}", err=True)
            stage, told = reached, now
        if view["state"] in OVER:
            return view
        time.sleep(_POLL_S)


@contextmanager
def coming_back(views: Mapping[str, Mapping[str, Any]], again: str) -> Iterator[None]:
    """Where SIGINT or SIGTERM ends the block, say which of the runs ``views`` go on without it.

    ``views`` is read then, by id; ``again`` is the command that waits for them again.

    Raises:
        click.Abort: the block was interrupted.
    """

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if ours else None
    try:
        yield
    except KeyboardInterrupt:
        for line in _left(views, again):
            click.echo(typed(line), err=True)
        raise click.Abort from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _left(views: Mapping[str, Mapping[str, Any]], again: str) -> list[str]:
    left = [view for view in views.values() if view["state"] not in OVER]
    if not left:
        return []
    named = ", ".join(f"{view['gate']} run {view['id']}" for view in left)
    return [
        f"no longer waiting; not cancelled: {named}",
        f"look at one: gatekeeper gate show {left[0]['id']}",
        f"wait again: {again}",
        f"stop one: gatekeeper gate cancel {left[0]['id']}",
    ]


def _waits(http: httpx.Client, view: dict[str, Any]) -> str:
    """Where a pending run stands in the queue, and whether any worker is at work."""
    from gatekeeper.cli.http import pages
    from gatekeeper.reports.number_forms import count

    place = (-view["priority"], view["id"])
    ahead = sum((-r["priority"], r["id"]) < place for r in pages(http, RUNS, state="pending"))
    busy = [run["id"] for run in pages(http, RUNS, state="running")]
    queue = f"pending, {count(ahead)} in the queue before it"
    if busy:
        return f"{queue}; workers are at {', '.join(busy)}"
    return f"{queue}; no worker has taken a run. It waits for {view['waiting_for']}"


def _status(view: dict[str, Any]) -> str:
    progress = view["progress"]
    if view["state"] != "running" or progress is None:
        return str(view["state"])
    left = progress.get("seconds_left")
    rest = "" if left is None else f", about {left:.0f} s left"
    from gatekeeper.reports.number_forms import count

    numbers = [progress.get(name) for name in ("done", "total")]
    reached = "/".join("?" if number is None else count(round(number)) for number in numbers)
    return f"running: {progress['phase']} {reached}{rest}"
