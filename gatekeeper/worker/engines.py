"""The engines a worker offers, and the one it has open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.running_pair import declared_weights, scorer_document
from gatekeeper.errors import Incompatible, InputError, MissingExtra
from gatekeeper.protocols import ServerPair
from gatekeeper.worker.model_rules import ModelRules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gatekeeper.protocols import Engine, EngineProvider
    from gatekeeper.worker.run import ClaimedRun

__all__ = ["EngineCache", "offered"]


ANY_SOURCE = ModelRules()


def offered(
    providers: Mapping[str, EngineProvider],
) -> tuple[list[dict[str, str]], list[MissingExtra]]:
    """Names and versions that can be opened here, and why the others cannot."""
    engines, missing = [], []
    for name, provider in providers.items():
        try:
            engines.append({"name": name, "version": provider.version()})
        except MissingExtra as error:
            missing.append(error)
    return engines, missing


class EngineCache:
    """Keeps the last engine open, since the next run often needs the same artifact.

    One at a time: two sets of weights may not fit the device.
    """

    def __init__(
        self,
        providers: Mapping[str, EngineProvider],
        cache: Path,
        rules: ModelRules = ANY_SOURCE,
    ) -> None:
        self._providers = providers
        self._rules = rules
        self._cache = cache
        self._key: tuple[str, int, str] | None = None
        self._engine: Engine | ServerPair | None = None
        self._scorer: tuple[str, Engine] | None = None

    def open(self, run: ClaimedRun) -> Engine | ServerPair:
        """Return the engine of a run's artifact, or its servers; the provider checks digests.

        Raises:
            InputError: no such engine here, or the artifact does not load.
            Forbidden: this worker does not open such model files.
        """
        key = (run.artifact_digest, run.max_batch, run.device)
        held = self._engine
        # what answers at an address may change at any time: servers are asked anew for each run
        if held is not None and self._key == key and not isinstance(held, ServerPair):
            return held
        self.close()
        if run.engine_name not in self._providers:
            raise InputError(
                "is not installed on this worker",
                field="artifact.engine.name",
                value=run.engine_name,
                remedy=f"this worker offers {', '.join(self._providers) or 'none'}",
            )
        self._rules.check(run.artifact)
        self._engine = self._providers[run.engine_name].open(
            run.artifact, cache=self._cache, max_batch=run.max_batch, device=run.device
        )
        self._key = key
        return self._engine

    def scorer(self, run: ClaimedRun) -> Engine:
        """Return an engine with the weights that a pair of servers declares.

        Raises:
            MissingExtra: the engine that reads them is not installed here, or cannot score.
            EvidenceError: a file is not the declared one.
            InputError: the artifact declares none, or they do not load.
            Forbidden: this worker does not open such model files.
        """
        weights = declared_weights(run.artifact)
        if weights is None:
            raise InputError("declares no weights", field="target.weights")
        if self._scorer is not None and self._scorer[0] == run.artifact_digest:
            return self._scorer[1]
        self._close_scorer()
        provider = self._providers.get(weights.engine)
        if provider is None:
            raise MissingExtra(
                f"engine {weights.engine}, which reads the declared files, is not on this worker",
                field="target.weights.engine",
                value=weights.engine,
                remedy="pip install gatekeeper[torch]",
            )
        document = scorer_document(weights, version=provider.version())
        self._rules.check(document)
        engine = provider.open(document, cache=self._cache, max_batch=1, device="cpu")
        if isinstance(engine, ServerPair):
            raise Incompatible(
                "opens servers, and no weights",
                field="target.weights.engine",
                value=weights.engine,
                remedy="name an engine that loads model files",
            )
        self._scorer = (run.artifact_digest, engine)
        return engine

    def _close_scorer(self) -> None:
        if self._scorer is not None:
            self._scorer[1].close()
        self._scorer = None

    def close(self) -> None:
        """Release what is open."""
        self._close_scorer()
        if self._engine is not None:
            self._engine.close()
        self._engine, self._key = None, None
