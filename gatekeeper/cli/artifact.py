"""``gatekeeper artifact``: register and inspect target-proposer pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table, read_document

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["artifact", "with_digests"]

_MODEL_FIELDS = (
    *("source", "revision", "files", "tokenizer"),
    *("vocab_size", "architecture", "padding_ids"),
)
_PROPOSER_FIELDS = ("source", "files", "tokenizer", "vocab_size", "token_map")


@click.group()
def artifact() -> None:
    """Register and inspect target-proposer pairs."""


@artifact.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--alias", help="Point this alias at it.")
@as_json_option
def register(file: Path, alias: str | None, *, as_json: bool) -> None:
    """Register the artifact in FILE (YAML or JSON).

    Where target or proposer name a source and no files, the engine installed here fetches them
    and takes the digests; the server never opens a model.
    """
    from gatekeeper.cli.http import client, segment

    document = with_digests(read_document(file))
    with client() as http:
        stored = http.post("/v1/artifacts", json=document).json()
        if alias is not None:
            http.put(f"/v1/artifacts/aliases/{segment(alias)}", json={"digest": stored["digest"]})
    if as_json:
        print_document(stored)
    else:
        click.echo(stored["digest"])


def with_digests(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the engine's manifest knows, for sides that give no files.

    Raises:
        InputError: the document does not name its engine.
    """
    complete = dict(document)
    for side, names in (("target", _MODEL_FIELDS), ("proposer", _PROPOSER_FIELDS)):
        section = complete.get(side)
        if isinstance(section, dict) and section.get("source") and not section.get("files"):
            manifest = _manifest(complete, str(section["source"]))
            known = {name: manifest.get(name) for name in names}  # a folder has no revision: null
            complete[side] = {**known, **section, "files": dict(manifest["files"])}
    engine = complete.get("engine")
    if isinstance(engine, dict) and "version" not in engine and "name" in engine:
        complete["engine"] = {**engine, "version": _provider(complete).version()}
    return complete


def _manifest(document: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    from gatekeeper.config import Settings

    found: Mapping[str, Any] = _provider(document).manifest(source, cache=Settings.load().cache)
    return found


def _provider(document: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an EngineProvider by entry point
    from gatekeeper import plugins
    from gatekeeper.errors import InputError

    engine = document.get("engine")
    if not isinstance(engine, dict) or not isinstance(engine.get("name"), str):
        raise InputError("is missing", field="engine.name", remedy="name the engine's entry point")
    return plugins.load("gatekeeper.engines", engine["name"])


@artifact.command("list")
@as_json_option
def list_(*, as_json: bool) -> None:
    """List artifacts."""
    from gatekeeper.cli.http import client, pages

    with client() as http:
        items = pages(http, "/v1/artifacts")
    if as_json:
        print_document({"items": items})
        return
    rows = [
        {
            "digest": item["digest"],
            "aliases": ", ".join(item["aliases"]) or None,
            **_sides(item["document"]),
            "contract": item["contract"],
        }
        for item in items
    ]
    columns = {name: name for name in ("digest", "aliases", "target", "proposer", "contract")}
    print_table(rows, columns, "no artifacts; register one with gatekeeper artifact register")


def _sides(document: Mapping[str, Any]) -> dict[str, str]:
    """Both sides in a few words, so that pairs of the same target differ where they do."""
    target, proposer = document["target"], document["proposer"]
    source, weights = proposer.get("source"), target.get("weights")
    return {
        "target": target["source"] + (f" with {weights['source']}" if weights else ""),
        "proposer": proposer["kind"] + (f" {source}" if source else ""),
    }


@artifact.command()
@click.argument("reference")
@as_json_option
def show(reference: str, *, as_json: bool) -> None:
    """Print the artifact REFERENCE (digest or alias)."""
    del as_json  # an artifact is a document either way
    from gatekeeper.cli.http import client, segment

    with client() as http:
        print_document(http.get(f"/v1/artifacts/{segment(reference)}").json())


@artifact.command()
@click.argument("reference")
@as_json_option
def verify(reference: str, *, as_json: bool) -> None:
    """Check the artifact REFERENCE: its own digest, and the digests of its model files here.

    Exit status 1 when something is not what the artifact says.
    """
    from gatekeeper.cli.http import client, segment
    from gatekeeper.core.artifacts import check_digest
    from gatekeeper.errors import EvidenceError

    with client() as http:
        record = http.get(f"/v1/artifacts/{segment(reference)}").json()
    document = record["document"]
    check_digest(document, record["digest"])
    checked = []
    declared = document["target"].get("weights") or {}
    for side, section, engine in (
        ("target", document["target"], document["engine"]),
        ("proposer", document["proposer"], document["engine"]),
        ("target.weights", declared, {"name": declared.get("engine")}),
    ):
        if not section.get("source"):
            continue
        manifest = _manifest({"engine": engine}, section["source"])
        for name in ("files", "tokenizer"):
            if section.get(name) is not None and manifest[name] != section[name]:
                raise EvidenceError(
                    f"differs from the model found at {section['source']}",
                    field=f"{side}.{name}",
                    value=section[name],
                    remedy="register the changed model as a new artifact and gate that",
                )
        checked.append(side)
    if as_json:
        print_document({"digest": record["digest"], "verified": checked, "agrees": True})
    else:
        click.echo(f"{record['digest']} holds: {', '.join(checked) or 'no model files to check'}")


@artifact.command()
@click.argument("alias")
@click.argument("reference")
@as_json_option
def alias(alias: str, reference: str, *, as_json: bool) -> None:
    """Point ALIAS at the artifact REFERENCE (digest or another alias)."""
    from gatekeeper.cli.http import client, segment

    with client() as http:
        digest = http.get(f"/v1/artifacts/{segment(reference)}").json()["digest"]
        moved = http.put(f"/v1/artifacts/aliases/{segment(alias)}", json={"digest": digest}).json()
    if as_json:
        print_document(moved)
    else:
        click.echo(f"{moved['alias']} is {moved['digest']}")
