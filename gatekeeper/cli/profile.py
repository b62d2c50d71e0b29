"""``gatekeeper profile``: what faster work would save, from trace files alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gatekeeper import plugins
from gatekeeper.core.task_assignment import RoutedRules, Routing, assign
from gatekeeper.core.task_profile import profile_task, token_rates
from gatekeeper.core.tasks import build_task
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.core.traces import assemble
from gatekeeper.core.what_if import Change, WhatIf, names_of
from gatekeeper.errors import GatekeeperError, InputError, TraceError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gatekeeper.core.joint_ratios import JointRatio
    from gatekeeper.core.task_profile import TaskProfile
    from gatekeeper.core.traces import Trace
    from gatekeeper.reports.profile_measured import Measured

__all__ = ["profile"]

T = TypeVar("T")

_MANY_FILES = 20
_MANY_TASKS = 8
_LONGEST = 20
_FEW_NAMES = 8


def _change(text: str) -> Change:
    """Read one change; the speed-up is the exact decimal that was typed."""
    ratio = text.rpartition("=")[2]
    if len(ratio) > _LONGEST or re.search(r"e[+-]?\d{2}", ratio, re.IGNORECASE):
        raise click.BadParameter(f"{text[:40]}: is out of range; use a number such as 2 or 1.5")
    try:
        return Change.parse(text)
    except GatekeeperError as error:
        raise click.BadParameter(str(error)) from error


def _ratio(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Change | None:
    return None if value is None else _change(f"decode={value}")


def _changes(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> tuple[Change, ...]:
    return tuple(map(_change, values))


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--speedup",
    "changes",
    multiple=True,
    metavar="WORK=S",
    callback=_changes,
    help="How many times as fast some work becomes: a kind (decode=2, prefill=0.9) or a kind and a "
    "name (tool:search=1.5; * and ? stand for anything). May be given several times. Without any, "
    "decode=2.",
)
@click.option(
    "--decode-speedup",
    "decode",
    metavar="S",
    callback=_ratio,
    help="The same as --speedup decode=S.",
)
@click.option("--route", help="Only model calls of this route become faster.")
@click.option(
    "--route-file",
    type=click.Path(path_type=Path),
    help="The route's YAML, as for gatekeeper route set --file: its rules say which calls are "
    "its own. Without it, those that name it in gatekeeper.route.",
)
@click.option(
    "--serving",
    type=click.Path(path_type=Path),
    help="Table confirm of a serving gate run (Parquet, from /v1/gate-runs/ID/evidence/confirm): what "
    "its ratios of first token and decoding, drawn together for each call, save.",
)
@click.option("--concurrency", type=int, help="Level of --serving; needed where it has several.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line for each segment.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page.")
@click.option("--full", is_flag=True, help="Print every task in full, however many there are.")
def profile(
    files: tuple[Path, ...],
    *,
    changes: tuple[Change, ...],
    decode: Change | None,
    route: str | None,
    route_file: Path | None,
    serving: Path | None,
    concurrency: int | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    full: bool,
) -> None:
    """Say what faster decoding, or any faster work, would save each task in FILES.

    The format of a file is told by its content; several files may hold one task. Needs no database
    and no server. Exit status 2 when no file could be profiled.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    asked = _asked(changes, decode, route, route_file)
    ratios = _ratios(serving, concurrency)
    loaded, refused = _load(files)
    profiles = _profiles(_together(loaded), refused, asked)
    _check_names(asked, [one for _, one in profiles])
    measured = _measured([one for _, one in profiles], ratios)
    if as_json:
        _print_json(profiles, refused, measured)
    elif as_csv:
        _print_csv(profiles, refused)
    elif html is None:
        _print_report(profiles, refused, measured, full=full)
    else:
        _print_refused(refused, failed=not profiles)
    if html is not None and profiles:
        from gatekeeper.cli.report import write_text
        from gatekeeper.reports.profile_page import profile_html

        write_text(html, profile_html(profiles, refused), quiet=as_json or as_csv)
    if not profiles:
        sys.exit(2)


def _asked(
    changes: tuple[Change, ...], decode: Change | None, route: str | None, route_file: Path | None
) -> WhatIf:
    """Put together what gets faster.

    Raises:
        click.UsageError: options that contradict each other, or a route file that cannot be used.
    """
    every = (*changes, *(() if decode is None else (decode,)))
    if route_file is not None and route is None:
        raise click.UsageError("--route-file needs --route, the route's name")
    try:
        routing = Routing() if route is None else _routing(route, route_file)
        return WhatIf(every or WhatIf.decode(2).changes, route, routing)
    except GatekeeperError as error:
        raise click.UsageError(str(error)) from error


def _ratios(
    serving: Path | None, concurrency: int | None
) -> tuple[int, tuple[JointRatio, ...]] | None:
    """Level of concurrency and ratios of a serving gate's table, where one is named.

    Raises:
        click.UsageError: a table that cannot be used, or a level without one.
    """
    if serving is None:
        if concurrency is not None:
            raise click.UsageError("--concurrency needs --serving, the gate's table")
        return None
    from gatekeeper.cli.profile_serving import read_ratios

    try:
        return read_ratios(serving, concurrency)
    except GatekeeperError as error:
        raise click.UsageError(str(error)) from error


def _measured(
    profiles: Sequence[TaskProfile], ratios: tuple[int, tuple[JointRatio, ...]] | None
) -> Sequence[Measured | None]:
    if ratios is None:
        return [None] * len(profiles)
    from gatekeeper.cli.profile_serving import measured_savings

    return measured_savings(profiles, *ratios)


def _routing(route: str, file: Path | None) -> Routing:
    if file is None:
        return Routing((RoutedRules(route),))
    from gatekeeper.cli.show import read_document
    from gatekeeper.core.routing import Rule

    rules = read_document(file).get("rules") or []
    if not isinstance(rules, list):
        raise InputError("is not a list", field="rules", value=rules, remedy="write - {model: …}")
    read = (Rule.from_dict(one, route=route, field=f"rules[{i}]") for i, one in enumerate(rules))
    return Routing((RoutedRules(route, tuple(read)),))


def _profiles(
    loaded: Sequence[tuple[str, tuple[Trace, ...]]], refused: list[tuple[str, str]], asked: WhatIf
) -> list[tuple[str, TaskProfile]]:
    every = [trace for _, traces in loaded for trace in traces]
    rates = token_rates(every, routes=_routes(every, asked))
    profiles: list[tuple[str, TaskProfile]] = []
    for file, traces in _progress(list(loaded), "profiling"):
        try:
            made = [(file, profile_task(trace, what_if=asked, rates=rates)) for trace in traces]
        except TraceError as error:
            refused.append((file, error.about(file)))
        else:
            profiles += made
    return profiles


def _routes(traces: Iterable[Trace], asked: WhatIf) -> dict[tuple[str, str], str]:
    """Route of each call, by trace and span, where one is asked about."""
    if asked.route is None:
        return {}
    return {
        (trace.trace_id, call.span_id): call.route
        for trace in traces
        for call in assign(build_task(trace), asked.routing)
        if call.route is not None
    }


def _check_names(asked: WhatIf, profiles: Sequence[TaskProfile]) -> None:
    """Refuse a name or a route that nothing in these files has: most likely it is misspelt.

    Raises:
        click.UsageError: it names what there is.
    """
    if not profiles:
        return
    tasks = [one.task for one in profiles]
    if asked.route is not None and not any(
        call.route == asked.route for task in tasks for call in assign(task, asked.routing)
    ):
        problem = InputError(
            "no model call of these files belongs to it",
            field="route",
            value=asked.route,
            remedy="give its rules with --route-file, or set gatekeeper.route on spans",
        )
        raise click.UsageError(str(problem))
    for index, change in enumerate(asked.changes):
        if change.name is not None and not any(one.effects[index].spans for one in profiles):
            names = _names(profiles, change.kind)
            problem = InputError(
                f"no {change.kind} of these files has this name",
                field="speedup",
                value=change.segment,
                remedy=f"use {names}" if names else f"there is no {change.kind} in them at all",
            )
            raise click.UsageError(str(problem))


def _names(profiles: Sequence[TaskProfile], kind: str) -> str:
    """Some names of work of a kind, as they are typed."""
    found = dict.fromkeys(
        f"{kind}:{name}"
        for one in profiles
        for node, own in enumerate(one.graph.kind)
        if own == kind and (work := one.graph.work[node]) is not None
        for name in names_of(one.task, work)
    )
    more = ", …" if len(found) > _FEW_NAMES else ""
    return ", ".join(list(found)[:_FEW_NAMES]) + more


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
            from gatekeeper.cli.show import unreadable

            refused.append((str(path), unreadable(path, error).about(str(path))))
        except TraceError as error:
            refused.append((str(path), error.about(str(path))))
    return loaded, refused


def _together(
    loaded: Iterable[tuple[str, tuple[Trace, ...]]],
) -> list[tuple[str, tuple[Trace, ...]]]:
    """One task of the parts that several files hold: each exporter writes its own spans."""
    parts: dict[str, list[tuple[str, Trace]]] = {}
    for file, traces in loaded:
        for trace in traces:
            parts.setdefault(trace.trace_id, []).append((file, trace))
    found = []
    for name, held in parts.items():
        files = dict.fromkeys(file for file, _ in held)
        if len(files) == 1:
            found.append((held[0][0], tuple(trace for _, trace in held)))
            continue
        whole = assemble(
            (span for _, trace in held for span in trace.spans),
            source_format=" + ".join(dict.fromkeys(trace.source_format for _, trace in held)),
            repairs={name: [note for _, trace in held for note in trace.repairs]},
        )
        found.append((" + ".join(files), whole))
    return found


def _progress(items: list[T], label: str) -> Iterable[T]:
    """Show a bar on a terminal's stderr when there is much to do; otherwise just iterate."""
    if len(items) <= _MANY_FILES or not sys.stderr.isatty():
        yield from items
        return
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield from bar


def _print_json(
    profiles: list[tuple[str, TaskProfile]],
    refused: list[tuple[str, str]],
    measured: Sequence[Measured | None],
) -> None:
    from gatekeeper.reports.profile import calls_json, profile_json
    from gatekeeper.reports.profile_measured import measured_json
    from gatekeeper.reports.profile_words import excluded

    document = {
        "tasks": [
            {
                **profile_json(one, file),
                "measured_saving_s": measured_json(found),
                "calls": calls_json(one),
            }
            for (file, one), found in zip(profiles, measured, strict=True)
        ],
        "refused": [{"file": file, "reason": reason} for file, reason in refused],
        "excluded": excluded([one for _, one in profiles]),
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_csv(profiles: list[tuple[str, TaskProfile]], refused: list[tuple[str, str]]) -> None:
    from gatekeeper.reports.segments import segments_csv

    click.echo(segments_csv(profiles), nl=False)
    _print_refused(refused, failed=not profiles)


def _print_report(
    profiles: list[tuple[str, TaskProfile]],
    refused: list[tuple[str, str]],
    measured: Sequence[Measured | None],
    *,
    full: bool,
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
        for i, ((file, one), found) in enumerate(zip(profiles, measured, strict=True)):
            if i:
                console.print(Rule(style="dim"))
            width = min(console.width, 120)
            console.print(render_profile(one, file, width=width, measured=found))
    _print_refused(refused, failed=not profiles)


def _print_refused(refused: Iterable[tuple[str, str]], *, failed: bool) -> None:
    """Name what was left out; as errors are told where that was all, and the command fails."""
    from rich.console import Console
    from rich.text import Text

    errors = Console(stderr=True, highlight=False)
    begin = "gatekeeper: error: file=" if failed else "refused "
    for file, reason in refused:
        said = Text.assemble((f"{begin}{printable(file)}", "bold red"), f": {printable(reason)}")
        errors.print(said, soft_wrap=True)
