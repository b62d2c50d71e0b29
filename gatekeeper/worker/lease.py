"""The heartbeat that holds a run: while it renews, the run is ours; once it cannot, we must stop.

The server may hand the run to another worker as soon as the lease is over, so a worker that was
cut off has until then, on its own clock from its last successful renewal, to be silent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gatekeeper.errors import FencedOut, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from gatekeeper.worker.api import WorkerApi
    from gatekeeper.worker.progress import Tracker
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["EXIT_LOST", "Lease", "end_now"]

EXIT_LOST = 4
"""Exit status of a worker that lost its run."""

_INTERVAL = 1 / 6
_TIMEOUT = 1 / 10
_LOST_AFTER = 0.7
"""Shares of the lease: a beat every sixth, a tenth to answer it; with no renewal for 0.7 the next
try (0.7 + 1/6 + 1/10 < 1) could end too late to stop in time."""


class Lease:
    """Renews a run's lease from a thread; a context manager around the run.

    Args:
        api, run, tracker: where to renew, what, and the progress to send along.
        lease_s: seconds that each renewal is good for.
        clock: monotonic seconds.
        lost: called once from the thread when the run is lost, with the reason. It is expected to
            end the process: the main thread may be deep inside a library.
    """

    def __init__(
        self,
        api: WorkerApi,
        run: ClaimedRun,
        tracker: Tracker,
        *,
        lease_s: float,
        clock: Callable[[], float],
        lost: Callable[[str], None],
    ) -> None:
        self._api = api
        self._run = run
        self._tracker = tracker
        self._lease_s = lease_s
        self._clock = clock
        self._on_lost = lost
        self._stop = threading.Event()
        self._cancel = threading.Event()
        self._last_write = threading.Event()
        if run.cancel_requested:
            self._cancel.set()
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._beat, name=f"lease-{run.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def cancelled(self) -> bool:
        """Whether someone asked to cancel the run.

        Raises:
            FencedOut: the run is no longer ours.
        """
        if self._reason is not None:
            raise FencedOut(self._reason, field="run", value=self._run.id)
        return self._cancel.is_set()

    def begin_last_write(self) -> None:
        """The run's own end is being written: from here on a fence seen by a beat is no loss.

        The server takes the lease back when it commits that write, which may be before its answer is
        here. The write carries the fence itself and tells what became of the run.
        """
        self._last_write.set()

    def _beat(self) -> None:
        renewed = self._clock()
        while not self._stop.wait(self._lease_s * _INTERVAL):
            try:
                if self._renew():
                    self._cancel.set()
                renewed = self._clock()
            except FencedOut as error:
                if not self._last_write.is_set():
                    self._lose(str(error))
                return
            except Unavailable as error:
                # the server may come back in time; a lease that cannot be renewed is a lost one
                if self._clock() - renewed > _LOST_AFTER * self._lease_s:
                    self._lose(f"the lease could not be renewed: {error}")
                    return

    def _renew(self) -> bool:
        return self._api.heartbeat(
            self._run, self._tracker.latest, timeout=self._lease_s * _TIMEOUT
        )

    def _lose(self, reason: str) -> None:
        self._reason = reason
        self._on_lost(reason)


def end_now(reason: str, *, say: Callable[[str], None]) -> None:
    """Kill our children and leave without running another line of the measurement."""
    with contextlib.suppress(OSError):  # our terminal may be gone with whoever started us
        say(f"gatekeeper worker: stopping: {reason}")
    for child in _children():
        os.kill(child, signal.SIGKILL)
    os._exit(EXIT_LOST)


def _children() -> list[int]:
    """Direct children of this process (Linux); elsewhere none are known."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(pid) for pid in task.read_text().split()]
        except OSError:
            continue  # the thread ended while we looked
    return found
