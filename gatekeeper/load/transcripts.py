"""Decode many requests in a continuous batch and hand each one over when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from gatekeeper.errors import InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from gatekeeper.core.acceptance import Round
    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import Emission, Engine, StepResult

__all__ = ["Transcript", "transcripts"]

_MAX_IDLE_STEPS = 10_000


@dataclass(frozen=True)
class Transcript:
    """All that one request emitted and how, in order; ``reason`` as in ``Finished``."""

    request: DecodeRequest
    emissions: tuple[Emission, ...]
    rounds: tuple[Round, ...]
    reason: str

    @property
    def tokens(self) -> tuple[int, ...]:
        """The emitted tokens."""
        return tuple(token for emission in self.emissions for token in emission.tokens)


@dataclass
class _Open:
    request: DecodeRequest
    emissions: list[Emission] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def close(self, reason: str) -> Transcript:
        return Transcript(self.request, tuple(self.emissions), tuple(self.rounds), reason)


def transcripts(
    engine: Engine,
    requests: Iterable[DecodeRequest],
    *,
    in_flight: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[Transcript, None, None]:
    """Yield each request when it ends, in order of ending; ``in_flight`` are submitted at a time.

    Between two steps the caller may do what it likes with the engine except stepping it: scoring
    happens there. Closing the iterator, and ``cancelled()``, free every slot.

    Raises:
        InputError: ``in_flight`` below 1.
        Unavailable: the engine stopped making progress.
    """
    if in_flight < 1:
        raise InputError("must be 1 or more", field="in_flight", value=in_flight)
    waiting = iter(requests)
    active: dict[str, _Open] = {}
    idle = 0
    try:
        while not cancelled():
            for request in islice(waiting, in_flight - len(active)):
                engine.submit(request)
                active[request.request_id] = _Open(request)
            if not active:
                return
            result = engine.step()
            idle = 0 if result.emitted or result.rounds or result.finished else idle + 1
            if idle > _MAX_IDLE_STEPS:
                raise Unavailable(
                    f"made no progress in {idle} steps", field="engine", value=engine.info.name
                )
            yield from _advance(active, result)
    finally:
        if active:
            for request_id in active:
                engine.cancel(request_id)
            engine.step()


def _advance(active: dict[str, _Open], result: StepResult) -> list[Transcript]:
    """Book a step's emissions and rounds; return what ended, no longer active."""
    for emission in result.emitted:
        active[emission.request_id].emissions.append(emission)
    for one in result.rounds:
        active[one.request_id].rounds.append(one)
    return [active.pop(end.request_id).close(end.reason) for end in result.finished]
