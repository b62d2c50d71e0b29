"""What a policy would have decided: a route's stored history, decided anew under another document.

Replayed is the decision, not the gates: results count as they were measured, whatever policy they were
measured under, and lapse as the tried policy has it. A result whose gate had other settings then is
marked ``assumed`` by whoever gathers the history.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from gatekeeper.core.granting import Hold, ready_at, settle
from gatekeeper.core.lease import ENABLE
from gatekeeper.core.policies import Override, Policy, StoredGate, Verdict, decide
from gatekeeper.core.verdicts import Outcome
from gatekeeper.core.watch_alarms import REARMED_BY, Alarm, barred

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from gatekeeper.core.value import ValueInterval

_T = TypeVar("_T")

__all__ = [
    "Change",
    "Measured",
    "OverrideSpan",
    "PastAlarm",
    "RouteHistory",
    "enabled_share",
    "replay",
]


@dataclass(frozen=True)
class Measured:
    """A gate's result for an artifact; ``begun_at`` is when the oldest of its evidence was begun."""

    artifact: str
    gate: StoredGate
    begun_at: datetime | None = None
    assumed: bool = False


@dataclass(frozen=True)
class PastAlarm:
    """An alarm as it was raised."""

    artifact: str
    reason: str
    explanation: str
    raised_at: datetime


@dataclass(frozen=True)
class OverrideSpan:
    """An override as long as it stood: cleared at its ``expires_at`` where somebody did."""

    set_at: datetime
    override: Override


@dataclass(frozen=True)
class RouteHistory:
    """What is stored of a route, each in order of time.

    ``artifacts`` and ``values`` are (since when, what); ``contracts`` maps digests to contracts.
    """

    contracts: Mapping[str, str]
    artifacts: tuple[tuple[datetime, str], ...]
    measured: tuple[Measured, ...] = ()
    values: tuple[tuple[datetime, ValueInterval | None], ...] = ()
    overrides: tuple[OverrideSpan, ...] = ()
    alarms: tuple[PastAlarm, ...] = ()


@dataclass(frozen=True)
class Change:
    """From ``at`` on, this was, or would have been, the decision."""

    at: datetime
    action: str
    reason: str
    gamma: int
    explanation: str


def replay(policy: Policy, history: RouteHistory, *, until: datetime) -> tuple[Change, ...]:
    """Decide a route at every moment at which its decision may have changed, up to ``until``."""
    times = sorted({at for at in _moments(policy, history) if at <= until})
    hold, changes = Hold(), list[Change]()
    heapq.heapify(times)
    done: datetime | None = None
    while times:
        at = heapq.heappop(times)
        artifact = _latest(history.artifacts, at)
        if at == done or artifact is None:
            continue
        done = at
        wanted = _wanted(policy, history, artifact, at)
        verdict, hold = settle(policy, wanted, hold, at)
        if verdict.action != wanted.action:
            ready = ready_at(policy, hold)
            if ready is not None and at < ready <= until:
                heapq.heappush(times, ready)
        said = (verdict.action, verdict.reason, verdict.gamma)
        if not changes or said != (changes[-1].action, changes[-1].reason, changes[-1].gamma):
            changes.append(Change(at, *said, verdict.explanation))
    return tuple(changes)


def enabled_share(changes: Sequence[Change], *, start: datetime, until: datetime) -> float | None:
    """Share of the time from ``start`` to ``until`` in which the route was enabled.

    None where nothing was decided before ``until``.
    """
    if not changes or until <= start:
        return None
    ends = [change.at for change in changes[1:]] + [until]
    on = timedelta()
    for change, end in zip(changes, ends, strict=True):
        if change.action == ENABLE:
            on += max(timedelta(), min(end, until) - max(change.at, start))
    return on / (until - start)


def _moments(policy: Policy, history: RouteHistory) -> Iterable[datetime]:
    ttl = timedelta(seconds=policy.evidence_ttl_s)
    yield from (at for at, _ in history.artifacts)
    yield from (at for at, _ in history.values)
    for one in history.measured:
        yield one.gate.finished_at
        yield one.gate.finished_at + ttl
    for span in history.overrides:
        yield span.set_at
        yield span.override.expires_at
    yield from (alarm.raised_at for alarm in history.alarms)


def _wanted(policy: Policy, history: RouteHistory, artifact: str, at: datetime) -> Verdict:
    known = _governing(policy, history.measured, artifact, at)
    standing = [s for s in history.overrides if s.set_at <= at < s.override.expires_at]
    span = max(standing, key=lambda s: s.set_at, default=None)
    verdict = decide(
        policy,
        history.contracts[artifact],
        {gate: one.gate for gate, one in known.items()},
        _latest(history.values, at),
        at,
        override=None if span is None else span.override,
    )
    since = span.set_at if span is not None and verdict.reason == "override" else None
    alarms = [
        Alarm(alarm.reason, alarm.explanation, alarm.raised_at, _needed(alarm, known, verdict))
        for alarm in history.alarms
        if alarm.artifact == artifact
        and alarm.raised_at <= at
        and (since is None or alarm.raised_at > since)
    ]
    return barred(verdict, alarms)


def _governing(
    policy: Policy, measured: Iterable[Measured], artifact: str, at: datetime
) -> dict[str, Measured]:
    """By the rule of the store: a FAIL stands, otherwise the newest counts; cancelled ones never."""
    ttl = timedelta(seconds=policy.evidence_ttl_s)
    found: dict[str, Measured] = {}
    for one in sorted(measured, key=lambda m: m.gate.finished_at):
        name, outcome = one.gate.result.gate, one.gate.result.outcome
        if one.artifact != artifact or one.gate.finished_at > at or outcome is Outcome.CANCELLED:
            continue
        before = found.get(name)
        if before is not None and before.gate.result.outcome is Outcome.FAIL is not outcome:
            continue
        lapses = replace(one.gate, expires_at=one.gate.finished_at + ttl)
        found[name] = replace(one, gate=lapses)
    return found


def _needed(alarm: PastAlarm, known: Mapping[str, Measured], verdict: Verdict) -> tuple[str, ...]:
    mandatory = {row["gate"] for row in verdict.gates if row["mandatory"]}
    return tuple(
        gate
        for gate in REARMED_BY[alarm.reason]
        if gate in mandatory and not _passed_since(known.get(gate), alarm.raised_at)
    )


def _passed_since(one: Measured | None, at: datetime) -> bool:
    if one is None or one.gate.result.outcome is not Outcome.PASS:
        return False
    return one.begun_at is not None and one.begun_at > at


def _latest(pairs: Sequence[tuple[datetime, _T]], at: datetime) -> _T | None:
    known = [what for since, what in pairs if since <= at]
    return known[-1] if known else None
