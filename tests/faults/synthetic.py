"""Evidence of the synthetic model, with a fault or without; the switch that was set stays here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from faults.catalogue import FAULTS, WrongTemperature
from faults.detection import side_by_side
from faults.markov import MarkovLM, draw, softmax
from faults.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.core.stats.evidence import RequestEvidence

__all__ = ["MarkovLM", "arrays", "decode", "decode_with", "draw", "softmax", "stream"]


def decode(
    lm: MarkovLM,
    rng: np.random.Generator,
    *,
    requests: int,
    tokens: int,
    gamma: int = 4,
    fault: str | None = None,
    strength: float | None = None,
    prompts: int | None = None,
    first_request: int = 0,
) -> list[RequestEvidence]:
    """Decode ``requests`` × ``tokens`` tokens speculatively; prompts repeat every ``prompts``.

    ``strength`` is the temperature of the fault that has one.
    """
    sampler = Sampler if fault is None else FAULTS[fault].sampler
    if strength is not None:
        sampler = type("At", (WrongTemperature,), {"temperature": strength})
    return decode_with(
        sampler,
        lm,
        rng,
        requests=requests,
        tokens=tokens,
        gamma=gamma,
        prompts=prompts,
        first_request=first_request,
    )


def decode_with(
    sampler: type[Sampler],
    lm: MarkovLM,
    rng: np.random.Generator,
    *,
    requests: int,
    tokens: int,
    gamma: int = 4,
    prompts: int | None = None,
    first_request: int = 0,
    first_prompt: int = 0,
) -> list[RequestEvidence]:
    """As ``decode``, with a sampler of one's own and prompts from ``first_prompt`` on."""
    prompts = prompts or max(1, requests // 2)
    numbers = np.arange(first_request, first_request + requests)
    running = sampler(lm, rng, first_prompt + numbers % prompts, gamma=gamma)
    running.run(tokens)
    return running.evidence(numbers=numbers, replicate=numbers // prompts, tokens=tokens)


def stream(
    sampler: type[Sampler],
    lm: MarkovLM,
    rng: np.random.Generator,
    *,
    requests: int,
    tokens: int,
    gamma: int = 4,
    batch: int = 64,
) -> Iterator[RequestEvidence]:
    """Requests as the gate runs them, decoded only as far as someone asks.

    Every prompt is new and runs twice, its replicates one after the other.
    """
    for first in range(0, requests, batch):
        size = min(batch, requests - first)
        yield from side_by_side(
            decode_with(
                sampler, lm, rng, requests=size, tokens=tokens, gamma=gamma, first_prompt=first // 2
            )
        )


def arrays(evidence: list[RequestEvidence]) -> dict[str, np.ndarray]:
    """The arrays of an EVIDENCE.npz."""
    columns = {
        name: np.concatenate([getattr(e, name) for e in evidence])
        for name in ("token", "p", "q", "k", "round", "kind", "draft")
    }
    for name in ("prompt", "replicate", "request"):
        columns[name] = np.concatenate([np.full(e.rows, getattr(e, name)) for e in evidence])
    return columns
