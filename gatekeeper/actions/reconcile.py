"""What time alone changes: expired leases, lapsed evidence, runs waiting for a worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from gatekeeper.actions.decide import refresh
from gatekeeper.actions.queue import dispatch, reap
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from gatekeeper.protocols import Executor
    from gatekeeper.store.database import Database

__all__ = ["Reconciler"]

PERIOD_S = 1.0
"""A bypass is visible within a second even where nobody asks for the decision."""

_log = structlog.get_logger()


@dataclass
class Reconciler:
    """A thread that ticks once a second; any number of replicas may tick at a time."""

    db: Database
    executor: Executor | None = None
    period_s: float = PERIOD_S
    ready: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the first snapshot, then tick until ``stop``."""
        refresh(self.db, everything=True)
        self.ready.set()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the first snapshot is taken and the thread ticks."""
        return self.ready.is_set() and self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the thread after its present tick."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def tick(self) -> None:
        """Do once what is due."""
        for run in reap(self.db):
            _log.warning("lease expired", run=run.id, state=run.state, attempt=run.attempt)
        for decision in refresh(self.db):
            _log.info(
                "decision changed",
                route=decision.route,
                action=decision.action,
                reason=decision.reason,
            )
        if self.executor is not None:
            dispatch(self.db, self.executor)

    def _run(self) -> None:
        while not self._stop.wait(self.period_s):
            try:
                self.tick()
            except GatekeeperError as error:
                # An unreachable database comes back; the next tick catches up.
                _log.error("reconciler could not work", error=str(error))
