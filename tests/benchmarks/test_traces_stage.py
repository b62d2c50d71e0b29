"""The stage ``traces``: which parts it has, and the server that it starts beside ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from benchmark_scripts import script

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = """#!/bin/sh
if [ "$3" = --version ]; then echo "stand-in 1"; exit; fi
exec {python} -S -m http.server --bind "$7" --directory {folder} "$9"
"""


@pytest.fixture(scope="module")
def stage() -> Any:
    return script("traces_stage")


def test_the_peer_is_measured_where_there_is_one(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_PYTHON", raising=False)
    assert set(stage.parts()) == {"path", "ingest"}
    monkeypatch.setenv("MLFLOW_PYTHON", "python")
    assert set(stage.parts()) == {"path", "ingest", "beside-mlflow"}


def test_the_peer_runs_for_as_long_as_the_block(stage: Any, tmp_path: Path) -> None:
    (tmp_path / "health").write_text("OK")
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, folder=tmp_path))
    python.chmod(0o755)
    with stage.mlflow(str(python), tmp_path) as peer:
        assert peer.version == "stand-in 1"
        assert httpx.get(f"{peer.url}/health").text == "OK"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{peer.url}/health")


def test_the_figures_are_what_the_script_wrote(stage: Any, tmp_path: Path) -> None:
    made = tmp_path / "made.py"
    made.write_text(
        "import json, sys; from pathlib import Path\n"
        "Path(sys.argv[-1]).write_text(json.dumps({'holds': False, 'given': sys.argv[1:-1]}))\n"
        "sys.exit(1)\n"
    )
    found = stage._script(str(made), "--rounds", "1")
    assert found == {"holds": False, "given": ["--rounds", "1", "--json"]}
