"""``gatekeeper claims``: every printed figure with its equation, recomputed from its evidence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import print_document, print_table

if TYPE_CHECKING:
    from gatekeeper.config import Settings

__all__ = ["claims"]


def _options(command: Any) -> Any:  # noqa: ANN401 - click decorators
    command = click.option(
        "--home",
        type=click.Path(path_type=Path),
        help="Recompute that home's ledger from its evidence.",
    )(command)
    command = click.option("--url", help="Ask this server instead.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


@click.group(invoke_without_command=True)
@_options
@click.pass_context
def claims(context: click.Context, home: Path | None, url: str | None, *, as_json: bool) -> None:
    """List every figure beside its recomputation.

    Without a home or a server: the worked examples of the founding essay. ``claims verify``
    exits 1 and names each claim that its evidence does not reproduce.
    """
    context.obj = (home, url, as_json)
    if context.invoked_subcommand is None:
        _run(home, url, as_json=as_json, verifying=False)


@claims.command()
@_options
@click.pass_obj
def verify(
    outer: tuple[Path | None, str | None, bool],
    home: Path | None,
    url: str | None,
    *,
    as_json: bool,
) -> None:
    """Recompute every figure; exit status 1 when one does not agree."""
    _run(home or outer[0], url or outer[1], as_json=as_json or outer[2], verifying=True)


def _run(home: Path | None, url: str | None, *, as_json: bool, verifying: bool) -> None:
    rows = _rows(home, url)
    wrong = [row for row in rows if not row["agrees"]]
    if as_json:
        print_document({"claims": rows})
    elif verifying:
        for row in wrong:
            click.echo(row["reason"])
        from gatekeeper.reports.number_forms import count

        agreeing, every = count(len(rows) - len(wrong)), count(len(rows))
        click.echo(f"{agreeing} of {every} figures agree with their evidence")
    else:
        columns = {n: n for n in ("id", "equation", "value", "recomputed", "unit", "status")}
        print_table(rows, columns, "the ledger is empty")
    if verifying and wrong:
        sys.exit(1)


def _rows(home: Path | None, url: str | None) -> list[dict[str, Any]]:
    from gatekeeper.config import Settings

    settings = Settings.load(home=home).with_server(url=url)
    if url is None and settings.home_given:
        return _local(home)
    if settings.url is not None:
        return _remote(settings)
    from gatekeeper.core.claims import essay_claims
    from gatekeeper.core.equations import verify as recompute

    return [checked.to_dict() for checked in recompute(essay_claims())]


def _local(home: Path | None) -> list[dict[str, Any]]:
    from gatekeeper.actions.ledger import verify_ledger
    from gatekeeper.cli.local import local_database

    with local_database(home) as (settings, db):
        return verify_ledger(db, settings.evidence)


def _remote(settings: Settings) -> list[dict[str, Any]]:
    from gatekeeper.cli.http import client

    with client(settings, timeout_s=600.0) as http:
        rows: list[dict[str, Any]] = http.get("/v1/claims", params={"verify": "true"}).json()[
            "items"
        ]
    return rows
