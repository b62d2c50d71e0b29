"""``gatekeeper report``: why a route is decided as it is, with the claim of every figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import InputError, printable

if TYPE_CHECKING:
    import httpx

    from gatekeeper.reports.route_report_figures import Report

__all__ = ["print_report", "report", "write_files", "write_report", "write_text"]

_PIPE_WIDTH = 120


@click.command()
@click.argument("route")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write Markdown.")
@as_json_option
def report(route: str, html: Path | None, markdown: Path | None, *, as_json: bool) -> None:
    """Print the report of ROUTE: decision, gates, surfaces, value, and what would change it.

    With --html or --markdown the report goes into that file, with --json its document is printed.
    """
    from gatekeeper.cli.http import client

    with client() as http:
        document, laid_out = write_report(http, route, html=html, markdown=markdown, quiet=as_json)
    if as_json:
        print_document(document)
    elif html is None and markdown is None:
        print_report(laid_out)


def print_report(laid_out: Report) -> None:
    """Print a report, as wide as the terminal."""
    from rich.console import Console

    from gatekeeper.reports.route_terminal import render_terminal

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(render_terminal(laid_out, width=console.width - 2))


def write_report(
    http: httpx.Client,
    route: str,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    quiet: bool = False,
) -> tuple[dict[str, Any], Report]:
    """Fetch a route's report, write it to the files named, and return it with its layout.

    Raises:
        InputError: a file cannot be written.
    """
    from gatekeeper.cli.http import segment
    from gatekeeper.reports.route_report import lay_out

    document: dict[str, Any] = http.get(f"/v1/reports/{segment(route)}").json()
    laid_out = lay_out(document)
    write_files(laid_out, html=html, markdown=markdown, quiet=quiet)
    return document, laid_out


def write_files(
    laid_out: Report, *, html: Path | None, markdown: Path | None, quiet: bool = False
) -> None:
    """Write a report to the files named.

    Raises:
        InputError: a file cannot be written.
    """
    if html is not None:
        from gatekeeper.reports.route_html import render_html

        write_text(html, render_html(laid_out), quiet=quiet)
    if markdown is not None:
        from gatekeeper.reports.route_markdown import render_markdown

        write_text(markdown, render_markdown(laid_out), quiet=quiet)


def write_text(path: Path, text: str, *, quiet: bool) -> None:
    """Write one file and, unless ``quiet``, say so.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(
            (error.strerror or str(error)).lower(),
            field="file",
            value=str(path),
            remedy="name a file that can be written",
        ) from error
    if not quiet:
        click.echo(f"written: {printable(str(path))}")
