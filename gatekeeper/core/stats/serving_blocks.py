"""Statistics of load blocks and the registered equations over serving evidence.

Tables (written by the worker, one row each):

``sweep``, ``confirm``
    a request: ``pair`` (repetition), ``arm`` (``ordinary`` | ``speculative``), ``concurrency``,
    ``gamma``, ``load_class`` (``short`` | ``long`` prompt), ``prompt_tokens``, ``arrival_s``,
    ``first_s``, ``finish_s``, ``tokens``, ``first_tokens`` (in the first chunk), ``reason``, ``gaps_s``.
``rounds``
    a decoding round, see :mod:`gatekeeper.core.stats.serving_rounds`.

A block is one (concurrency, gamma, arm, pair). Unknown is NaN here and None from an equation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gatekeeper.core.claims import equation
from gatekeeper.core.latency import RequestTiming, goodput
from gatekeeper.core.policy_schema import Slo
from gatekeeper.core.stats.paired_blocks import (
    PairedMean,
    compare_differences,
    compare_ratios,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "ORDINARY",
    "SPECULATIVE",
    "STATISTICS",
    "block_values",
    "fairness",
    "goodput_difference",
    "level",
    "ratio",
]

ORDINARY, SPECULATIVE = "ordinary", "speculative"


@equation("serving.level", table=True)
def level(
    table: pd.DataFrame, *, statistic: str, concurrency: int, gamma: int, arm: str | None = None
) -> float | None:
    """Mean over blocks of a block statistic at one concurrency and gamma."""
    rows = _rows(table, concurrency=concurrency, gamma=gamma, arm=arm)
    values = block_values(table, statistic, rows)
    return float(values.mean()) if len(values) and values.notna().all() else None


def ratio(
    table: pd.DataFrame,
    *,
    statistic: str,
    concurrency: int,
    numerator: str,
    confidence: float,
    load_class: str | None = None,
) -> PairedMean:
    """Compare a block statistic of the two arms at one concurrency, pair by pair, as a ratio.

    ``numerator`` names the arm on top: ``ordinary`` for a speed-up of times, ``speculative`` for a
    slowdown or a gain in throughput. With ``load_class`` only that class's requests count.
    """
    speculative, ordinary = _arms(table, statistic, concurrency, load_class)
    top, bottom = (ordinary, speculative) if numerator == ORDINARY else (speculative, ordinary)
    return compare_ratios(top, bottom, confidence=confidence)


@equation("serving.ratio", table=True)
def ratio_end(
    table: pd.DataFrame,
    *,
    statistic: str,
    concurrency: int,
    numerator: str,
    confidence: float,
    end: str = "ratio",
) -> float | None:
    """``ratio`` as one figure: ``end`` is ``ratio``, ``low`` or ``high`` (one-sided bounds)."""
    found = ratio(
        table,
        statistic=statistic,
        concurrency=concurrency,
        numerator=numerator,
        confidence=confidence,
    )
    return _end(found, end)


@equation("serving.log_ratio", table=True)
def log_ratio(
    table: pd.DataFrame,
    *,
    statistic: str,
    concurrency: int,
    numerator: str,
    confidence: float,
    end: str = "mean",
) -> float | None:
    """Distribution of a pair's log ratio: ``end`` is ``mean``, ``sd`` or ``pairs`` (their number).

    With them a reader can draw the ratio's mean: exp(mean + sd/√pairs · t), t with pairs − 1
    degrees of freedom.
    """
    found = ratio(
        table,
        statistic=statistic,
        concurrency=concurrency,
        numerator=numerator,
        confidence=confidence,
    )
    return {"mean": found.mean, "sd": found.sd, "pairs": float(found.n)}[end]


def goodput_difference(
    table: pd.DataFrame,
    *,
    concurrency: int,
    ttft_s: float | None,
    tpot_s: float | None,
    confidence: float,
) -> PairedMean:
    """Goodput of the speculative minus that of the ordinary arm, requests/s, pair by pair."""
    slo = Slo(ttft_s, tpot_s)
    speculative, ordinary = (
        _goodputs(table, _rows(table, concurrency=concurrency, arm=arm), slo)
        for arm in (SPECULATIVE, ORDINARY)
    )
    return compare_differences(*_matched(speculative, ordinary), confidence=confidence)


@equation("serving.goodput_difference", table=True)
def goodput_difference_end(
    table: pd.DataFrame,
    *,
    concurrency: int,
    ttft_s: float | None,
    tpot_s: float | None,
    confidence: float,
    end: str = "mean",
) -> float | None:
    """``goodput_difference`` as one figure: ``end`` is ``mean``, ``low`` or ``high``."""
    found = goodput_difference(
        table, concurrency=concurrency, ttft_s=ttft_s, tpot_s=tpot_s, confidence=confidence
    )
    return {"mean": found.mean, "low": found.low, "high": found.high}[end]


@equation("serving.goodput", table=True)
def goodput_level(
    table: pd.DataFrame, *, concurrency: int, arm: str, ttft_s: float | None, tpot_s: float | None
) -> float | None:
    """Mean over blocks of the requests per second that met every objective."""
    values = _goodputs(table, _rows(table, concurrency=concurrency, arm=arm), Slo(ttft_s, tpot_s))
    return float(values.mean()) if len(values) and values.notna().all() else None


def fairness(
    table: pd.DataFrame, *, concurrency: int, confidence: float
) -> tuple[str, str, PairedMean, PairedMean] | None:
    """Find the load classes slowed most and least, and how far apart they are.

    Returns (worst class, best class, slowdown of the worst, slowdown of the worst over that of the
    best); slowdown is speculative / ordinary ``tpot_mean``. None where there is one class only, or
    where some pair lacks a class.
    Choosing the extremes on the data at hand overstates the distance: it errs towards FAIL.
    """
    here = table[table["concurrency"] == concurrency]
    classes = sorted(here["load_class"].unique())
    if here.groupby("pair")["load_class"].nunique().lt(len(classes)).any():
        return None
    slowdowns = {
        name: ratio(
            table,
            statistic="tpot_mean",
            concurrency=concurrency,
            numerator=SPECULATIVE,
            confidence=confidence,
            load_class=name,
        )
        for name in classes
    }
    if len(classes) < 2 or any(s.mean is None for s in slowdowns.values()):  # noqa: PLR2004 - a pair
        return None
    ordered = sorted(classes, key=lambda name: slowdowns[name].mean or 0.0)
    best, worst = ordered[0], ordered[-1]
    apart = compare_ratios(
        np.exp(slowdowns[worst].values), np.exp(slowdowns[best].values), confidence=confidence
    )
    return worst, best, slowdowns[worst], apart


@equation("serving.slowdown_spread", table=True)
def slowdown_spread(
    table: pd.DataFrame, *, concurrency: int, confidence: float, end: str = "ratio"
) -> float | None:
    """Worst class's slowdown over the best class's; ``end`` is ``ratio``, ``low`` or ``high``."""
    found = fairness(table, concurrency=concurrency, confidence=confidence)
    return None if found is None else _end(found[3], end)


@equation("serving.longest_context", table=True)
def longest_context(table: pd.DataFrame, *, concurrency: int) -> float | None:
    """Longest prompt plus output that was measured at one concurrency, tokens."""
    chosen = table[table["concurrency"] == concurrency]
    lengths = chosen["prompt_tokens"] + chosen["tokens"]
    return float(lengths.max()) if len(lengths) else None


def block_values(table: pd.DataFrame, statistic: str, rows: NDArray[np.int64]) -> pd.Series:
    """One value per block of the given rows, indexed by ``pair``; NaN where undefined.

    Raises:
        InputError: no such statistic.
    """
    if statistic not in STATISTICS:
        raise InputError(
            "is not a block statistic",
            field="statistic",
            value=statistic,
            remedy=f"use one of {', '.join(STATISTICS)}",
        )
    function = STATISTICS[statistic]
    values = {pair: function(block) for pair, block in _blocks(table, rows)}
    return pd.Series(values, dtype=float)


def _arms(
    table: pd.DataFrame, statistic: str, concurrency: int, load_class: str | None
) -> tuple[Floats, Floats]:
    speculative, ordinary = (
        block_values(
            table,
            statistic,
            _rows(table, concurrency=concurrency, arm=arm, load_class=load_class),
        )
        for arm in (SPECULATIVE, ORDINARY)
    )
    return _matched(speculative, ordinary)


def _matched(one: pd.Series, two: pd.Series) -> tuple[Floats, Floats]:
    """Values by pair; a pair of which one arm is missing is NaN there, never dropped."""
    pairs = one.index.union(two.index)
    return one.reindex(pairs).to_numpy(float), two.reindex(pairs).to_numpy(float)


def _rows(table: pd.DataFrame, **wanted: int | str | None) -> NDArray[np.int64]:
    """Positions of the rows whose columns have the wanted values; None wants nothing."""
    good = np.ones(len(table), dtype=bool)
    for name, value in wanted.items():
        if value is not None:
            good &= (table[name] == value).to_numpy(bool)
    return np.flatnonzero(good)


def _end(result: PairedMean, end: str) -> float | None:
    ends = {"ratio": result.ratio, "low": result.ratio_low, "high": result.ratio_high}
    return ends[end]


@dataclass(frozen=True)
class _Block:
    """Columns of one block's requests; arrays of equal length, ``gaps`` one array per request."""

    arrival: Floats
    first: Floats
    finish: Floats
    tokens: Floats
    first_tokens: Floats
    cancelled: NDArray[np.bool_]
    gaps: NDArray[np.object_]

    @property
    def duration(self) -> float:
        return float(self.finish.max() - self.arrival.min())


def _blocks(table: pd.DataFrame, rows: NDArray[np.int64]) -> Iterator[tuple[int, _Block]]:
    """Split rows by pair. Plain arrays: a gate evaluates thousands of small blocks."""
    pairs = table["pair"].to_numpy(int)[rows]
    order = rows[np.argsort(pairs, kind="stable")]
    pairs = np.sort(pairs, kind="stable")
    columns = [
        *(table[name].to_numpy(float)[order] for name in _TIMES),
        table["reason"].to_numpy(object)[order] == "cancelled",
        table["gaps_s"].to_numpy(object)[order],
    ]
    edges = np.flatnonzero(np.diff(pairs)) + 1
    for part in np.split(np.arange(len(order)), edges):
        if part.size:
            yield int(pairs[part[0]]), _Block(*(column[part] for column in columns))


_TIMES = ("arrival_s", "first_s", "finish_s", "tokens", "first_tokens")


def _goodputs(table: pd.DataFrame, rows: NDArray[np.int64], slo: Slo) -> pd.Series:
    values = {}
    for pair, block in _blocks(table, rows):
        columns = zip(
            block.arrival, block.first, block.finish, block.tokens, block.cancelled, strict=True
        )
        timings = [
            RequestTiming(
                arrival_s=float(arrival),
                first_token_s=_known(first),
                last_token_s=_known(finish),
                tokens=int(tokens),
                finished=not cancelled,
            )
            for arrival, first, finish, tokens, cancelled in columns
        ]
        values[pair] = goodput(timings, slo, block.duration)
    return pd.Series(values, dtype=float)


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else float(seconds)


def _tpots(block: _Block) -> Floats:
    """Per-request TPOT, defined for more than one token."""
    several = block.tokens > 1
    gaps: Floats = (block.finish - block.first)[several] / (block.tokens[several] - 1)
    return gaps


def _tpot_mean(block: _Block) -> float:
    """Decode seconds per token after the first chunk, over all requests of the block.

    Token-weighted, so that short answers do not dominate. Where the first chunk holds one token
    this is the mean of TPOT as defined; a first chunk of several tokens is no gift to speculation.
    """
    tokens = float((block.tokens - block.first_tokens).sum())
    return float((block.finish - block.first).sum()) / tokens if tokens else math.nan


def _throughput(block: _Block) -> float:
    return float(block.tokens.sum()) / block.duration if block.duration > 0 else math.nan


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if values.size else math.nan


def _gaps(block: _Block) -> Floats:
    found: Floats = np.concatenate(
        [np.empty(0), *(np.asarray(gaps, dtype=float) for gaps in block.gaps)]
    )
    return found


STATISTICS: dict[str, Callable[[_Block], float]] = {
    "tpot_mean": _tpot_mean,
    "tpot_p50": lambda block: _quantile(_tpots(block), 0.5),
    "tpot_p95": lambda block: _quantile(_tpots(block), 0.95),
    "ttft_p50": lambda block: _quantile(block.first - block.arrival, 0.5),
    "ttft_p95": lambda block: _quantile(block.first - block.arrival, 0.95),
    "itl_p50": lambda block: _quantile(_gaps(block), 0.5),
    "itl_p95": lambda block: _quantile(_gaps(block), 0.95),
    "throughput": _throughput,
}
"""Block statistics by name: seconds, and verified output tokens per second for ``throughput``."""
