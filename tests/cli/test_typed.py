"""Printed commands begin as the command line was started, so that they work as they stand."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper.cli import typed
from gatekeeper.cli.doctor import check
from gatekeeper.cli.next_steps import lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start the command line as ``argv0``, in a shell that finds what ``found`` says."""

    def start(argv0: str, found: dict[str, str] | None = None) -> None:
        monkeypatch.setattr(sys, "argv", [argv0, "gate", "list"])
        monkeypatch.setattr(shutil, "which", (found or {}).get)

    return start


def test_the_program_is_named_as_it_was_started(started: Any, tmp_path: Path) -> None:
    installed = str(tmp_path / "gatekeeper")
    started(installed, {"gatekeeper": installed})
    assert typed.program() == "gatekeeper"
    started(".venv/bin/gatekeeper")
    assert typed.program() == ".venv/bin/gatekeeper"
    started(".venv/bin/gatekeeper", {"gatekeeper": installed})  # another installation's
    assert typed.program() == ".venv/bin/gatekeeper"
    started("/my home/bin/gatekeeper")
    assert typed.program() == "'/my home/bin/gatekeeper'"
    started("/site/gatekeeper/__main__.py")
    assert typed.program() == f"{sys.executable} -m gatekeeper"
    started("/usr/bin/pytest")
    assert typed.program() == "gatekeeper"


def test_commands_of_a_text_are_written_so_and_nothing_else(started: Any) -> None:
    started("bin/gatekeeper")
    said = "run gatekeeper gate list; gatekeeper worker"
    assert typed.typed(said) == "run bin/gatekeeper gate list; bin/gatekeeper worker"
    for text in (
        "gatekeeper serves you",
        "a gatekeeper server",
        "x.gatekeeper gate",
        "~/gatekeeper serve",
        "gatekeeper worker-1",
    ):
        assert typed.typed(text) == text


def test_next_steps_advice_and_errors_are(started: Any, gatekeeper: Any) -> None:
    started("bin/gatekeeper")
    (line,) = lines("chat", ["serving"], on_servers=False)
    assert line == "to run serving: bin/gatekeeper gate run chat serving --wait"
    assert check.command("serve") == "bin/gatekeeper serve"
    assert "on the server's machine: bin/gatekeeper token create" in gatekeeper("decide", "x").err
    assert "see bin/gatekeeper decide --help" in gatekeeper("decide").err
