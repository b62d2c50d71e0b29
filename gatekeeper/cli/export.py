"""``gatekeeper export``: configuration as files that ``gatekeeper apply`` reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import Conflict, InputError, Unavailable, printable

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
_NAMED = 10
"""So many edited files are named, the others counted."""


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write one file for each thing there; otherwise all go to standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ, unasked.")
@as_json_option
def export(output: Path | None, *, force: bool, as_json: bool) -> None:
    """Print or write policies, economics, aliases, routes and schedules as documents.

    Applying them changes nothing. Artifacts, tokens and evidence are no configuration, nor is the
    pause of a schedule. Files of FOLDER that differ from what would be written are overwritten only
    after a question, or with --force.
    """
    from gatekeeper.cli.http import client

    with client() as http:
        documents: list[dict[str, Any]] = http.get("/v1/configuration").json()["items"]
    if output is not None:
        texts = _texts(output, documents)
        if not force:
            _ask(
                output,
                [path for path, text in texts.items() if _differs(path, text)],
                as_json=as_json,
            )
        stale = _write(output, texts)
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


def _texts(folder: Path, documents: Sequence[Mapping[str, Any]]) -> dict[Path, str]:
    """What goes into which file below the folder."""
    from gatekeeper.core.names import check_name

    texts = {}
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
        texts[folder / _FOLDERS[kind] / f"{name}.yaml"] = _text(document)
    return texts


def _differs(path: Path, text: str) -> bool:
    """Whether writing the text there would lose what somebody wrote."""
    try:
        return path.read_bytes() != text.encode()
    except OSError:
        return False  # not there; what cannot be read, writing says


def _ask(folder: Path, edited: Sequence[Path], *, as_json: bool) -> None:
    """Have it agreed to that these files are overwritten.

    Raises:
        Conflict: there are some, and nobody to ask.
    """
    if not edited:
        return
    names = ", ".join(str(path.relative_to(folder)) for path in edited[:_NAMED])
    more = f" and {len(edited) - _NAMED} more" if len(edited) > _NAMED else ""
    if as_json or not sys.stdin.isatty():
        raise Conflict(
            f"has files that differ from what would be written: {names}{more}",
            field="output",
            value=str(folder),
            remedy="give --force to overwrite them, or name another folder",
        )
    click.echo(
        printable(f"{folder} has files that differ from what would be written: {names}{more}")
    )
    click.confirm("Overwrite them?", abort=True)


def _write(folder: Path, texts: Mapping[Path, str]) -> list[Path]:
    """Write the files; return those of such names that were there and are none of them."""
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="output",
            value=str(error.filename or folder),
            remedy="name a writable folder",
        ) from error
    there = {path for one in _FOLDERS.values() for path in (folder / one).glob("*.yaml")}
    return sorted(there - set(texts))
