"""What pricing reads of gate results; whatever is not a number there is unknown, never assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "UNSTATED_WINDOW",
    "Capacity",
    "Level",
    "draft_bytes",
    "outcome_difference",
    "passing_levels",
    "serving_capacity",
    "windows_unstated",
]

UNSTATED_WINDOW = (
    "the candidate's window (gamma): levels passed the serving gate, but nobody stated it, and a "
    "lease has to name one; gate the two servers with --gamma N, as another --route"
)
"""What two running servers lack that passed serving without a declared window."""

_SPECULATIVE_PURPOSES = ("draft_weights", "draft_kv", "candidates")


@dataclass(frozen=True)
class Level:
    """A load level at which speculation passed.

    ``ratio``, ``low``, ``high``: ordinary over speculative TPOT with one-sided bounds at
    ``confidence``; ``log_ratio``, ``sd``, ``pairs``: distribution of a block pair's log ratio.
    ``ttft_s``: ordinary time to first token. ``ttft_ratio`` and ``throughput_ratio``: speculative
    over ordinary, with their bounds, by ``value``, ``low`` and ``high``. ``log_ttft``: ``mean``,
    ``sd`` and ``correlation`` (with the log speed-up) of the first one's log over the same block
    pairs; None where the run did not say.
    """

    run: str
    concurrency: int
    gamma: int
    ratio: float
    low: float
    high: float
    log_ratio: float
    sd: float
    pairs: int
    confidence: float
    ttft_s: float
    ttft_ratio: Mapping[str, float]
    throughput_ratio: Mapping[str, float]
    log_ttft: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Capacity:
    """Goodput of one replica at each judged level, requests/s.

    ``baseline`` is the ordinary arm. ``candidate``, by end of the gain, speculates where a level
    passed and decodes ordinarily elsewhere, as the decision does.
    """

    baseline: tuple[float, ...]
    candidate: Mapping[str, tuple[float, ...]]


def passing_levels(run: str, summary: Mapping[str, Any]) -> tuple[Level, ...]:
    """Return the levels that passed, the lowest bound of a speed-up first; none if one is unreadable.

    A level that cannot be read might be the worst, and no other may stand for it.
    """
    found = [_level(run, summary, row) for row in _passing(summary)]
    known = [level for level in found if level is not None]
    if len(known) < len(found):
        return ()
    return tuple(sorted(known, key=lambda level: level.low))


def windows_unstated(summary: Mapping[str, Any]) -> bool:
    """Whether levels passed, and the window of none is known: a running server need not tell it."""
    windows = summary.get("gamma_by_concurrency")
    return isinstance(windows, dict) and bool(windows) and set(windows.values()) == {None}


def serving_capacity(summary: Mapping[str, Any]) -> Capacity | None:
    """Goodput of both arms; None where no objective was set or a level lacks a figure."""
    passing = {id(row) for row in _passing(summary)}
    baseline: list[float] = []
    candidate: dict[str, list[float]] = {"value": [], "low": [], "high": []}
    for row in summary.get("regions") or []:
        try:
            ordinary = _number(row["goodput"]["ordinary"])
            gain = {
                "value": _number(row["goodput"]["speculative"]) - ordinary,
                "low": _number(row["goodput_difference"]["low"]),
                "high": _number(row["goodput_difference"]["high"]),
            }
        except (KeyError, TypeError, ValueError):
            return None
        baseline.append(ordinary)
        for end, values in candidate.items():
            values.append(max(ordinary + gain[end], 0.0) if id(row) in passing else ordinary)
    if not baseline:
        return None
    return Capacity(tuple(baseline), {end: tuple(values) for end, values in candidate.items()})


def draft_bytes(summary: Mapping[str, Any]) -> float | None:
    """Bytes that speculation alone holds; None where the engine could not measure them."""
    memory = summary.get("memory") or {}
    unmeasured = memory.get("unmeasured")
    if unmeasured is None or set(unmeasured) & set(_SPECULATIVE_PURPOSES):
        return None
    try:
        return _number(memory["speculative"])
    except (KeyError, TypeError, ValueError):
        return None


def outcome_difference(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Candidate minus baseline success, its interval and pairs; None where it is not known."""
    try:
        low, high = (_number(end) for end in summary["interval"])
        difference = _number(summary["difference"])
    except (KeyError, TypeError, ValueError):
        return None
    if not -1 <= low <= difference <= high <= 1:
        return None
    pairs = summary.get("n")
    return {
        "difference": difference,
        "interval": [low, high],
        "pairs": int(pairs) if is_number(pairs) else None,
    }


def _passing(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows of the levels in the validity envelope that speculate."""
    windows = summary.get("gamma_by_concurrency") or {}
    return [
        row
        for row in summary.get("regions") or []
        if (windows.get(str(row.get("concurrency"))) or 0) > 0  # a server's window may be unknown
    ]


def _level(run: str, summary: Mapping[str, Any], row: Mapping[str, Any]) -> Level | None:
    try:
        speedup, log, ttft = row["speedup"], row["log_speedup"], row["ttft_ratio"]
        throughput = row["throughput_ratio"]
        level = Level(
            run=run,
            concurrency=int(row["concurrency"]),
            gamma=int(row["gamma"]),
            ratio=_number(speedup["ratio"]),
            low=_number(speedup["low"]),
            high=_number(speedup["high"]),
            log_ratio=_number(log["mean"]),
            sd=_number(log["sd"]),
            pairs=int(log["pairs"]),
            confidence=_number(summary["confidence"]),
            ttft_s=_number(row["ttft_s"]["ordinary"]),
            ttft_ratio={
                "value": _number(ttft["ratio"]),
                "low": _number(ttft["low"]),
                "high": _number(ttft["high"]),
            },
            throughput_ratio={
                "value": _number(throughput["ratio"]),
                "low": _number(throughput["low"]),
                "high": _number(throughput["high"]),
            },
            log_ttft=_log_ttft(row),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return level if level.pairs > 1 and min(level.throughput_ratio.values()) > 0 else None


def _log_ttft(row: Mapping[str, Any]) -> dict[str, float] | None:
    """What both ratios are drawn together from; None where it was not measured."""
    found = row.get("log_ttft") or {}
    names = ("mean", "sd", "correlation")
    try:
        known = {name: _number(found.get(name)) for name in names}
    except ValueError:
        return None
    return known if known["sd"] >= 0 and abs(known["correlation"]) <= 1 else None


def _number(value: object) -> float:
    """Return a finite number.

    Raises:
        ValueError: it is none.
    """
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)
