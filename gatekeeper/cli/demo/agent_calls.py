"""Model calls of the agent: one or several requests decoded together, each timed as a client would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import Engine

__all__ = ["Answer", "decode_together"]

_MAX_IDLE_STEPS = 10_000


@dataclass(frozen=True)
class Answer:
    """What came back for one request; times in nanoseconds of the caller's clock."""

    request: DecodeRequest
    start_ns: int
    first_ns: int
    end_ns: int
    tokens: tuple[int, ...]
    rounds: int
    reason: str


@dataclass
class _Open:
    request: DecodeRequest
    start_ns: int
    tokens: list[int]
    first_ns: int | None = None
    rounds: int = 0


def decode_together(
    engine: Engine, requests: Sequence[DecodeRequest], now_ns: Callable[[], int]
) -> tuple[Answer, ...]:
    """Submit all requests at once and step the engine until the last has ended; answers in order.

    Raises:
        InputError: the engine refuses a request.
        Unavailable: it stopped making progress, or ended a request without a token.
    """
    waiting: dict[str, _Open] = {}
    for request in requests:
        waiting[request.request_id] = _Open(request, now_ns(), [])
        engine.submit(request)
    answers: dict[str, Answer] = {}
    idle = 0
    while waiting:
        result = engine.step()
        now = now_ns()
        idle = 0 if result.emitted or result.rounds or result.finished else idle + 1
        if idle > _MAX_IDLE_STEPS:
            raise Unavailable(
                f"made no progress in {idle} steps", field="engine", value=engine.info.name
            )
        for emission in result.emitted:
            call = waiting[emission.request_id]
            call.tokens.extend(emission.tokens)
            call.rounds += 1
            call.first_ns = now if call.first_ns is None else call.first_ns
        for finished in result.finished:
            call = waiting.pop(finished.request_id)
            if call.first_ns is None:
                raise Unavailable(
                    f"ended a request without a token ({finished.reason})",
                    field="engine",
                    value=engine.info.name,
                )
            answers[finished.request_id] = Answer(
                call.request,
                call.start_ns,
                call.first_ns,
                now,
                tuple(call.tokens),
                call.rounds,
                finished.reason,
            )
    return tuple(answers[request.request_id] for request in requests)
