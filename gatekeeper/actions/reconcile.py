"""What time alone changes: expired leases, lapsed evidence, runs waiting, tasks gone quiet."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from gatekeeper.actions.decide import refresh
from gatekeeper.actions.delivered_due import judge_due
from gatekeeper.actions.pricing_due import reprice_due
from gatekeeper.actions.queue import dispatch, reap
from gatekeeper.actions.schedules_due import fire_due
from gatekeeper.actions.tasks import settle_due
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gatekeeper.actions.webhook_delivery import Courier
    from gatekeeper.protocols import Executor
    from gatekeeper.store.database import Database
    from gatekeeper.store.records import DecisionRecord

__all__ = ["Reconciler"]

PERIOD_S = 1.0
"""A bypass is visible within a second even where nobody asks for the decision."""

_log = structlog.get_logger()


@dataclass
class Reconciler:
    """Six threads that tick once a second; any number of replicas may tick at a time.

    Tasks and prices are computed on threads of their own: a bypass must not wait for arithmetic, nor
    for a webhook's receiver. Without an ``evidence`` folder, which keeps what prices rest on, nothing
    is priced, and without a ``courier`` no webhook delivered.
    """

    db: Database
    executor: Executor | None = None
    period_s: float = PERIOD_S
    evidence: Path | None = None
    courier: Courier | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Take the first snapshot, then tick until ``stop``."""
        refresh(self.db, everything=True)
        self.ready.set()
        for name, work in self._duties():
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _duties(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("reconciler", self.tick),
            ("tasks", self.settle_tasks),
            ("prices", self.price_routes),
            ("schedules", self.fire_schedules),
            ("rollouts", self.judge_rollouts),
            ("webhooks", self.deliver_notices),
        ]

    @property
    def running(self) -> bool:
        """Whether the first snapshot is taken and the thread ticks."""
        alive = bool(self._threads) and all(thread.is_alive() for thread in self._threads)
        return self.ready.is_set() and alive

    def stop(self) -> None:
        """End the threads after their present tick."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def tick(self) -> None:
        """Do once what is due."""
        for run in reap(self.db):
            _log.warning("lease expired", run=run.id, state=run.state, attempt=run.attempt)
        _say(refresh(self.db))
        if self.executor is not None:
            dispatch(self.db, self.executor)

    def settle_tasks(self) -> None:
        """Compute some of the tasks that are due."""
        settle_due(self.db)

    def price_routes(self) -> None:
        """Price some of the routes that rest on something new."""
        if self.evidence is not None:
            _say(reprice_due(self.db, self.evidence))

    def fire_schedules(self) -> None:
        """Queue the gate runs that schedules ask for now."""
        fire_due(self.db)

    def judge_rollouts(self) -> None:
        """Judge what rollouts delivered, where there is enough of it."""
        _say(judge_due(self.db))

    def deliver_notices(self) -> None:
        """Send what is due to those who subscribed."""
        if self.courier is not None:
            while self.courier.deliver_due() and not self._stop.is_set():
                pass

    def _run(self, work: Callable[[], None]) -> None:
        while not self._stop.wait(self.period_s):
            try:
                work()
            except GatekeeperError as error:
                # An unreachable database comes back; the next tick catches up.
                _log.error("reconciler could not work", error=str(error))


def _say(changed: Sequence[DecisionRecord]) -> None:
    for decision in changed:
        _log.info(
            "decision changed",
            route=decision.route,
            action=decision.action,
            reason=decision.reason,
        )
