"""What a command waits for, said on stderr: nobody sits before a silent terminal."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["waiting"]

_AT_ONCE_S = 1.0
"""What is done within it needs no word."""

_EVERY_S = 5.0


@contextmanager
def waiting(what: str, *, quiet: bool = False, most_s: float | None = None) -> Iterator[None]:
    """Say what is waited for while the block runs, then every few seconds how long that has taken.

    ``most_s``: when whoever waits gives up. Always on stderr, so that stdout stays what was asked
    for; ``quiet`` says nothing at all.
    """
    if quiet:
        yield
        return
    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        pause = _AT_ONCE_S
        while not over.wait(pause):
            click.echo(_line(what, time.monotonic() - began, most_s), err=True)
            pause = _EVERY_S

    teller = threading.Thread(target=tell, name="waiting", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _line(what: str, so_far_s: float, most_s: float | None) -> str:
    if most_s is None:
        return f"waiting for {what}: {so_far_s:.0f} s so far"
    return f"waiting for {what}: {so_far_s:.0f} s of at most {most_s:.0f} s"
