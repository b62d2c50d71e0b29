"""Configuration in files: written, compared, agreed to, applied."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from look_up_artifact import look_up_artifact

from gatekeeper.cli import http as cli_http
from gatekeeper.config import data_dir

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer

Run = Callable[..., Any]
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)

SCHEDULE = {"kind": "schedule", "name": "fresh", "route": "prose", "on_new_version": True}


class Terminal(io.TextIOWrapper):
    """Standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(live_server: LiveServer, gatekeeper: Run) -> Run:
    with live_server.client("operator") as operator:
        digest = (
            operator.post("/v1/artifacts", json=look_up_artifact("reference"))
            .raise_for_status()
            .json()["digest"]
        )
        operator.put("/v1/artifacts/aliases/current", json={"digest": digest}).raise_for_status()
        body = {"slice": "prose", "artifact": "current", "policy": "ci"}
        operator.put("/v1/routes/prose", json=body).raise_for_status()

    def call(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["admin"])

    return call


def answer(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(f"{word}\n".encode())))


def test_an_exported_folder_applies_to_nothing_and_shows_what_was_edited(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "conf"
    written = run("export", "-o", folder)
    assert written.status == 0, written.err
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.yaml")}
    assert {"routes/prose.yaml", "aliases/current.yaml", "policies/ci.yaml"} <= names
    same = run("apply", "-f", folder, "--yes")
    assert (same.status, same.out) == (0, "nothing to change\n")
    (folder / "schedules").mkdir(exist_ok=True)
    (folder / "schedules" / "fresh.yaml").write_text(yaml.safe_dump(SCHEDULE))
    route = yaml.safe_load((folder / "routes" / "prose.yaml").read_text())
    route["slo"] = {"tpot_s": 0.04}
    (folder / "routes" / "prose.yaml").write_text(yaml.safe_dump(route))
    shown = run("apply", "-f", folder, "--dry-run")
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert lines[0] == f"~ route prose ({folder / 'routes' / 'prose.yaml'})"
    assert "    slo.tpot_s: unset → 0.04" in lines
    assert lines[-2].startswith("+ schedule fresh (")
    assert lines[-1] == "1 to add, 1 to change, 0 to remove"
    assert run("schedule", "list", "--json").json["items"] == []
    done = run("apply", "-f", folder, "--yes", "--json").json
    assert done["applied"] is True
    assert [one["name"] for one in run("schedule", "list", "--json").json["items"]] == ["fresh"]
    again = run("apply", "-f", folder, "--yes", "--json").json
    assert again["changes"] == []
    stale = run("export", "-o", folder, "--force").out  # what is there is not touched
    assert "declares nothing" not in stale
    run("schedule", "delete", "fresh")
    stale = run("export", "-o", folder).out
    assert f"{folder / 'schedules' / 'fresh.yaml'} declares nothing that the server has" in stale


@ON_SQLITE
def test_an_export_overwrites_what_somebody_edited_only_when_told_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf"
    route, policy = folder / "routes" / "prose.yaml", folder / "policies" / "ci.yaml"
    assert run("export", "-o", folder).status == 0
    as_written = route.read_text()
    assert run("export", "-o", folder).status == 0  # the same again: nothing to ask
    route.write_text("# ours\n" + as_written)
    policy.unlink()
    for options in ((), ("--json",)):
        refused = run("export", "-o", folder, *options)
        assert (refused.status, refused.out) == (2, "")
        (line,) = refused.err.splitlines()
        assert "routes/prose.yaml" in line
        assert "ci.yaml" not in line
        assert "--force" in line
        assert not policy.exists()  # nothing is written beside it either
    answer(monkeypatch, "n")
    declined = run("export", "-o", folder)
    assert (declined.status, "routes/prose.yaml" in declined.out) == (1, True)
    assert route.read_text() == "# ours\n" + as_written
    answer(monkeypatch, "y")
    assert run("export", "-o", folder).status == 0
    assert (route.read_text(), policy.exists()) == (as_written, True)
    route.write_text("# ours\n")
    assert run("export", "-o", folder, "--force").status == 0
    assert route.read_text() == as_written


@ON_SQLITE
def test_pruning_names_the_kinds_that_it_leaves_alone(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    file = tmp_path / "fresh.yaml"
    file.write_text(yaml.safe_dump(SCHEDULE))
    assert run("apply", "-f", file, "--yes").status == 0
    assert run("export", "-o", folder).status == 0
    shutil.rmtree(folder / "schedules")
    note = "schedules are not pruned: no file declares one"
    said = run("apply", "-f", folder, "--prune", "--yes")
    assert said.out.splitlines()[-2:] == [note, "nothing to change"]
    assert run("apply", "-f", folder, "--prune", "--dry-run", "--json").json["not_pruned"] == [
        "schedule"
    ]
    assert note not in run("apply", "-f", folder, "--dry-run").out  # nobody asked to prune
    routes = run("apply", "-f", folder / "policies", "--prune", "--dry-run").out
    assert [line.split()[0] for line in routes.splitlines()[:-1]] == [
        "economics",
        "aliases",
        "schedules",
    ]  # a route always stays, whatever is declared


@ON_SQLITE
def test_nothing_is_applied_before_somebody_agrees(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fresh.yaml"
    file.write_text(yaml.safe_dump(SCHEDULE))

    def stored() -> int:
        return len(run("schedule", "list", "--json").json["items"])

    silent = run("apply", "-f", file)
    assert (silent.status, "--yes" in silent.err) == (2, True)
    answer(monkeypatch, "n")
    declined = run("apply", "-f", file)
    assert (declined.status, stored()) == (1, 0)
    assert "+ schedule fresh" in declined.out
    answer(monkeypatch, "y")
    agreed = run("apply", "-f", file)
    assert (agreed.status, stored()) == (0, 1)
    assert "applied\nno decision changed" in agreed.out


@ON_SQLITE
def test_what_changed_while_somebody_was_reading_is_not_applied(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fresh.yaml"
    file.write_text(yaml.safe_dump(SCHEDULE))

    def meanwhile(*_: object, **__: object) -> bool:
        with cli_http.client() as http:
            body = {"route": "prose", "before_expiry_s": 60}
            http.put("/v1/schedules/fresh", json=body)
        return True

    monkeypatch.setattr(click, "confirm", meanwhile)
    answer(monkeypatch, "y")
    refused = run("apply", "-f", file)
    assert refused.status == 2
    assert "changed meanwhile" in refused.err
    kept = run("schedule", "show", "fresh", "--json").json
    assert (kept["before_expiry_s"], kept["on_new_version"]) == (60.0, False)


@ON_SQLITE
def test_documents_of_one_file_and_what_is_wrong_with_them(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    alias = {"kind": "alias", "name": "second", "digest": "0" * 64}
    file.write_text("---\n" + "---\n".join(yaml.safe_dump(one) for one in (SCHEDULE, alias)))
    lost = run("apply", "-f", file, "--yes")
    assert lost.status == 2
    assert f"{file}#2: digest={'0' * 64}" in lost.err
    assert run("schedule", "list", "--json").json["items"] == []
    file.write_text("kind: [\n")
    broken = run("apply", "-f", file, "--yes").err
    assert f"file={file}: is not YAML" in broken
    assert "at line 2, column 1" in broken
    assert "unicode string" not in broken
    file.write_text("# nothing\n")
    assert "holds no document" in run("apply", "-f", file, "--yes").err
    (tmp_path / "empty").mkdir()
    assert "holds no .yaml" in run("apply", "-f", tmp_path / "empty", "--yes").err
    missing = run("apply", "-f", tmp_path / "none.yaml", "--yes")
    assert (missing.status, "cannot be read" in missing.err) == (2, True)


@ON_SQLITE
def test_the_shipped_policies_apply_as_they_are_and_pruning_says_what_goes(
    run: Run, tmp_path: Path
) -> None:
    same = run("apply", "-f", data_dir("policies"), "--yes")
    assert (same.status, same.out) == (0, "nothing to change\n"), same.err
    ci = data_dir("policies") / "ci.yaml"
    shown = run("apply", "-f", ci, "--prune", "--dry-run")
    assert "- policy demo" in shown.out.splitlines()
    assert shown.out.endswith("0 to add, 0 to change, 2 to remove\n")
    exported = tmp_path / "conf"
    run("export", "-o", exported)
    assert run("policy", "apply", exported / "policies").status == 0  # its form is understood
    text = run("export").out
    kinds = [one["kind"] for one in yaml.safe_load_all(text)]
    assert kinds == ["policy"] * 3 + ["economics"] * 2 + ["alias", "route"]


@ON_SQLITE
def test_a_server_does_not_choose_where_an_export_writes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lying:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def get(self, _path: str) -> Any:
            return self

        def json(self) -> Any:
            return {"items": [{"kind": "route", "name": "../../evil", "slice": "x"}]}

    monkeypatch.setattr(cli_http, "client", Lying)
    refused = run("export", "-o", tmp_path / "conf")
    assert (refused.status, "is not a name" in refused.err) == (2, True)
    assert not list(tmp_path.rglob("*.yaml"))
