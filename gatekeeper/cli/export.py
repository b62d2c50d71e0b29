"""``gatekeeper export``: configuration as files that ``gatekeeper apply`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["export"]

_FOLDERS = {
    "policy": "policies",
    "economics": "economics",
    "alias": "aliases",
    "route": "routes",
    "schedule": "schedules",
}


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write one file for each thing there; otherwise all go to standard output.",
)
@as_json_option
def export(output: Path | None, *, as_json: bool) -> None:
    """Print or write policies, economics, aliases, routes and schedules as documents.

    Applying them changes nothing. Artifacts, tokens and evidence are no configuration, nor is the
    pause of a schedule.
    """
    from gatekeeper.cli.http import client

    with client() as http:
        documents: list[dict[str, Any]] = http.get("/v1/configuration").json()["items"]
    if output is not None:
        stale = _write(output, documents)
        if not as_json:
            click.echo(f"wrote {len(documents)} documents below {output}")
            for path in stale:
                click.echo(f"{path} declares nothing that the server has")
    if as_json:
        print_document({"items": documents})
    elif output is None:
        click.echo("---\n".join(_text(one) for one in documents), nl=False)


def _text(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100)


def _write(folder: Path, documents: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write the documents; return files of such names that were there and are none of them."""
    from gatekeeper.core.names import check_name

    written = set()
    try:
        for document in documents:
            kind, name = document["kind"], document["name"]
            if kind not in _FOLDERS:
                raise InputError(
                    "is not known to this release",
                    field="kind",
                    value=kind,
                    remedy="install the release that the server runs",
                )
            check_name("name", name)  # a server must not choose where we write
            path = folder / _FOLDERS[kind] / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_text(document), encoding="utf-8")
            written.add(path)
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="output",
            value=str(error.filename or folder),
            remedy="name a writable folder",
        ) from error
    there = {path for one in _FOLDERS.values() for path in (folder / one).glob("*.yaml")}
    return sorted(there - written)
