"""Executor ``local``: a worker as a child process of the server, for one machine.

The child holds the read end of a pipe whose write end only the server has. When the server dies,
however it dies, the pipe closes and the worker leaves. PR_SET_PDEATHSIG would follow the *thread*
that forked, and a server's request threads come and go.

The child finds server and token in the environment (``GATEKEEPER_URL``, ``GATEKEEPER_TOKEN``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EXECUTOR", "LocalExecutor"]


class LocalExecutor:
    """Starts ``gatekeeper worker --once --run ID``; at most one process per run and attempt.

    ``command`` is what starts gatekeeper, ``environ`` its environment (ours by default).
    """

    name = "local"

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-m", "gatekeeper"),
        *,
        environ: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self._command = tuple(command)
        self._environ = environ
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._jobs: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, run_id: str, attempt: int, requirements: Mapping[str, Any]) -> str:
        """Start a worker; asking again for the same attempt returns the same job."""
        del requirements  # one machine: it offers what it has, and the claim checks it
        job_id = f"{run_id}-{attempt}"
        with self._lock:
            self._reap()
            if job_id not in self._jobs:
                self._jobs[job_id] = self._start(run_id)
        return job_id

    def stop(self, job_id: str) -> None:
        """Ask the worker's process group to end, then make it; unknown ids are ignored."""
        with self._lock:
            process = self._jobs.pop(job_id, None)
        if process is None or process.poll() is not None:
            return
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        _close(process)

    def _start(self, run_id: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter, ids from our own queue
            [*self._command, "worker", "--once", "--run", run_id, "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            env=dict(os.environ if self._environ is None else self._environ),
            start_new_session=True,  # its own group, so that stop reaches its children too
        )

    def _reap(self) -> None:
        """Forget workers that ended, so that they do not stay behind as zombies."""
        for job_id, process in list(self._jobs.items()):
            if process.poll() is not None:
                _close(process)
                del self._jobs[job_id]


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


EXECUTOR = LocalExecutor()
