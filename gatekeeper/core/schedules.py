"""When a schedule fires: the slots of a cron expression in a zone, their jitter, and late ones.

A **slot** is a wall-clock time that the cron expression names. It is served once, at the first
instant at which the zone's clock shows that time or has passed it. So a time that a clock set
forward leaves out is served when the clock jumps, together with whatever else falls on that instant;
a time that a clock set back shows twice is served the first time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from cronsim import CronSim, CronSimError

from gatekeeper.core.documents import check
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "BEFORE_EXPIRY",
    "CAUGHT_UP",
    "CRON",
    "FIRED",
    "GATES",
    "GRACE_S",
    "MISSED",
    "NEW_VERSION",
    "SKIPPED",
    "Due",
    "Rule",
    "Slot",
    "check_cron",
    "due",
    "lateness",
    "local_time",
    "slots",
    "timetable",
]

CRON, BEFORE_EXPIRY, NEW_VERSION = "cron", "before_expiry", "new_version"
"""What makes a schedule fire."""

FIRED, CAUGHT_UP, MISSED, SKIPPED = "fired", "caught_up", "missed", "skipped"
"""What became of a time: runs queued when it came, or late; nobody was there; nothing to queue."""

GRACE_S = 60.0
"""Later than this is late: a server ticks each second, but one that restarts needs a moment."""

GATES = ("equivalence", "serving", "outcome")
"""Gates that a schedule may name, in the order in which they are queued."""

MAX_JITTER_S = 86_400.0
MAX_BEFORE_EXPIRY_S = 366 * 86_400.0
MAX_PRIORITY = 100

_FIELDS = 5
_MAX_TEXT = 200
_EXAMPLE = "write minute, hour, day of month, month, day of week, such as '30 3 * * mon-fri'"
_ANY_YEAR = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall clock's time has no zone


@dataclass(frozen=True)
class Rule:
    """What a schedule does: for ``route``, queue ``gates`` (None: all that its policy demands).

    It fires at each slot of ``cron`` in ``zone``, up to ``jitter_s`` later; ``before_expiry_s``
    before evidence lapses; and on a new version of the artifact that the route serves. At least one
    of the three is given.

    Raises:
        InputError: a field is wrong, or nothing would ever fire.
    """

    route: str
    cron: str | None = None
    zone: str | None = None
    jitter_s: float = 0.0
    gates: tuple[str, ...] | None = None
    before_expiry_s: float | None = None
    on_new_version: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        if self.cron is None and self.before_expiry_s is None and not self.on_new_version:
            raise InputError(
                "is missing, and nothing else would make the schedule fire",
                field="cron",
                remedy="give cron, before_expiry_s or on_new_version",
            )
        if self.cron is not None:
            object.__setattr__(self, "cron", check_cron(self.cron))
        if (self.cron is None) != (self.zone is None):
            raise InputError(
                "is missing" if self.zone is None else "belongs to a cron expression",
                field="zone",
                value=self.zone,
                # never the server's, a browser's or a caller's own: they differ
                remedy="name the zone of the cron expression, such as UTC or Europe/Berlin"
                if self.zone is None
                else "give cron too, or leave it out",
            )
        most = 0.0 if self.cron is None else MAX_JITTER_S
        before = self.before_expiry_s
        soon = before is None or 0 < before <= MAX_BEFORE_EXPIRY_S
        rank = abs(self.priority) <= MAX_PRIORITY
        check(
            [
                (
                    "jitter_s",
                    self.jitter_s,
                    0 <= self.jitter_s <= most,
                    f"use 0 to {most:g} s" if most else "jitter is for cron: leave it out",
                ),
                ("before_expiry_s", before, soon, f"use above 0 and up to {MAX_BEFORE_EXPIRY_S:g}"),
                ("priority", self.priority, rank, f"use -{MAX_PRIORITY} to {MAX_PRIORITY}"),
            ]
        )
        if self.gates is not None:
            object.__setattr__(self, "gates", _gates(self.gates))


@dataclass(frozen=True)
class Slot:
    """A slot: ``at`` is its instant and ``due_at`` that with its jitter, seconds since 1970."""

    at: float
    due_at: float


@dataclass(frozen=True)
class Due:
    """What is to become of the slots that have come due.

    ``missed`` are those that nobody served, ``at`` the newest, which is served now with
    ``outcome``; ``next_at`` is when to look again (seconds since 1970; None: never).
    """

    missed: tuple[float, ...]
    at: float | None
    outcome: str
    next_at: float | None


def check_cron(expression: str) -> str:
    """Return a cron expression of five fields with single spaces.

    Lists, ranges, steps, names, ``L`` and ``#`` are understood. Where neither the day of the month
    nor the day of the week begins with a star, either may match.

    Raises:
        InputError: it is not one, or names no time that ever comes.
    """
    fields = expression.split()
    if len(fields) != _FIELDS or len(expression) > _MAX_TEXT:
        raise InputError(
            f"does not have five fields in {_MAX_TEXT} characters",
            field="cron",
            value=expression,
            remedy=_EXAMPLE,
        )
    text = " ".join(fields)
    try:
        next(CronSim(text, _ANY_YEAR))
    except CronSimError as error:
        raise InputError(
            f"is no cron expression ({str(error).lower()})",
            field="cron",
            value=expression,
            remedy=_EXAMPLE,
        ) from error
    except StopIteration:
        raise InputError(
            "names no time within fifty years", field="cron", value=expression, remedy=_EXAMPLE
        ) from None
    return text


def _gates(gates: Iterable[str]) -> tuple[str, ...]:
    named = list(gates)
    for gate in named:
        if gate not in GATES:
            raise InputError(
                "is not a gate", field="gates", value=gate, remedy=f"use {', '.join(GATES)}"
            )
    if not named or len(set(named)) != len(named):
        raise InputError(
            "is empty" if not named else "names a gate twice",
            field="gates",
            value=named,
            remedy="name each gate once, or leave it out for all that the policy demands",
        )
    return tuple(gate for gate in GATES if gate in named)


def slots(cron: str, zone: tzinfo, *, after: float) -> Iterator[float]:
    """Instants of the slots later than ``after`` (seconds since 1970), ascending, each once."""
    # All times up to what the clock shows now have been shown, or passed, by now.
    latest = after
    for wall in CronSim(cron, _wall(after, zone)):
        at = _first_shown(wall, zone)
        if at > latest:
            yield at
            latest = at


def _wall(at: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def _first_shown(wall: datetime, zone: tzinfo) -> float:
    """First instant at which the zone's clock shows ``wall`` or has passed it."""
    # Of a time shown twice this is the first instant (PEP 495).
    at = wall.replace(tzinfo=zone, fold=0).timestamp()
    if _wall(at, zone) == wall:
        return at
    # Left out: by the offset before the jump it lies after it, by the offset after, before it.
    high, low = at, wall.replace(tzinfo=zone, fold=1).timestamp()
    while high - low > 1:
        middle = (low + high) // 2
        if _wall(middle, zone) > wall:
            high = middle
        else:
            low = middle
    return high


def timetable(
    cron: str, zone: tzinfo, *, after: float, jitter_s: float, key: str
) -> Iterator[Slot]:
    """Slots with their jitter, which ends before the next slot: no slot overtakes another.

    The jitter is a hash of ``key`` and the slot: every replica knows it, and schedules of many
    routes at one time spread over it.
    """
    times = slots(cron, zone, after=after)
    at = next(times, None)
    while at is not None:
        following = next(times, None)
        room = jitter_s if following is None else min(jitter_s, following - at)
        yield Slot(at, at + _share(key, at) * room)
        at = following


def _share(key: str, at: float) -> float:
    """Even on [0, 1)."""
    digest = hashlib.sha256(f"{key} {at:.0f}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def due(times: Iterator[Slot], *, now: float, most: int) -> Due:
    """Sort out the slots of ``times``, none of which is recorded yet.

    After a downtime only the newest is served, as one run that catches up. No more than ``most``
    slots are sorted out at once; where more are due, all of these are missed.
    """
    passed: list[Slot] = []
    ahead = next(times, None)
    while ahead is not None and ahead.due_at <= now and len(passed) < most:
        passed.append(ahead)
        ahead = next(times, None)
    next_at = None if ahead is None else ahead.due_at
    if not passed or (ahead is not None and ahead.due_at <= now):
        return Due(tuple(slot.at for slot in passed), None, MISSED, next_at)
    newest = passed.pop()
    outcome = lateness(now - newest.due_at)
    return Due(tuple(slot.at for slot in passed), newest.at, outcome, next_at)


def lateness(late_s: float) -> str:
    """Outcome of runs that are queued ``late_s`` seconds after their time."""
    return FIRED if late_s <= GRACE_S else CAUGHT_UP


def local_time(at: float, zone: tzinfo) -> str:
    """Instant as the zone's clock shows it, with its offset (RFC 3339)."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=at)).astimezone(zone).isoformat()
