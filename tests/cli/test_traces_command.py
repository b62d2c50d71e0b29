from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Live = Any  # gatekeeper's live server, see tests/live.py

ESSAY = Path(str(files("gatekeeper").joinpath("examples/essay-trace.json")))
ESSAY_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


@pytest.fixture
def as_admin(gatekeeper: Run, live_server: Live) -> Run:
    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["admin"])

    return run


def test_importing_and_listing(as_admin: Run, tmp_path: Path) -> None:
    done = as_admin("traces", "import", ESSAY, "--json")
    (one,) = done.json["files"]
    assert (done.status, one["new_spans"], one["tasks"]) == (0, 4, [ESSAY_ID])
    again = as_admin("traces", "import", ESSAY)
    assert again.status == 0
    assert again.out.split()[-5:] == ["otlp", "1", "0", "4", "0"]
    (task,) = as_admin("traces", "list", "--json").json["items"]
    assert task["id"] == ESSAY_ID
    table = as_admin("traces", "list", "--state", task["state"])
    assert ("an open task completes" in table.err) is (task["state"] == "open")
    assert ESSAY_ID in table.out
    assert as_admin("traces", "list", "--route", "nothing", "--json").json["items"] == []


def test_a_bad_file_does_not_hold_up_the_others(as_admin: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    done = as_admin("traces", "import", bad, ESSAY, tmp_path / "absent.json")
    assert done.status == 2
    errors = done.err.splitlines()
    assert [line.split(": ")[:2] for line in errors] == [["gatekeeper", "error"]] * 2
    assert f"file={bad}: " in errors[0]
    assert "absent.json" in done.err
    assert "otlp" in done.out


def test_contradicting_spans_end_with_status_one(as_admin: Run, tmp_path: Path) -> None:
    changed = tmp_path / "changed.json"
    changed.write_text(ESSAY.read_text().replace("verify answer", "verify another answer"))
    assert as_admin("traces", "import", ESSAY).status == 0
    done = as_admin("traces", "import", changed)
    assert done.status == 1
    assert "stored already" in done.err


@pytest.mark.parametrize("command", [("traces", "import"), ("profile",)])
def test_a_refused_file_is_named_once(
    as_admin: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = tmp_path / ("docs" * 40)  # longer than the value of an error is shown
    folder.mkdir()
    done = as_admin(*command, folder)
    assert done.status != 0
    (line,) = done.err.strip().splitlines()
    assert line.startswith(f"gatekeeper: error: file={folder}: is a directory; name")
    assert line.count(f"{folder}") == 2  # its subject, and the files of it to name
    assert f"{folder}/*.json" in line
