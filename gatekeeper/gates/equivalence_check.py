"""Answer for an ``EVIDENCE.npz``: the statistics of the gate on recorded tokens, token by token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatekeeper.core.stats import tolerance
from gatekeeper.core.stats.eprocess import MEMBERS, Bank, bonus_by_index, running_log_e
from gatekeeper.core.stats.evidence import from_arrays
from gatekeeper.core.stats.trace_law import TraceLaw
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gatekeeper.core.stats.evidence import RequestEvidence

    F = NDArray[np.float64]

__all__ = ["check"]

PASS_ALPHA, FAIL_ALPHA = 0.05, 0.001


def check(
    arrays: Mapping[str, NDArray[Any]],
    *,
    alpha: float = 0.001,
    window: float = 0.01,
    bonus: float = 0.02,
    delta: float = 0.0,
    end_tokens: tuple[int, ...] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Check recorded evidence; JSON-able.

    ``alpha`` is the false-alarm rate of the strict e-process, ``window`` and ``bonus`` the tolerated
    mean deviations, ``delta`` the numeric envelope |log p'/p| of the strict part. Bonus positions
    are taken from k; where none is known every row is held to ``window``. ``strict.log10_e`` is the
    largest value reached; ``tokens_to_decision`` is None while INCONCLUSIVE.

    Raises:
        InputError: an array or a parameter is missing or impossible.
    """
    _parameters(alpha, window, bonus, delta)
    evidence = from_arrays(arrays)
    vocabulary = evidence[0].p.shape[1]
    for token in end_tokens:
        if not 0 <= token < vocabulary:
            raise InputError(
                "is outside the vocabulary",
                field="end_token",
                value=token,
                remedy=f"use ids from 0 to {vocabulary - 1}",
            )
    bank = Bank(vocabulary, seed=seed, delta=delta, end_tokens=end_tokens)
    trace = TraceLaw()
    at_bonus, factors, contrasts = [], [], []
    for request in evidence:
        mask = bonus_by_index(request, None, kind_is_past=False)
        increments = bank.add(request, mask)
        at_bonus.append(mask)
        factors.append(increments.log_f_envelope)
        contrasts += [tolerance.contrasts(r, end_known=bool(end_tokens)) for r in increments.rows]
        trace.add(request)
    log_f = np.concatenate(factors)
    strict, alarm = _strict(log_f, alpha)
    strata = _strata(np.concatenate(at_bonus))
    count = len(tolerance.FEATURES) * len(strata)
    declared = tolerance.Sequences(window, bonus, PASS_ALPHA, FAIL_ALPHA, count)
    y = np.concatenate(contrasts)
    rows, outside, inside = _tolerance(y, strata, declared)
    failures = [t for t in (alarm, outside) if t is not None]
    outcome = Outcome.INCONCLUSIVE
    decided: int | None = None
    if failures:
        outcome, decided = Outcome.FAIL, min(failures)
    elif rows and all(row["outcome"] == Outcome.PASS for row in rows):
        outcome, decided = Outcome.PASS, inside
    return {
        "outcome": str(outcome),
        "strict": strict,
        "tolerance": rows,
        "trace": trace.summary(),
        "tokens": _tokens(evidence),
        "tokens_to_decision": decided,
    }


def _parameters(alpha: float, window: float, bonus: float, delta: float) -> None:
    for name, value in (("alpha", alpha), ("window", window), ("bonus", bonus)):
        if not 0 < value < 1:
            raise InputError("must lie in (0, 1)", field=name, value=value, remedy="use e.g. 0.01")
    if not 0 <= delta < 1:
        raise InputError("must lie in [0, 1)", field="delta", value=delta, remedy="use e.g. 0.02")


def _tokens(evidence: Sequence[RequestEvidence]) -> int:
    return sum(request.rows for request in evidence)


def _strict(log_f: F, alpha: float) -> tuple[dict[str, Any], int | None]:
    running = running_log_e(log_f)
    crossed = np.flatnonzero(running >= math.log(1 / alpha))
    at = int(crossed[0]) if len(crossed) else int(np.argmax(running))
    member = int(np.argmax(log_f[: at + 1].sum(axis=0)))
    answer = {
        "log10_e": float(running.max() / math.log(10)),
        "alpha": alpha,
        "worst_family": MEMBERS[member],
    }
    return answer, int(crossed[0]) + 1 if len(crossed) else None


def _strata(bonus: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    if not bonus.any():
        return {"all": np.ones(len(bonus), dtype=bool)}
    return {"window": ~bonus, "bonus": bonus}


def _tolerance(
    y: F, strata: Mapping[str, NDArray[np.bool_]], declared: tolerance.Sequences
) -> tuple[list[dict[str, Any]], int | None, int | None]:
    """Rows at the end, the first token outside (None: never), the first with all inside."""
    tables, outside, inside = [], [], np.ones(len(y), dtype=bool)
    for stratum, here in strata.items():
        known = ~np.isnan(y) & here[:, None]
        filled = np.where(known, y, 0.0)
        n, s, v = (np.cumsum(x, axis=0, dtype=np.float64) for x in (known, filled, filled**2))
        some = n[-1] > 0
        status = declared.status(stratum, n[:, some], s[:, some], v[:, some])
        out = np.flatnonzero((status < 0).any(axis=1))
        outside += [int(out[0]) + 1] if len(out) else []
        inside &= (status > 0).all(axis=1)
        names = [feature for feature, use in zip(tolerance.FEATURES, some, strict=True) if use]
        columns = {"n": n[-1, some].astype(np.int64), "s": s[-1, some], "v": v[-1, some]}
        tables.append(pd.DataFrame({"stratum": stratum, "feature": names, **columns}))
    _, judged = tolerance.judge(pd.concat(tables, ignore_index=True), declared)
    rows = [
        {str(k): _plain(v) for k, v in row.items() if k not in {"s", "v"}}
        for row in judged.to_dict("records")
    ]
    first = np.flatnonzero(inside)
    return rows, min(outside, default=None), int(first[0]) + 1 if len(first) else None


def _plain(value: Any) -> Any:  # noqa: ANN401 - a cell of a table
    return value.item() if isinstance(value, np.generic) else value
