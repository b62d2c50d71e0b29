"""``gatekeeper profile``: what faster decoding would save, from trace files alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gatekeeper import plugins
from gatekeeper.core.critical_path import factor
from gatekeeper.core.task_profile import profile_task, token_rates
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.errors import GatekeeperError, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.traces import Trace

__all__ = ["profile"]

T = TypeVar("T")

_MANY_FILES = 20
_MANY_TASKS = 8
_LONGEST = 20


def _ratio(_ctx: click.Context, _param: click.Parameter, value: str) -> Fraction:
    """Read the speed-up as the exact decimal that was typed."""
    if len(value) > _LONGEST or re.search(r"e[+-]?\d{2}", value, re.IGNORECASE):
        raise click.BadParameter("is out of range; use a number such as 2 or 1.5")
    try:
        return 1 / factor(value)
    except GatekeeperError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--decode-speedup",
    "speedup",
    default="2",
    show_default=True,
    metavar="S",
    callback=_ratio,
    help="How many times as fast decoding becomes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--full", is_flag=True, help="Print every task in full, however many there are.")
def profile(files: tuple[Path, ...], speedup: Fraction, *, as_json: bool, full: bool) -> None:
    """Say what faster decoding would save each task in FILES.

    Reads OTLP JSON and protobuf, Langfuse exports and Jaeger JSON, told apart by content. Needs
    no database and no server. Exit status 2 when no file could be profiled.
    """
    loaded, refused = _load(files)
    rates = token_rates(trace for _, traces in loaded for trace in traces)
    profiles: list[tuple[str, TaskProfile]] = []
    for file, traces in _progress(loaded, "profiling"):
        try:
            made = [(file, profile_task(trace, speedup=speedup, rates=rates)) for trace in traces]
        except TraceError as error:
            refused.append((file, str(error)))
        else:
            profiles += made
    if as_json:
        _print_json(profiles, refused)
    else:
        _print_report(profiles, refused, full=full)
    if not profiles:
        sys.exit(2)


def _load(
    files: Iterable[Path],
) -> tuple[list[tuple[str, tuple[Trace, ...]]], list[tuple[str, str]]]:
    formats = list(plugins.load_all("gatekeeper.traces").values())
    loaded = []
    refused = []
    for path in _progress(list(files), "reading"):
        try:
            loaded.append((str(path), read_traces(path.read_bytes(), formats)))
        except OSError as error:
            problem = TraceError(
                (error.strerror or str(error)).lower(),
                field="file",
                value=str(path),
                remedy="name readable trace files, such as traces/*.json",
            )
            refused.append((str(path), str(problem)))
        except TraceError as error:
            refused.append((str(path), str(error)))
    return loaded, refused


def _progress(items: list[T], label: str) -> Iterable[T]:
    """Show a bar on a terminal's stderr when there is much to do; otherwise just iterate."""
    if len(items) <= _MANY_FILES or not sys.stderr.isatty():
        yield from items
        return
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield from bar


def _print_json(profiles: list[tuple[str, TaskProfile]], refused: list[tuple[str, str]]) -> None:
    from gatekeeper.reports.profile import profile_json

    document = {
        "tasks": [profile_json(one, file) for file, one in profiles],
        "refused": [{"file": file, "reason": reason} for file, reason in refused],
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_report(
    profiles: list[tuple[str, TaskProfile]], refused: list[tuple[str, str]], *, full: bool
) -> None:
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    from gatekeeper.reports.profile import render_profile, render_summary

    console = Console(highlight=False)
    if len(profiles) > _MANY_TASKS and not full:
        console.print(render_summary(profiles, width=min(console.width, 120)))
        console.print(Text("\n --full prints every task", style="dim"))
    else:
        for i, (file, one) in enumerate(profiles):
            if i:
                console.print(Rule(style="dim"))
            console.print(render_profile(one, file, width=min(console.width, 120)))
    errors = Console(stderr=True, highlight=False)
    for file, reason in refused:
        errors.print(Text.assemble((f"refused {file}", "bold red"), f": {reason}"), soft_wrap=True)
