"""Windows around the clock changes of zones of every kind, minute by minute."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Callable

ZONES = {
    "Africa/Cairo": 2026,  # at midnight
    "Africa/Casablanca": 2026,  # winter time is the exception
    "America/Asuncion": 2023,
    "America/Havana": 2026,  # back at 01:00, to midnight
    "America/New_York": 2026,
    "America/Nuuk": 2026,  # on a Saturday evening
    "America/Santiago": 2026,
    "America/Sao_Paulo": 2018,
    "America/St_Johns": 2026,  # three and a half hours
    "Antarctica/Troll": 2026,  # by two hours
    "Asia/Beirut": 2026,
    "Asia/Gaza": 2026,
    "Asia/Pyongyang": 2018,  # once, by half an hour
    "Asia/Tehran": 2021,
    "Australia/Lord_Howe": 2026,  # by half an hour
    "Europe/Berlin": 2026,
    "Europe/Dublin": 2026,
    "Europe/London": 2026,
    "Pacific/Apia": 2011,  # left out a whole day
    "Pacific/Chatham": 2026,  # at 02:45
}
"""Zone and a year in which its clock changes."""


HOURS = 6
"""Hours before and after the change."""


@dataclass(frozen=True)
class Window:
    """What a zone's clock shows at each minute around a change; ``forward`` where it leaves out."""

    zone: ZoneInfo
    forward: bool
    begins: float
    shown: tuple[tuple[float, tuple[datetime, ...]], ...]
    """Each minute's instant, and the times that the clock shows or has jumped over since the last."""

    @property
    def ends(self) -> float:
        return self.shown[-1][0]

    def served(self, minutes: frozenset[int], hours: frozenset[int]) -> list[float]:
        """Instants at which the times of ``hours`` and ``minutes`` are served, by brute force."""
        return [
            at
            for at, news in self.shown
            if any(wall.minute in minutes and wall.hour in hours for wall in news)
        ]


def _window(zone: ZoneInfo, change: datetime, *, forward: bool) -> Window:
    begins = change - timedelta(hours=HOURS)
    latest = begins.astimezone(zone).replace(tzinfo=None)
    shown = []
    for minute in range(1, 2 * HOURS * 60):
        at = begins + timedelta(minutes=minute)
        wall = at.astimezone(zone).replace(tzinfo=None)
        # what the clock has not shown before
        fresh = range(max(0, (wall - latest) // timedelta(minutes=1)))
        shown.append((at.timestamp(), tuple(latest + timedelta(minutes=n + 1) for n in fresh)))
        latest = max(latest, wall)
    return Window(zone, forward, begins.timestamp(), tuple(shown))


@cache
def windows() -> tuple[Window, ...]:
    """One for each change of each zone's year."""
    found = []
    for name, year in ZONES.items():
        zone = ZoneInfo(name)
        weeks = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(weeks=n) for n in range(53)]
        offsets = [week.astimezone(zone).utcoffset() for week in weeks]
        for week, before, after in zip(weeks, offsets, offsets[1:], strict=False):
            if before != after and before is not None and after is not None:
                changed = _changed(zone, week)
                minute = bisect_left(range(7 * 24 * 60), x=True, key=changed)
                change = week + timedelta(minutes=minute)
                found.append(_window(zone, change, forward=after > before))
    return tuple(found)


def _changed(zone: ZoneInfo, since: datetime) -> Callable[[int], bool]:
    before = since.astimezone(zone).utcoffset()
    return lambda minute: (since + timedelta(minutes=minute)).astimezone(zone).utcoffset() != before
