from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from gatekeeper.cli.worker import worker
from gatekeeper.errors import Unauthorized, Unavailable
from gatekeeper.worker.devices import cuda_devices, devices
from gatekeeper.worker.lease import EXIT_LOST

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_token_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEKEEPER_TOKEN", raising=False)
    result = CliRunner().invoke(worker, ["--once"])
    assert isinstance(result.exception, Unauthorized)
    assert "token create" in str(result.exception)


def test_an_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("GATEKEEPER_TOKEN", "t")
    options = ["--once", "--url", "http://127.0.0.1:9", "--home", str(tmp_path)]
    result = CliRunner().invoke(worker, options)
    assert isinstance(result.exception, Unavailable)
    assert "127.0.0.1:9" in str(result.exception)


def test_help_loads_no_model_library() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from gatekeeper.cli.worker import worker;"
        "CliRunner().invoke(worker, ['--help']); print([m for m in ('torch', 'httpx', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_leaves_when_its_starter_is_gone() -> None:
    code = (
        "import time; from gatekeeper.cli.worker import _watch_stdin, _say;"
        "from gatekeeper.worker.lease import end_now;"
        "_watch_stdin(lambda reason: end_now(reason, say=_say)); time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == EXIT_LOST
    assert "stopping" in done.stdout


def test_a_broken_terminal_does_not_keep_a_lost_worker_alive() -> None:
    code = (
        "from gatekeeper.worker.lease import end_now\n"
        "def say(line):\n    raise BrokenPipeError\n"
        "end_now('test', say=say)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert done.returncode == EXIT_LOST


def test_leaving_kills_the_children() -> None:
    code = (
        "import subprocess, sys; from gatekeeper.worker.lease import end_now;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); end_now('test', say=print)"
    )
    # the pipe closes only when the child, which inherited it, is gone too
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert done.returncode == EXIT_LOST


def test_devices_name_this_machine() -> None:
    (cpu, *rest) = devices()
    assert cpu["kind"] == "cpu"
    assert cpu["memory_bytes"] > 2**20
    assert all(device["kind"] == "cuda" for device in rest)


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("", []),
        ("[N/A]\n", []),
        ("143771\n143771\n", [{"kind": "cuda", "count": 2, "memory_bytes": 143771 * 2**20}]),
    ],
)
def test_gpus_are_read_from_their_tool(listing: Any, expected: Any) -> None:
    assert cuda_devices(listing) == expected
