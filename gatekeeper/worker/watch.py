"""The loop of ``gatekeeper watch``: look at an engine, send what was seen, say what came of it.

It looks twice an interval, and what lasts for two looks alarms, so that whatever goes on is acted on
within one interval. It decides nothing itself, and nothing that it sends can enable a route.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core.watch_metrics import Scrape, Traffic, between
from gatekeeper.errors import Busy, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.worker.scrape import Observed

__all__ = ["LOOKS", "WatchOptions", "Watcher"]

LOOKS = 2
"""Looks an interval."""


@dataclass(frozen=True)
class WatchOptions:
    """Which routes an engine serves, under which name it is watched, and how often."""

    routes: Sequence[str]
    source: str
    interval_s: float
    max_drift: float
    once: bool = False


@dataclass
class _Line:
    """One route: the scrape that its next counts begin at, and a look that was not taken yet."""

    route: str
    since: Scrape | None = None
    unsent: tuple[dict[str, Any], str, Scrape | None] | None = None

    def forget(self) -> None:
        """Begin counting anew: the scrapes so far are of totals that may be gone."""
        self.since = None
        if self.unsent is not None:
            body, key, _ = self.unsent
            self.unsent = (body, key, None)


@dataclass
class Watcher:
    """Looks and sends until it is stopped, or once.

    ``look`` asks the engine; ``send`` posts a body under an idempotency key and returns the answer, or
    raises ``Unavailable``; ``say`` shows an answer; ``complain`` shows (route, why) where nobody took
    a look.
    """

    look: Callable[[], Observed]
    send: Callable[[Mapping[str, Any], str], dict[str, Any]]
    say: Callable[[Mapping[str, Any]], None]
    complain: Callable[[str, str], None]
    sleep: Callable[[float], None]
    options: WatchOptions
    _lines: list[_Line] = field(init=False)
    _last: Scrape | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._lines = [_Line(route) for route in self.options.routes]

    def run(self) -> bool:
        """Watch; with ``once``, whether the last look of every route found all to be well."""
        first = self.look()
        self._last = first.scrape
        for line in self._lines:
            line.since = first.scrape
        well: list[bool] = []
        looks = 0
        while not self.options.once or looks < LOOKS:
            self.sleep(self.options.interval_s / LOOKS)
            well = self._round(self.look())
            looks += 1
        return all(well)

    def _round(self, seen: Observed) -> list[bool]:
        last, now = self._last, seen.scrape
        restarted = last is not None and now is not None and between(last, now).restarted
        if now is None or restarted:
            # totals may have begun anew, and nothing that they show later tells
            for line in self._lines:
                line.forget()
        self._last = now
        return [self._send(line, seen, restarted=restarted) for line in self._lines]

    def _send(self, line: _Line, seen: Observed, *, restarted: bool) -> bool:
        """Send what is due of a route; False where it is not well, or nobody took it."""
        try:
            if line.unsent is not None:
                # the same look under the same key: nobody knows whether it was counted
                self._take(line, *line.unsent)
            body = self._body(line, seen, restarted=restarted)
            line.unsent = (body, secrets.token_hex(16), seen.scrape)
            answer = self._take(line, *line.unsent)
        except (Unavailable, Busy) as error:
            self.complain(line.route, str(error))
            return False
        self.say(answer)
        return bool(answer["outcome"] == "ok")

    def _take(
        self, line: _Line, body: dict[str, Any], key: str, scrape: Scrape | None
    ) -> dict[str, Any]:
        answer = self.send(body, key)
        line.unsent = None
        # the next counts begin where these end
        line.since = line.since if scrape is None else scrape
        return answer

    def _body(self, line: _Line, seen: Observed, *, restarted: bool) -> dict[str, Any]:
        now, before, traffic = seen.scrape, line.since, Traffic()
        if now is not None and before is not None:
            traffic = between(before, now)
        return {
            "route": line.route,
            "source": self.options.source,
            "interval_s": self.options.interval_s,
            "max_drift": self.options.max_drift,
            "rounds": traffic.rounds,
            "drafted": traffic.drafted,
            "accepted": traffic.accepted,
            "memory_utilisation": None if now is None else now.memory_utilisation,
            "waiting": None if now is None else now.waiting,
            "readings": seen.readings,
            "restarted": restarted,
            "problems": [*seen.problems, *traffic.problems],
        }
