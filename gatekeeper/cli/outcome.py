"""``gatekeeper outcome``: check recorded task outcomes of two arms."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.errors import InputError, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

__all__ = ["outcome"]

_SUCCESS = ("baseline_success", "candidate_success")
_COST = ("baseline_cost", "candidate_cost")
_COLUMNS = ("task", *_SUCCESS, *_COST)
_OPTIONAL = ("cluster",)
_BINARY = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


@click.group()
def outcome() -> None:
    """Success of the same tasks with and without speculation, from recorded pairs."""


@outcome.command()
@click.argument("pairs", type=click.Path(path_type=Path), metavar="PAIRS.csv")
@click.option("--margin", default=0.02, show_default=True, help="Largest loss of success allowed.")
@click.option("--alpha", default=0.05, show_default=True, help="One-sided error of each bound.")
@click.option(
    "--max-cost-ratio",
    type=float,
    help="Largest cost per success, candidate over baseline; without it only a proven rise fails.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def check(
    *, pairs: Path, margin: float, alpha: float, max_cost_ratio: float | None, as_json: bool
) -> None:
    """Check PAIRS.csv: exit 0 PASS, 1 FAIL or INCONCLUSIVE, 2 bad input.

    Columns: task, baseline_success, candidate_success, baseline_cost, candidate_cost and, where
    tasks depend on each other, cluster.
    """
    from gatekeeper.gates.outcome_check import check as answer_for

    if max_cost_ratio is not None and not max_cost_ratio > 0:
        raise InputError(
            "must be above 0", field="max_cost_ratio", value=max_cost_ratio, remedy="use e.g. 1.05"
        )
    try:
        answer = answer_for(_load(pairs), margin=margin, alpha=alpha, max_cost_ratio=max_cost_ratio)
    except InputError as error:
        raise _about(error, pairs) from error
    click.echo(json.dumps(answer, allow_nan=False) if as_json else _text(answer))
    sys.exit(0 if answer["outcome"] == "PASS" else 1)


def _load(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except OSError as error:
        raise InputError(
            (error.strerror or str(error)).lower(), field="pairs", remedy="name a readable CSV file"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"cannot be read: {error}", field="pairs", remedy="write a CSV file in UTF-8"
        ) from error
    rows = [row for row in rows if row]
    first_line = f"write a CSV file whose first line is {','.join(_COLUMNS)}"
    if not rows:
        raise InputError("the file is empty", field="pairs", remedy=first_line)
    header = [name.strip() for name in rows[0]]
    if header[0].startswith(("{", "[")):
        raise InputError("looks like JSON, not CSV", field="pairs", remedy=first_line)
    _check_header(header)
    columns: dict[str, list[Any]] = {name: [] for name in header}
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise InputError(
                f"has {len(row)} values for {len(header)} columns",
                field="pairs",
                value=f"row {number}",
                remedy="give both arms of every task",
            )
        for name, value in zip(header, row, strict=True):
            columns[name].append(_value(name, value.strip(), number))
    return pd.DataFrame(columns)


def _about(error: InputError, path: Path) -> InputError:
    """The same error, with the file in the place of what it calls pairs."""
    whole, _, part = (error.field or "").partition(".")
    if whole != "pairs":
        return error
    field = f"{path}: {part}" if part else str(path)
    return type(error)(error.message, field=field, value=error.value, remedy=error.remedy)


def _check_header(header: list[str]) -> None:
    known = (*_COLUMNS, *_OPTIONAL)
    for name in header:
        if name not in known:
            raise UnknownKey(
                "is not a column of pairs",
                field="pairs.column",
                value=name,
                remedy=f"use {', '.join(known)}",
            )
    for name in _COLUMNS:
        if header.count(name) != 1:
            raise InputError(
                "must be given once",
                field="pairs.column",
                value=name,
                remedy=f"use {', '.join(_COLUMNS)}",
            )
    if header.count("cluster") > 1:
        raise InputError("must be given once", field="pairs.cluster", remedy="leave one")


def _value(name: str, text: str, row: int) -> str | int | float:
    """Read one cell; ranges are the statistics' to check."""
    where = {"field": f"pairs.{name}", "value": f"{text!r} in row {row}"}
    if name in _SUCCESS:
        if text.lower() not in _BINARY:
            raise InputError("is not a success", remedy="use 0 or 1", **where)
        return _BINARY[text.lower()]
    if name in _COST:
        try:
            return float(text)
        except ValueError:
            raise InputError("is not a cost", remedy="use a number", **where) from None
    if not text:
        raise InputError("is blank", remedy="name every pair", **where)
    return text


def _text(answer: Mapping[str, Any]) -> str:
    from gatekeeper.reports.number_forms import count

    needed = answer["pairs_needed"]
    n, b, c = (count(answer[name]) for name in "nbc")
    lines = [f"{answer['outcome']}: {n} pairs, b={b}, c={c}"]
    lines += [f"{p['outcome']:<12} {p['name']}: {p['detail']}" for p in answer["parts"]]
    if needed is not None:
        said = (
            f"equal arms pass 9 times in 10 with about {count(needed)} pairs at this margin and "
            "discordance"
        )
        success = next(part for part in answer["parts"] if part["name"] == "success")
        if success["outcome"] == "PASS" and answer["n"] < needed:
            said += (
                "; here fewer were enough, because the low end of the interval is inside the margin "
                "already"
            )
        lines.append(said)
    return "\n".join(lines)
