"""``gatekeeper apply``: configuration from files, shown as a diff before it is stored."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.decision_changes import changes as decision_changes
from gatekeeper.cli.decision_changes import decisions, price_all, print_changes
from gatekeeper.cli.show import as_json_option, print_document
from gatekeeper.errors import InputError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["apply"]

_MARKS = {"add": "+", "change": "~", "remove": "-", "keep": "="}
_PLURAL = {"policy": "policies", "alias": "aliases", "schedule": "schedules"}
_SUFFIXES = {".yaml", ".yml", ".json"}


@click.command()
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="YAML or JSON; a folder with all below it; - for standard input. Again for more.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Apply without asking.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what no file declares, of the kinds that the files have. Routes always stay.",
)
@as_json_option
def apply(paths: tuple[Path, ...], *, dry_run: bool, yes: bool, prune: bool, as_json: bool) -> None:
    """Make policies, economics, aliases, routes and schedules what files say.

    What changes is shown first, field by field. All of it is applied in one transaction, or nothing;
    applying the same again changes nothing. `gatekeeper export` writes such files.
    """
    from gatekeeper.cli.http import client

    if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
        raise InputError(
            "is needed where nobody can be asked", field="--yes", remedy="or give --dry-run"
        )
    documents = [{"file": n, "document": d} for path in paths for n, d in _read(path).items()]
    body: dict[str, Any] = {"documents": documents, "prune": prune}
    with client(timeout_s=600.0) as http:
        plan = http.post("/v1/configuration", json={**body, "dry_run": True}).json()
        changing = [one for one in plan["changes"] if one["change"] != "keep"]
        if not as_json:
            _print(plan["changes"], plan.get("not_pruned", ()))
        if dry_run or not changing:
            if as_json:
                print_document({**plan, "decisions": []})
            return
        if not yes:
            click.confirm("Apply this?", abort=True)
        before = decisions(http)
        done = http.post("/v1/configuration", json={**body, "plan": plan["plan"]}).json()
        price_all(http)
        changed = decision_changes(before, decisions(http))
    if as_json:
        print_document({**done, "decisions": changed})
        return
    click.echo("applied")
    print_changes(changed)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Documents of a path, by the name that errors give them.

    Raises:
        InputError: there is none, or one cannot be read.
    """
    from gatekeeper.core.yaml_documents import all_from_yaml

    try:
        if str(path) == "-":
            return all_from_yaml(sys.stdin.buffer.read(), file="stdin")
        files = [path]
        if path.is_dir():
            files = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES)
        found: dict[str, dict[str, Any]] = {}
        for file in files:
            found |= all_from_yaml(file.read_bytes(), file=str(file))
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})",
            field="file",
            value=str(error.filename or path),
            remedy="name a readable file or folder",
        ) from error
    if not found:
        raise InputError(
            "holds no .yaml, .yml or .json file",
            field="file",
            value=str(path),
            remedy="name another folder, or one file",
        )
    return found


def _print(changes: Sequence[Mapping[str, Any]], not_pruned: Sequence[str]) -> None:
    for change in changes:
        where = f" ({change['file']})" if change["file"] else ""
        why = f" stays: {change['why']}" if change["why"] else ""
        line = f"{_MARKS[change['change']]} {change['kind']} {change['name']}{where}{why}"
        click.echo(printable(line))
        for field in change["fields"] if change["change"] == "change" else ():
            sides = [_value(field[side]) for side in ("before", "after") if side in field]
            if "before" not in field:
                sides.insert(0, "unset")
            elif "after" not in field:
                sides.append("unset")
            told = printable(f"{field['field']}: {sides[0]} → {sides[1]}")
            click.echo(f"    {told}")
    for kind in not_pruned:
        click.echo(f"{_PLURAL.get(kind, kind)} are not pruned: no file declares one")
    counts = {what: sum(one["change"] == what for one in changes) for what in _MARKS}
    if not any(counts[what] for what in ("add", "change", "remove")):
        click.echo("nothing to change")
    else:
        words = (
            f"{counts['add']} to add, {counts['change']} to change, {counts['remove']} to remove"
        )
        click.echo(words)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
