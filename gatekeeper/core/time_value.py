"""What task time is worth: by a price per second, by prices per piece, or by who stays for it.

An economics document holds a list of rules, each for some routes and a band of concurrency; the
first that matches holds. A rule says one of three things:

- ``per_second``: each second costs the same.
- ``piecewise``: from each ``from_s`` on a second costs ``per_s``, so what a task's time costs is
  piecewise linear in its duration and continuous.
- ``abandonment``: the probability that a task of that duration is abandoned, fitted from outcomes
  (`gatekeeper.core.abandonment`), times ``value_of_kept_task``.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gatekeeper.core.documents import check
from gatekeeper.errors import InputError

__all__ = [
    "KINDS",
    "TIMES",
    "Abandonment",
    "AbandonmentFit",
    "Piece",
    "TimeRule",
    "check_rules",
]

KINDS = ("per_second", "piecewise", "abandonment")

TIMES = ("log_seconds", "seconds")
"""What the log odds of abandonment are linear in: the logarithm of the duration, or itself."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Piece:
    """From a task duration of ``from_s`` seconds on, each further second costs ``per_s``."""

    from_s: float
    per_s: float


@dataclass(frozen=True)
class AbandonmentFit:
    """Log odds that a task of t seconds is abandoned: log_odds + slope · (g(t) − g(at_s)).

    g is the natural logarithm for ``time`` ``log_seconds`` and the identity for ``seconds``.
    ``covariance`` is that of (log_odds, slope) over bootstrap samples of whole sessions, made with
    ``replicates`` and ``seed``. ``tasks``, ``abandoned``, ``sessions``, ``shortest_s`` and
    ``longest_s`` describe the outcomes, ``data`` is the sha256 of their file, and ``route``,
    ``min_concurrency`` and ``max_concurrency`` the rows taken from it, all where None.
    """

    time: str
    at_s: float
    log_odds: float
    slope: float
    covariance: tuple[tuple[float, ...], ...]
    tasks: int
    abandoned: int
    sessions: int
    shortest_s: float
    longest_s: float
    replicates: int
    seed: int
    data: str
    route: str | None = None
    min_concurrency: int | None = None
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        at = "value_of_time.abandonment.fit"
        square = [len(row) for row in self.covariance] == [2, 2]
        check(
            [
                (f"{at}.time", self.time, self.time in TIMES, f"use one of {', '.join(TIMES)}"),
                (f"{at}.at_s", self.at_s, self.at_s > 0, "use the fit's own"),
                (f"{at}.slope", self.slope, self.slope > 0, "longer tasks must lose more"),
                (f"{at}.covariance", self.covariance, square, "use the fit's 2 × 2 matrix"),
                (f"{at}.sessions", self.sessions, self.sessions > 2, "fit it from outcomes"),  # noqa: PLR2004 - two parameters
                (f"{at}.data", self.data, bool(_SHA256.fullmatch(self.data)), "use a sha256"),
                (
                    f"{at}.longest_s",
                    self.longest_s,
                    0 < self.shortest_s < self.longest_s,
                    "use the range of durations that the fit saw",
                ),
            ]
        )
        (a, b), (c, d) = self.covariance
        sound = a >= 0 and d >= 0 and b == c and a * d - b * b >= -1e-9 * a * d
        check([(f"{at}.covariance", self.covariance, sound, "use the fit's own")])


@dataclass(frozen=True)
class Abandonment:
    """Money per task that is not abandoned (None: unknown), and the curve of those that are."""

    fit: AbandonmentFit
    value_of_kept_task: float | None = None

    def __post_init__(self) -> None:
        worth = self.value_of_kept_task
        good = worth is None or 0 <= worth < math.inf
        check(
            [
                (
                    "value_of_time.abandonment.value_of_kept_task",
                    worth,
                    good,
                    "use 0 or more, or leave it out",
                )
            ]
        )


@dataclass(frozen=True)
class TimeRule:
    """What a second is worth on some routes at some load.

    ``routes`` are names or patterns such as ``chat-*``; empty, every route. The band of concurrency
    (of the load level that prices the task) is inclusive at both ends; an end left out is open.
    """

    routes: tuple[str, ...] = ()
    min_concurrency: int | None = None
    max_concurrency: int | None = None
    per_second: float | None = None
    piecewise: tuple[Piece, ...] | None = None
    abandonment: Abandonment | None = None

    def __post_init__(self) -> None:
        low, high = self.min_concurrency, self.max_concurrency
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        check(
            [
                ("value_of_time.min_concurrency", low, low is None or low >= 1, "use 1 or more"),
                (
                    "value_of_time.max_concurrency",
                    high,
                    high is None or high >= (low or 1),
                    "end above the start",
                ),
                (
                    "value_of_time.per_second",
                    self.per_second,
                    self.per_second is None or self.per_second >= 0,
                    "use 0 or more",
                ),
            ]
        )
        if len(given) != 1:
            raise InputError(
                "says not one thing of what time is worth",
                field="value_of_time",
                value=", ".join(given) or "nothing",
                remedy=f"give one of {', '.join(KINDS)}",
            )
        if self.piecewise is not None:
            _check_pieces(self.piecewise)

    @property
    def kind(self) -> str:
        """Which of ``KINDS`` it gives."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def banded(self) -> bool:
        """Whether it holds at some loads only."""
        return self.min_concurrency is not None or self.max_concurrency is not None

    def of_route(self, route: str) -> bool:
        """Whether it holds for the route at some load."""
        return not self.routes or any(fnmatchcase(route, pattern) for pattern in self.routes)

    def at_load(self, concurrency: int) -> bool:
        """Whether a concurrency is in its band."""
        return (self.min_concurrency or 1) <= concurrency <= (self.max_concurrency or math.inf)


def check_rules(rules: tuple[TimeRule, ...]) -> None:
    """Refuse rules that none can reach.

    Raises:
        InputError: a rule behind one that holds for every route and load.
    """
    for index, rule in enumerate(rules[:-1]):
        if not rule.routes and not rule.banded:
            raise InputError(
                "is never reached",
                field=f"value_of_time[{index + 1}]",
                value=f"behind value_of_time[{index}], which holds everywhere",
                remedy="put the rule that holds everywhere last",
            )


def _check_pieces(pieces: tuple[Piece, ...]) -> None:
    starts = [piece.from_s for piece in pieces]
    first = starts[0] if starts else None
    check(
        [
            ("value_of_time.piecewise[0].from_s", first, first == 0, "begin with from_s: 0"),
            *[
                (
                    f"value_of_time.piecewise[{i}].per_s",
                    piece.per_s,
                    piece.per_s >= 0,
                    "use 0 or more",
                )
                for i, piece in enumerate(pieces)
            ],
            *[
                (
                    f"value_of_time.piecewise[{i + 1}].from_s",
                    after,
                    after > before,
                    "let each piece begin later",
                )
                for i, (before, after) in enumerate(itertools.pairwise(starts))
            ],
        ]
    )
