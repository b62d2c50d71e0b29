"""Run requests to the end on an engine and keep all that it said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Record:
    """Everything the engine reported, by request."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    emissions: list[Any] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)

    def take(self, result: Any) -> None:
        for emission in result.emitted:
            self.tokens.setdefault(emission.request_id, []).extend(emission.tokens)
            self.emissions.append(emission)
        self.rounds.extend(result.rounds)
        self.reasons |= {end.request_id: end.reason for end in result.finished}


def drive(engine: Any, requests: Iterable[Any], *, limit: int = 5000) -> Record:
    """Submit all requests at once and step until every one has ended."""
    record = Record()
    waiting = set()
    for request in requests:
        engine.submit(request)
        waiting.add(request.request_id)
    for _ in range(limit):
        if waiting <= record.reasons.keys():
            return record
        record.take(engine.step())
    raise AssertionError(f"not finished after {limit} steps: {waiting - record.reasons.keys()}")
