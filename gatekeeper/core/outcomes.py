"""OUTCOMES.csv: how long tasks took and which were abandoned, read strictly."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatekeeper.errors import EvidenceError, InputError, UnknownKey

__all__ = ["OPTIONAL", "REQUIRED", "Outcomes", "read_outcomes"]

REQUIRED = ("duration_s", "abandoned", "session")
OPTIONAL = ("task", "route", "concurrency")

_YES_NO = {"1": 1, "0": 0, "yes": 1, "no": 0, "true": 1, "false": 0}


@dataclass(frozen=True)
class Outcomes:
    """Table of `gatekeeper.core.abandonment`, and the sha256 of the whole file."""

    table: pd.DataFrame
    data: str


def read_outcomes(
    content: bytes,
    *,
    route: str | None = None,
    min_concurrency: int | None = None,
    max_concurrency: int | None = None,
) -> Outcomes:
    """Read the file and keep the rows of a route and of a band of concurrency.

    Columns ``duration_s`` (seconds, above 0), ``abandoned`` (yes or no, true or false, 1 or 0) and
    ``session``; ``task``, ``route`` and ``concurrency`` may be there, and the last two must be where
    rows are chosen by them.

    Raises:
        UnknownKey: a column that nothing reads.
        InputError: no CSV in UTF-8, a column missing, or a cell that cannot be read, with its row.
        EvidenceError: no row is left.
    """
    header, rows = _cells(content)
    _check_header(header)
    wanted = {
        "route": route is not None,
        "concurrency": min_concurrency is not None or max_concurrency is not None,
    }
    for name, needed in wanted.items():
        if needed and name not in header:
            raise InputError(
                "is missing, and rows are to be chosen by it",
                field=f"outcomes.{name}",
                remedy="add the column, or take every row",
            )
    columns: dict[str, list[Any]] = {name: [] for name in header}
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise InputError(
                f"has {len(row)} values for {len(header)} columns",
                field="outcomes",
                value=f"row {number}",
                remedy="give one value for each column",
            )
        for name, text in zip(header, row, strict=True):
            columns[name].append(_value(name, text.strip(), number))
    table = pd.DataFrame(columns)
    if route is not None:
        table = table[table["route"] == route]
    if min_concurrency is not None:
        table = table[table["concurrency"] >= min_concurrency]
    if max_concurrency is not None:
        table = table[table["concurrency"] <= max_concurrency]
    if table.empty:
        raise EvidenceError(
            "holds no outcome of that route and load",
            field="outcomes",
            value=f"{len(rows)} rows in all",
            remedy="record some, or choose others",
        )
    return Outcomes(table[list(REQUIRED)], hashlib.sha256(content).hexdigest())


def _cells(content: bytes) -> tuple[list[str], list[list[str]]]:
    try:
        text = content.decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"cannot be read: {error}",
            field="outcomes",
            value=f"{len(content)} bytes",
            remedy="write a CSV file in UTF-8",
        ) from error
    if not rows:
        raise InputError(
            "the file is empty",
            field="outcomes",
            remedy=f"write a CSV file whose first line is {','.join(REQUIRED)}",
        )
    return [name.strip() for name in rows[0]], rows[1:]


def _check_header(header: list[str]) -> None:
    known = (*REQUIRED, *OPTIONAL)
    for name in header:
        if name not in known:
            raise UnknownKey(
                "is not a column of outcomes",
                field="outcomes",
                value=name,
                remedy=f"use {', '.join(known)}",
            )
        if header.count(name) > 1:
            raise InputError(
                "must be given once", field=f"outcomes.{name}", remedy="leave one column"
            )
    for name in REQUIRED:
        if name not in header:
            raise InputError(
                "is missing", field=f"outcomes.{name}", remedy=f"give {', '.join(REQUIRED)}"
            )


def _value(name: str, text: str, row: int) -> str | int | float:
    where = {"field": f"outcomes.{name}", "value": f"{text!r} in row {row}"}
    if name == "abandoned":
        if text.lower() not in _YES_NO:
            raise InputError("is no outcome", remedy="use yes or no", **where)
        return _YES_NO[text.lower()]
    if name in {"duration_s", "concurrency"}:
        try:
            number = float(text)
        except ValueError:
            raise InputError("is no number", remedy="use seconds, or a count", **where) from None
        if not math.isfinite(number) or number <= 0:
            raise InputError("is not above 0 and finite", remedy="correct the row", **where)
        return number
    if not text:
        raise InputError("is blank", remedy="name every session, task and route", **where)
    return text
