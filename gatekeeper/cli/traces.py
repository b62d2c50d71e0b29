"""``gatekeeper traces``: files into the server, and the tasks that came of them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table, unreadable
from gatekeeper.cli.typed import typed
from gatekeeper.errors import GatekeeperError, InputError, printable

__all__ = ["traces"]


@click.group()
def traces() -> None:
    """Send trace files to the server, and list the tasks made of them."""


@traces.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@as_json_option
def import_(files: tuple[Path, ...], *, as_json: bool) -> None:
    """Send trace FILES in any known format to the server.

    A span that is stored already is not stored again, so that the same file may be sent twice.
    Exit status 1 when spans were rejected, 2 when a file could not be used; the others are sent.
    """
    from gatekeeper.cli.http import client

    done: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    with client(timeout_s=300.0) as http:
        for file in files:
            try:
                packed = gzip.compress(_read(file), compresslevel=1)
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"}
                answer = http.post("/v1/traces/import", content=packed, headers=headers).json()
            except InputError as error:
                refused.append({"file": str(file), "reason": error.about(str(file))})
            else:
                done.append({"file": str(file), **answer})
    if as_json:
        print_document({"files": done, "refused": refused})
    else:
        _print_imports(done, refused)
    if refused:
        raise SystemExit(GatekeeperError.exit_code)
    if any(one["rejected_spans"] for one in done):
        raise SystemExit(1)


def _print_imports(done: list[dict[str, Any]], refused: list[dict[str, str]]) -> None:
    columns = {
        "file": "file",
        "source_format": "format",
        "tasks": "tasks",
        "new_spans": "new spans",
        "known_spans": "known",
        "rejected_spans": "rejected",
    }
    if done:
        print_table([{**one, "tasks": len(one["tasks"])} for one in done], columns, "")
    for one in done:
        if one["message"]:
            click.echo(f"rejected in {one['file']}: {one['message']}", err=True)
    for one in refused:
        # as an error is told, since the command ends as one
        said = f"gatekeeper: error: file={printable(one['file'])}: {typed(one['reason'])}"
        click.echo(said, err=True)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


@traces.command("list")
@click.option("--route", help="Only tasks with calls of this route.")
@click.option("--state", type=click.Choice(["open", "complete"]), help="Only tasks in this state.")
@as_json_option
def list_(route: str | None, state: str | None, *, as_json: bool) -> None:
    """List the tasks that the server has seen, newest first."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/tasks", route=route, state=state)
        unmatched = http.get("/v1/tasks", params={"limit": 1}).json()["unmatched_calls"]
    if as_json:
        print_document({"items": items, "unmatched_calls": unmatched})
        return
    columns = {
        "id": "task",
        "state": "state",
        "version": "version",
        "routes": "routes",
        "calls": "calls",
        "unmatched_calls": "unmatched",
        "grade": "grade",
        "wall": "wall",
        "session": "session",
    }
    rows = [
        {**one, "routes": ", ".join(one["routes"]) or None, "wall": _wall(one)} for one in items
    ]
    print_table(rows, columns, "no tasks; send spans to /v1/traces, or gatekeeper traces import")
    if any(one["state"] == "open" for one in items):
        from gatekeeper.core.task_assignment import DEFAULT_QUIET_S

        click.echo(
            "an open task completes, and gets its figures, when no span of it has come for "
            f"{DEFAULT_QUIET_S:g} s (or for quiet_s of its route's task_rules)",
            err=True,
        )
    if unmatched:
        from gatekeeper.reports.number_forms import count

        click.echo(
            f"{count(unmatched)} model calls belong to no route and are not priced", err=True
        )


def _wall(task: dict[str, Any]) -> str | None:
    from gatekeeper.reports.number_forms import duration

    return None if task["wall_s"] is None else duration(task["wall_s"])
