"""Run requests to the end on an engine and keep all that it said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.core.decoding import DecodeRequest

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


def ragged(count: int, *, gamma: int, tokens: int = 20, **changes: Any) -> list[DecodeRequest]:
    """Prompts of 1, 8, 15, … random ids of a vocabulary of 97, and answers that differ in length."""
    rng = np.random.default_rng(8)
    prompts = [tuple(rng.integers(0, 97, 1 + 7 * i).tolist()) for i in range(count)]
    return [
        DecodeRequest(f"r{i}", prompt, tokens + i, gamma=gamma, seed=70 + i, **changes)
        for i, prompt in enumerate(prompts)
    ]
