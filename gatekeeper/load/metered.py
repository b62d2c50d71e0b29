"""What each request costs an engine: the busy time of its steps, shared by those in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.core.memory import MemoryLedger
    from gatekeeper.protocols import Engine, EngineInfo, Scored, StepResult

__all__ = ["MeteredEngine"]


class MeteredEngine:
    """The same engine, with a bill for each request.

    The wall time of a step (drafting, prefill and all) is divided equally among the requests in
    flight during it: submitted before it and not yet finished. Time between steps is nobody's, so
    the bills add up to the time that the engine was busy.
    """

    def __init__(self, inner: Engine, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._bills: dict[str, float] = {}
        self._settled: dict[str, float] = {}

    @property
    def info(self) -> EngineInfo:
        """What is running."""
        return self._inner.info

    def settle(self, request_id: str) -> float:
        """Return a finished request's engine-busy seconds and forget them."""
        return self._settled.pop(request_id)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """As the engine does."""
        return self._inner.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """As the engine does."""
        return self._inner.detokenize(tokens)

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request and open its bill."""
        self._inner.submit(request)
        self._bills[request.request_id] = 0.0

    def step(self) -> StepResult:
        """Advance the engine and share the step's time."""
        began = self._clock()
        result = self._inner.step()
        spent = self._clock() - began
        for request_id in self._bills:
            self._bills[request_id] += spent / len(self._bills)
        for end in result.finished:
            if end.request_id in self._bills:
                self._settled[end.request_id] = self._bills.pop(end.request_id)
        return result

    def cancel(self, request_id: str) -> None:
        """Free the request's slot; nobody asks for its bill."""
        self._bills.pop(request_id, None)
        self._inner.cancel(request_id)

    def score(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        sampling: SamplingSettings,
        *,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> Scored:
        """As the engine does."""
        return self._inner.score(prompt, tokens, sampling, stop=stop, min_tokens=min_tokens)

    def memory(self) -> MemoryLedger:
        """As the engine does."""
        return self._inner.memory()

    def close(self) -> None:
        """Release the device."""
        self._inner.close()
