"""Stage ``traces`` of ``make verify``: speed of the critical path, and of taking spans in.

    MLFLOW_PYTHON=/path/to/python make verify STAGE=traces

With ``MLFLOW_PYTHON``, a Python that has MLflow, its server gets the same requests in turns: on
SQLite, with one worker, on loopback. Without it that part is left out, and so is its figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from own_server import environment, free_port, wait_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["mlflow", "parts"]

HERE = Path(__file__).parent
SIZES = ("10000", "100000", "1000000")
PYTHON = "MLFLOW_PYTHON"
# Its seven job processes poll, and its telemetry sends: neither is the price of a span.
QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


@dataclass(frozen=True)
class Peer:
    """MLflow's server: ``pid`` is the process whose CPU time, and its children's, counts."""

    url: str
    pid: int
    version: str


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Each in a process of its own: what other stages load would weigh on the garbage collector."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "path": partial(_script, "traces.py", "--spans", *SIZES),
        "ingest": partial(_script, "traces_ingest.py"),
    }
    if PYTHON in os.environ:
        found["beside-mlflow"] = partial(_beside_mlflow, os.environ[PYTHON])
    return found


def _script(name: str, *options: str) -> dict[str, Any]:
    """Figures of a benchmark, which says itself whether they hold."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, str(HERE / name), *options, "--json", str(file)]
        subprocess.run(command, check=False)  # noqa: S603 - our own script; 1 is "does not hold"
        figures: dict[str, Any] = json.loads(file.read_text())
    return figures


def _beside_mlflow(python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, mlflow(python, Path(folder)) as peer:
        figures = _script(
            "traces_ingest.py",
            *("--endpoint", f"{peer.url}/v1/traces"),
            *("--pid", str(peer.pid)),
            *("--header", "x-mlflow-experiment-id=0"),
        )
    return {**figures, "peer": peer.version}


@contextmanager
def mlflow(python: str, home: Path) -> Iterator[Peer]:
    """MLflow's own tracking server in an empty folder until the block ends."""
    asked = [python, "-m", "mlflow", "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603 - given
    port = free_port()
    command = [
        *(python, "-m", "mlflow", "server", "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{home / 'mlflow.sqlite'}"),
        *("--default-artifact-root", str(home / "artifacts")),
    ]
    with subprocess.Popen(  # noqa: S603 - as above
        command,
        cwd=home,
        env=environment(None) | QUIET,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, path="/health")
            yield Peer(url, process.pid, version.stdout.strip())
        finally:
            process.terminate()
