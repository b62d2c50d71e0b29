"""The live watch's judgement: what one look saw, against what the evidence showed.

It can only ever ask for a bypass. Unknown is its own answer, beside ok and alarm: no traffic, a
missing series or a server that tells nothing is neither.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.core.watch_counts import ClusterSums, LiveCounts
from gatekeeper.core.watch_detector import START, alarms, follow, wilson
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ALARM",
    "DESIGN_EFFECT",
    "LASTS",
    "MAX_DRIFT",
    "OK",
    "UNCHECKED",
    "UNKNOWN",
    "Finding",
    "Judgement",
    "Reference",
    "Sighting",
    "WatchState",
    "judge",
]

OK, UNKNOWN, ALARM, UNCHECKED = "ok", "unknown", "alarm", "unchecked"
"""``unchecked``: nobody set a limit, or this engine has no such series."""

MAX_DRIFT = 0.2
"""How far acceptance may lie outside what the evidence measured: traffic is not the gate's prompts."""

DESIGN_EFFECT = 10.0
"""Least number of draft tokens that count as one independent token: those of a request are alike."""

LASTS = 2
"""Looks in a row after which memory or a queue over its limit is no mere peak."""


_NOTHING = LiveCounts(0, 0, 0, ClusterSums(0, 0, 0, 0))


@dataclass(frozen=True)
class Sighting:
    """What one look at an engine, or one post of rounds, saw; None is not known.

    ``counts`` are of the time since the look before. ``readings`` are the server's own words on
    what it runs. ``problems`` say what should have been seen and was not.
    """

    counts: LiveCounts | None = None
    memory_utilisation: float | None = None
    waiting: int | None = None
    readings: Mapping[str, str] = field(default_factory=dict)
    restarted: bool = False
    problems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        memory = self.memory_utilisation
        if memory is not None and not (math.isfinite(memory) and memory >= 0):
            raise InputError(
                "is not a share",
                field="memory_utilisation",
                value=memory,
                remedy="use 0 to 1, or leave it out where it is not known",
            )


@dataclass(frozen=True)
class Reference:
    """What a look is judged against; None is no limit, or nothing measured.

    ``basis`` names the evidence: a new one begins the watch anew. ``measured`` is the range of
    acceptance rates that the serving gate saw, over its load levels. ``expected`` are readings of
    what was gated.
    """

    basis: str
    measured: tuple[float, float] | None = None
    design_effect: float = DESIGN_EFFECT
    max_drift: float = MAX_DRIFT
    min_acceptance: float | None = None
    max_memory_utilisation: float | None = None
    max_draft_queue: int | None = None
    expected: Mapping[str, str] = field(default_factory=dict)

    @property
    def floor(self) -> float | None:
        """Acceptance below which speculation is not what was gated; None where nothing is known."""
        drifted = None if self.measured is None else self.measured[0] - self.max_drift
        known = [x for x in (self.min_acceptance, drifted) if x is not None and 0 < x < 1]
        return max(known, default=None)

    @property
    def ceiling(self) -> float | None:
        """Acceptance above which it is not either; None where that would be 1 or more."""
        if self.measured is None or self.measured[1] + self.max_drift >= 1:
            return None
        return self.measured[1] + self.max_drift


@dataclass(frozen=True)
class WatchState:
    """What a watch remembers between two looks. ``counts`` are all since ``basis``."""

    basis: str = ""
    low: tuple[float, ...] = START
    high: tuple[float, ...] = START
    memory_over: int = 0
    queue_over: int = 0
    readings: Mapping[str, str] = field(default_factory=dict)
    counts: LiveCounts = _NOTHING

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        return {**asdict(self), "low": list(self.low), "high": list(self.high)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> WatchState:
        """Read ``to_dict`` back."""
        logs = {name: tuple(float(x) for x in document[name]) for name in ("low", "high")}
        return cls(**{**document, **logs, "counts": LiveCounts.from_dict(document["counts"])})


@dataclass(frozen=True)
class Finding:
    """One thing looked at: its outcome, a sentence, and where it is an alarm, the alarm's reason."""

    name: str
    outcome: str
    says: str
    reason: str | None = None


@dataclass(frozen=True)
class Judgement:
    """The findings of one look, and the worst of them: alarm, then unknown, then ok."""

    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> str:
        """Ok only where acceptance was seen and nothing is unknown."""
        seen = {finding.outcome for finding in self.findings}
        return next(x for x in (ALARM, UNKNOWN, OK, UNCHECKED) if x in seen)

    @property
    def raised(self) -> tuple[Finding, ...]:
        """The alarms."""
        return tuple(finding for finding in self.findings if finding.outcome == ALARM)


def judge(
    state: WatchState, sighting: Sighting, reference: Reference
) -> tuple[WatchState, Judgement]:
    """Judge one look, and return what to remember of it."""
    if state.basis != reference.basis:
        # what was held against other evidence says nothing of this one
        state = WatchState(basis=reference.basis)
    state, acceptance = _acceptance(state, sighting, reference)
    state = replace(
        state,
        memory_over=_over(
            state.memory_over, sighting.memory_utilisation, reference.max_memory_utilisation
        ),
        queue_over=_over(state.queue_over, sighting.waiting, reference.max_draft_queue),
    )
    findings = [
        acceptance,
        _limit(
            "memory",
            "memory_pressure",
            sighting.memory_utilisation,
            reference.max_memory_utilisation,
            state.memory_over,
        ),
        _limit(
            "draft queue",
            "draft_overloaded",
            sighting.waiting,
            reference.max_draft_queue,
            state.queue_over,
        ),
        *_identity(state, sighting, reference),
        *(Finding("scrape", UNKNOWN, problem) for problem in sighting.problems),
    ]
    return replace(state, readings={**sighting.readings, **state.readings}), Judgement(
        tuple(findings)
    )


def _acceptance(
    state: WatchState, sighting: Sighting, reference: Reference
) -> tuple[WatchState, Finding]:
    counts, name = sighting.counts, "acceptance"
    unseen = None
    if sighting.restarted:
        unseen = "the engine's totals went back: it was restarted"
    elif counts is None:
        unseen = "is not known"
    elif not counts.drafted:
        unseen = "no tokens were drafted, which shows nothing"
    if counts is None or unseen is not None:
        return state, Finding(name, UNKNOWN, unseen or "is not known")
    state = _followed(state, counts, reference)
    effect = reference.design_effect
    low, high = wilson(counts.accepted, counts.drafted, design_effect=effect)
    says = (
        f"{counts.acceptance_rate:.3f} [{low:.3f}, {high:.3f}] of {counts.drafted} draft tokens"
        f"{_bounds(reference)}"
    )
    if reference.floor is None and reference.ceiling is None:
        return state, Finding(name, UNKNOWN, f"{says}: nothing to hold it against")
    if alarms(state.low):
        return state, Finding(name, ALARM, f"{says}: too low", "low_acceptance")
    if alarms(state.high):
        return state, Finding(name, ALARM, f"{says}: too high", "high_acceptance")
    return state, Finding(name, OK, says)


def _followed(state: WatchState, counts: LiveCounts, reference: Reference) -> WatchState:
    low, high, effect = state.low, state.high, reference.design_effect
    floor, ceiling = reference.floor, reference.ceiling
    n, accepted = counts.drafted, counts.accepted
    if floor is not None:
        low = follow(low, hits=accepted, trials=n, bound=floor, design_effect=effect)
    if ceiling is not None:
        high = follow(high, hits=n - accepted, trials=n, bound=1 - ceiling, design_effect=effect)
    return replace(state, low=low, high=high, counts=state.counts + counts)


def _bounds(reference: Reference) -> str:
    parts = []
    if reference.measured is not None:
        low, high = (f"{x:.3f}" for x in reference.measured)
        parts.append(f"measured {low if low == high else f'{low} to {high}'}")
    if reference.floor is not None:
        parts.append(f"least {reference.floor:.3f}")
    if reference.ceiling is not None:
        parts.append(f"most {reference.ceiling:.3f}")
    return f" ({', '.join(parts)})" if parts else ""


def _over(before: int, value: float | None, limit: float | None) -> int:
    """Looks in a row over the limit; one that saw nothing neither ends nor lengthens them."""
    if limit is None:
        return 0
    if value is None:
        return before
    return before + 1 if value > limit else 0


def _limit(name: str, reason: str, value: float | None, limit: float | None, over: int) -> Finding:
    if limit is None:
        return Finding(name, UNCHECKED, "the policy sets no limit")
    if value is None:
        return Finding(name, UNCHECKED, f"was not told, the limit is {limit:g}")
    says = f"{value:g}, the limit is {limit:g}"
    if over >= LASTS:
        return Finding(name, ALARM, f"{says}, for {over} looks", reason)
    return Finding(name, OK, f"{says}{', once' if over else ''}")


def _identity(state: WatchState, sighting: Sighting, reference: Reference) -> Iterator[Finding]:
    """Readings against what was gated, then against what the same server said before."""
    name, said = "version", sighting.readings
    wrong = {k for k in said.keys() & reference.expected.keys() if said[k] != reference.expected[k]}
    moved = {k for k in said.keys() & state.readings.keys() if said[k] != state.readings[k]}
    for key in sorted(wrong):
        yield Finding(
            name,
            ALARM,
            f"{key} is {_short(said[key])}, but {_short(reference.expected[key])} was gated",
            "version_mismatch",
        )
    for key in sorted(moved - wrong):
        yield Finding(
            name,
            ALARM,
            f"{key} changed from {_short(state.readings[key])} to {_short(said[key])}",
            "target_changed",
        )
    unsaid = sorted(reference.expected.keys() - said.keys()) if said else []
    if unsaid:
        yield Finding(name, UNKNOWN, f"{', '.join(unsaid)} was gated, and is not told")
    if wrong or moved or unsaid:
        return
    same = sorted(said.keys() & reference.expected.keys())
    if same:
        yield Finding(name, OK, f"as gated ({', '.join(same)})")
    elif said:
        yield Finding(name, OK, f"as at the first look ({', '.join(sorted(said))})")
    else:
        yield Finding(name, UNCHECKED, "the server was not asked, or tells nothing")


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
