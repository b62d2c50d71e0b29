"""Rows of equivalence evidence: what one request emitted, beside what the target says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["ACCEPTED", "BONUS", "CORRECTION", "RequestEvidence", "from_arrays"]

ACCEPTED, CORRECTION, BONUS = 0, 1, 2
"""Values of ``kind``; -1 is unknown."""

_REQUIRED = ("token", "p", "prompt", "replicate", "request")
_INTEGER = ("k", "round", "kind", "draft")
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class RequestEvidence:
    """Rows of one request in emission order.

    ``token`` int64 [n]; ``p`` float32 [n, V] the target's processed distribution from an
    independent forward; ``q`` float32 [n, V] the proposal's, NaN rows where unknown; ``k`` int64
    [n] in-round index; ``round``, ``kind`` (0 accepted, 1 correction, 2 bonus, -1 unknown) and
    ``draft`` (-1 where none) int64 [n]. None means that the whole column is unknown.
    """

    prompt: int
    replicate: int
    request: int
    token: NDArray[np.int64]
    p: NDArray[np.float32]
    q: NDArray[np.float32] | None = None
    k: NDArray[np.int64] | None = None
    round: NDArray[np.int64] | None = None
    kind: NDArray[np.int64] | None = None
    draft: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        n = len(self.token)
        if self.p.ndim != 2 or len(self.p) != n or (n and self.p.shape[1] == 0):  # noqa: PLR2004 - rows by vocabulary
            raise InputError(
                "must have one row per token and one column per vocabulary id",
                field="p",
                value=self.p.shape,
                remedy=f"pass an array of shape ({n}, V)",
            )
        if self.q is not None and self.q.shape != self.p.shape:
            raise InputError(
                "must have the shape of p",
                field="q",
                value=self.q.shape,
                remedy=f"pass shape {self.p.shape} or leave q out",
            )
        for name in _INTEGER:
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise InputError(
                    "must have one entry per token",
                    field=name,
                    value=len(column),
                    remedy=f"pass {n} entries or leave it out",
                )
        if n and not (self.token.min() >= 0 and self.token.max() < self.p.shape[1]):
            raise InputError(
                "has an id outside the vocabulary",
                field="token",
                value=int(self.token.max() if self.token.min() >= 0 else self.token.min()),
                remedy=f"use ids from 0 to {self.p.shape[1] - 1}",
            )

    @property
    def rows(self) -> int:
        """Emitted tokens."""
        return len(self.token)


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> tuple[RequestEvidence, ...]:
    """Check the arrays of an ``EVIDENCE.npz`` and split them by request.

    Requests keep the order of their first row, rows their order within a request. Rows of ``p``
    (and of ``q`` where it is known) must be finite, non-negative and sum to 1 within 1e-3.

    Raises:
        InputError: an array is missing, has the wrong shape or type, or holds impossible values.
    """
    for name in _REQUIRED:
        if name not in arrays:
            raise InputError(
                "is missing",
                field=name,
                remedy=f"an evidence file holds at least {', '.join(_REQUIRED)}",
            )
    for name in (*_REQUIRED, "q", *_INTEGER):
        if name in arrays and not isinstance(arrays[name], np.ndarray):
            raise InputError("is not an array", field=name, remedy="write it with numpy.savez")
    p = _distribution("p", arrays["p"], unknown_rows=False)
    if len(p) == 0:
        raise InputError("has no rows", field="p", value=p.shape, remedy="record some tokens")
    q = _distribution("q", arrays["q"], unknown_rows=True) if "q" in arrays else None
    if q is not None and q.shape != p.shape:
        raise InputError(
            "must have the shape of p",
            field="q",
            value=q.shape,
            remedy=f"pass shape {p.shape} or leave q out",
        )
    columns = _columns(arrays, *p.shape)
    ids, first = np.unique(columns["request"], return_index=True)
    return tuple(_request(int(i), columns, p, q) for i in ids[np.argsort(first)])


def _columns(
    arrays: Mapping[str, NDArray[Any]], n: int, vocabulary: int
) -> dict[str, NDArray[np.int64]]:
    columns = {
        name: _integers(name, arrays[name], n)
        for name in ("token", "prompt", "replicate", "request", *_INTEGER)
        if name in arrays
    }
    limits = {
        "token": (0, vocabulary - 1),
        "draft": (-1, vocabulary - 1),
        "kind": (-1, BONUS),
        "k": (0, n),
    }
    for name, (low, high) in limits.items():
        if name in columns:
            _in_range(name, columns[name], low, high)
    return columns


def _request(
    request: int,
    columns: dict[str, NDArray[np.int64]],
    p: NDArray[np.float32],
    q: NDArray[np.float32] | None,
) -> RequestEvidence:
    rows = np.flatnonzero(columns["request"] == request)
    for name in ("prompt", "replicate"):
        if len(np.unique(columns[name][rows])) > 1:
            raise InputError(
                f"changes within request {request}",
                field=name,
                value=columns[name][rows][:8].tolist(),
                remedy="give each request one prompt and one replicate number",
            )
    return RequestEvidence(
        prompt=int(columns["prompt"][rows[0]]),
        replicate=int(columns["replicate"][rows[0]]),
        request=request,
        token=columns["token"][rows],
        p=p[rows],
        q=None if q is None else q[rows],
        **{name: columns[name][rows] for name in _INTEGER if name in columns},
    )


def _distribution(name: str, array: NDArray[Any], *, unknown_rows: bool) -> NDArray[np.float32]:
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating) or array.shape[1] == 0:  # noqa: PLR2004 - rows by vocabulary
        raise InputError(
            f"is {array.dtype} of shape {array.shape}",
            field=name,
            remedy="store floating point of shape [N, V]",
        )
    values = array.astype(np.float32, copy=False)
    known: NDArray[np.bool_] = np.full(len(values), fill_value=True)
    if unknown_rows:
        known = np.asarray(~np.isnan(values).all(axis=1), dtype=np.bool_)
    whole = ", or a whole row of NaN where it is unknown" if unknown_rows else " for every row"
    sums = values.sum(axis=1, dtype=np.float64)
    checks = (
        (
            ~np.isfinite(values).all(axis=1),
            "holds NaN or infinity",
            f"record a distribution{whole}",
        ),
        (values.min(axis=1) < 0, "is negative", "record probabilities, not logits or their logs"),
        (
            np.abs(sums - 1.0) > _SUM_TOLERANCE,
            "does not sum to 1",
            f"normalise each row to within {_SUM_TOLERANCE:g}",
        ),
    )
    for bad, message, remedy in checks:
        rows = np.flatnonzero(bad & known)
        if len(rows):
            row = int(rows[0])
            raise InputError(message, field=f"{name}[{row}]", value=float(sums[row]), remedy=remedy)
    return values


def _integers(name: str, array: NDArray[Any], n: int) -> NDArray[np.int64]:
    if array.shape != (n,):
        raise InputError(
            "must have one entry per row of p",
            field=name,
            value=array.shape,
            remedy=f"store shape ({n},)",
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"has type {array.dtype}", field=name, remedy="store integers, -1 where unknown"
        )
    return array.astype(np.int64, copy=False)


def _in_range(name: str, column: NDArray[np.int64], low: int, high: int) -> None:
    bad = np.flatnonzero((column < low) | (column > high))
    if len(bad):
        raise InputError(
            "is out of range",
            field=f"{name}[{int(bad[0])}]",
            value=int(column[bad[0]]),
            remedy=f"use values from {low} to {high}",
        )
