"""What commands share: options, reading documents, printing records."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gatekeeper.cli.typed import typed
from gatekeeper.core.yaml_documents import from_yaml
from gatekeeper.errors import InputError, TraceError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Seconds",
    "as_json_option",
    "counted",
    "home_option",
    "minute",
    "print_document",
    "print_table",
    "read_document",
    "short_digest",
    "unreadable",
]

_F = TypeVar("_F", bound="Callable[..., Any]")

_WIDE = 100
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Seconds(click.FloatRange):
    """A finite number of seconds, at least ``min``."""

    name = "seconds"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Convert as a range does, and refuse what is no duration."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not finite.", param, ctx)
        return seconds


def as_json_option(command: _F) -> _F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def home_option(command: _F) -> _F:
    """``--home``, for commands that work on the database themselves."""
    return click.option(
        "--home",
        type=click.Path(path_type=Path),
        help="Folder of state and database; GATEKEEPER_HOME otherwise.",
    )(command)


def print_document(document: object) -> None:
    """Print JSON."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], empty: str) -> None:
    """Print ``columns`` (key to heading) of rows, or the sentence ``empty``."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        click.echo(typed(empty))
        return
    table = Table(box=None, pad_edge=False)
    for heading in columns.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    console = Console(highlight=False, markup=False)
    # Into a pipe, lines stay whole however long they are.
    console.width = console.width if console.is_terminal else 10 * _WIDE
    console.print(table)


def _cell(value: object) -> str:
    from gatekeeper.reports.number_forms import count

    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    if isinstance(value, float):
        return repr(value).replace(
            "-", "\N{MINUS SIGN}"
        )  # every digit: it is compared with another
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def minute(stamp: str | None) -> str | None:
    """A point in time as tables show it, ``2026-12-01 13:26 UTC``; None stays None."""
    from gatekeeper.reports.route_report_gates import moment

    return None if stamp is None else moment(stamp)


def short_digest(text: str) -> str:
    """Twelve digits of a digest, as reports show it; anything else, such as an alias, whole."""
    return text[:12] if _SHA256.fullmatch(text) else text


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 span``, ``2 spans``."""
    from gatekeeper.reports.number_forms import count

    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def unreadable(path: Path, error: OSError) -> TraceError:
    """The error of a trace file that cannot be read; of a folder its files are asked for."""
    names = path / "*.json" if path.is_dir() else "traces/*.json"
    return TraceError(
        (error.strerror or str(error)).lower(),
        field="file",
        value=str(path),
        remedy=f"name readable trace files, such as {names}",
    )


def read_document(path: Path) -> dict[str, Any]:
    """Read one YAML or JSON mapping.

    Raises:
        InputError: the file is missing, unreadable or not a mapping.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            (error.strerror or str(error)).lower(),
            field="file",
            value=str(path),
            remedy="name a readable file",
        ) from error
    return from_yaml(data, file=str(path))
