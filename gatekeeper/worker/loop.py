"""The worker's loop: claim a run, measure it under its lease, hand in what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gatekeeper.core.verdicts import GateResult, Outcome
from gatekeeper.errors import FencedOut, GatekeeperError, MissingExtra, Unavailable
from gatekeeper.worker.engines import ANY_SOURCE, EngineCache, offered
from gatekeeper.worker.lease import EXIT_LOST, Lease
from gatekeeper.worker.measured import Cancelled, Measured
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from gatekeeper.protocols import Engine, EngineInfo, EngineProvider, PairInfo, ServerPair
    from gatekeeper.worker.api import WorkerApi
    from gatekeeper.worker.equivalence_run import Fetch
    from gatekeeper.worker.model_rules import ModelRules
    from gatekeeper.worker.progress import Progress
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["Worker", "WorkerOptions"]

_ENGINE_ERRORS = (RuntimeError, ValueError, ArithmeticError, OSError, MemoryError)
"""What model libraries raise when a device or file lets them down."""

_TRIES = 6


@dataclass(frozen=True)
class WorkerOptions:
    """``run_id`` asks for one run; ``once`` ends after one; ``idle_exit_s`` after so long idle.

    ``models`` says which model files may be opened.
    """

    cache: Path
    devices: Sequence[Mapping[str, Any]]
    run_id: str | None = None
    once: bool = False
    poll_s: float = 2.0
    idle_exit_s: float | None = None
    lease_s: float = 60.0
    models: ModelRules = ANY_SOURCE


class Worker:
    """Everything from outside comes in: API, engines, clock, sleep, and what ends the process.

    ``lost`` is called from the lease's thread when the run went to someone else.
    """

    def __init__(
        self,
        api: WorkerApi,
        providers: Mapping[str, EngineProvider],
        options: WorkerOptions,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        say: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        self._api = api
        self._providers = providers
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._lost = lost
        self._engines = EngineCache(providers, options.cache, options.models)

    def run(self) -> int:
        """Work until there is a reason to stop; return the exit status.

        0 after a finished run or an idle end, 1 when the one run asked for could not be measured
        or found, ``EXIT_LOST`` when a run was taken away.

        Raises:
            Unavailable: the server cannot be reached when asking for work.
            Conflict: the run asked for is someone else's.
            MissingExtra: no engine is installed at all.
        """
        engines, missing = offered(self._providers)
        if not engines:
            raise (
                missing[0]
                if missing
                else MissingExtra(
                    "has no engine", field="worker", remedy="pip install gatekeeper[torch]"
                )
            )
        try:
            return self._serve(engines)
        except FencedOut as error:
            self._say(f"stopped: {error}")
            return EXIT_LOST
        finally:
            self._engines.close()

    def _serve(self, engines: Sequence[Mapping[str, str]]) -> int:
        options = self._options
        idle_since = self._clock()
        reached = False
        while True:
            run = None
            try:
                run = self._api.claim(
                    engines, options.devices, lease_s=options.lease_s, run_id=options.run_id
                )
                reached = True
            except Unavailable as error:
                # a wrong address shows at once; a server that restarts is waited for
                if not reached or options.once:
                    raise
                self._say(f"waiting for the server: {error}")
            if run is not None:
                done = self._handle(run)
                if options.once:
                    return 0 if done else 1
                idle_since = self._clock()
                continue
            if options.run_id is not None:
                self._say(f"run {options.run_id} does not fit this worker")
                return 1
            idle_exit_s = options.idle_exit_s
            if idle_exit_s is not None and self._clock() - idle_since >= idle_exit_s:
                return 0
            self._sleep(options.poll_s)

    def _handle(self, run: ClaimedRun) -> bool:
        """Measure one run; True when a verdict was handed in."""
        said = f"run {run.id}: {run.gate} of route {run.route}"
        self._say(f"{said}, artifact {run.artifact_digest[:12]}, attempt {run.attempt}")
        tracker = Tracker(self._clock, lambda progress: self._announce(run, progress))
        with Lease(
            self._api,
            run,
            tracker,
            lease_s=self._options.lease_s,
            clock=self._clock,
            lost=self._lost,
        ) as lease:
            try:
                tracker.report("load", 0, 1, run.engine_name)
                engine = self._engines.open(run)
                tracker.report("load", 1, 1, run.engine_name)
                measured = self._measure(run, engine, tracker, lease)
                again = self._hand_in(run, lease, measured, engine.info)
            except FencedOut:
                raise
            except GatekeeperError as error:
                retry = isinstance(error, Unavailable) and not isinstance(error, MissingExtra)
                return self._give_up(run, lease, str(error), retry=retry)
            except _ENGINE_ERRORS as error:
                message = f"engine {run.engine_name}: {type(error).__name__}: {error}"
                return self._give_up(run, lease, message, retry=isinstance(error, OSError))
        self._say(f"{said}: {again or measured.result.outcome}")
        return True

    def _measure(
        self, run: ClaimedRun, engine: Engine | ServerPair, tracker: Tracker, lease: Lease
    ) -> Measured:
        try:
            return measure(
                run,
                engine,
                tracker,
                lambda: lease.cancelled,
                self._clock,
                fetch=self._fetch(lease),
                scorer=partial(self._engines.scorer, run),
            )
        except Cancelled:
            return Measured(GateResult(run.gate, Outcome.CANCELLED, ()), {})

    def _fetch(self, lease: Lease) -> Fetch:
        def fetch(run: str, table: str, sha256: str) -> pd.DataFrame:
            got: pd.DataFrame = self._insist(lease, partial(self._api.earlier, run, table, sha256))
            return got

        return fetch

    def _hand_in(
        self, run: ClaimedRun, lease: Lease, measured: Measured, info: EngineInfo | PairInfo
    ) -> str | None:
        """Upload and finish; why the run goes back to the queue, None where its verdict stands."""
        if measured.rates is not None:
            # the server estimates the minutes of the next plan from these
            info = replace(info, details={**info.details, "rates": asdict(measured.rates)})
        evidence: dict[str, str] = {}
        for name, data in measured.files.items():
            evidence[name] = self._insist(lease, partial(self._api.upload, run, name, data))
        lease.begin_last_write()
        again: str | None = self._insist(
            lease,
            lambda: self._api.finish(run, measured.result, evidence, info, measured.acceptance),
        )
        return again

    def _give_up(self, run: ClaimedRun, lease: Lease, error: str, *, retry: bool) -> bool:
        # an engine that raised may hold a broken state; the next run gets a fresh one
        self._engines.close()
        self._say(f"run {run.id} failed: {error}")
        lease.begin_last_write()
        self._insist(lease, lambda: self._api.fail(run, error, retry=retry))
        return False

    def _insist(self, lease: Lease, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever ``call`` gives
        """Repeat a request while the server is away and the lease is ours."""
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(2.0**attempt / 4)
            _ = lease.cancelled  # raises FencedOut once the run is lost
            try:
                return call()
            except Unavailable:
                if attempt == _TRIES - 1:
                    raise
        return None

    def _announce(self, run: ClaimedRun, progress: Progress) -> None:
        self._say(f"run {run.id}: {progress}")
