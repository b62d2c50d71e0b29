"""What a command says of another one that it started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gatekeeper.cli.processes import wait_ready
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_that_ended_is_quoted_without_a_second_prefix(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO started\ngatekeeper: error: home=/srv: is in use; stop it\n")
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as ended:
        ended.wait()
        with pytest.raises(Unavailable) as told:
            wait_ready("http://127.0.0.1:9", ended, log)
    assert "gatekeeper: error" not in str(told.value)
    assert "did not become ready: home=/srv: is in use; stop it" in str(told.value)
