"""Progress of a run with the time left, from the rate measured so far."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANNOUNCE_S", "Progress", "Tracker"]

ANNOUNCE_S = 15.0
"""A long phase says where it stands at least this often, when it reports at all."""


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` units of a phase; ``seconds_left`` None until a rate is known."""

    phase: str
    done: int
    total: int
    seconds_left: float | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the heartbeat sends it."""
        return asdict(self)

    def __str__(self) -> str:
        """One line for a terminal."""
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        note = f" ({self.note})" if self.note else ""
        return f"{self.phase}: {self.done}/{self.total}{left}{note}"


class Tracker:
    """Keeps the latest progress; written by the run, read by the heartbeat thread."""

    def __init__(
        self, clock: Callable[[], float], announce: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._announce = announce
        self._lock = threading.Lock()
        self._latest: Progress | None = None
        self._phase = ""
        self._began = 0.0
        self._begun_done = 0
        self._announced = 0.0

    @property
    def latest(self) -> Progress | None:
        """The latest report, None before the first."""
        with self._lock:
            return self._latest

    def report(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Record progress; announced are the ends of a phase and, between, one in a while."""
        now = self._clock()
        fresh = phase != self._phase
        if fresh:
            self._phase, self._began, self._begun_done = phase, now, done
        worked, elapsed = done - self._begun_done, now - self._began
        left = (total - done) * elapsed / worked if worked > 0 else None
        progress = Progress(phase, done, total, left, note)
        with self._lock:
            self._latest = progress
        if fresh or done >= total or now - self._announced >= ANNOUNCE_S:
            self._announced = now
            self._announce(progress)
