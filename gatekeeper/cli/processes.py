"""Start the server and a worker as child processes, and end them whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["child", "free_port", "run_json", "wait_ready"]


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_json(*arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    """Run ``gatekeeper ARGUMENTS`` to its end and return what it prints with ``--json``.

    Raises:
        Unavailable: it failed; the message is its own.
    """
    done = subprocess.run(  # noqa: S603 - our own command with our own arguments
        [sys.executable, "-m", "gatekeeper", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(
            _own_words(lines[-1]),
            field=" ".join(arguments[:2]),
            remedy="mend this and run again: finished work is kept",
        )
    return json.loads(done.stdout)


def _own_words(line: str) -> str:
    """A command's last line as part of another one's: that begins with the prefix itself."""
    return line.removeprefix("gatekeeper: error: ")


@contextmanager
def child(
    *arguments: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``gatekeeper ARGUMENTS`` in the background; on exit it is asked, then made, to stop."""
    with log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603 - our own command with our own arguments
            [sys.executable, "-m", "gatekeeper", *arguments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,  # its other end closes when we are gone, however we went
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that Ctrl-C reaches us first and we end it in order
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 180) -> None:
    """Return once ``/readyz`` answers 200.

    Raises:
        Unavailable: the server ended, or is not ready in time; the remedy names its log.
    """
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
    raise Unavailable(
        f"did not become ready: {_own_words(last[0])}",
        field="server",
        value=url,
        remedy=f"read {log}",
    )
