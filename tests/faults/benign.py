"""Exact algorithms in unusual dress, and harmless numerics: none of them may ever FAIL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from faults.markov import MarkovLM, inverse, softmax
from faults.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.core.stats.evidence import RequestEvidence

    A = np.ndarray


class TargetMatch(Sampler):
    """The target draws its own token from p; a draft that equals it is accepted."""

    def judge(self, at: A, p: A, q: A, draft: A, k: int) -> tuple[A, A]:
        token = inverse(p, self.uniform("residual", at, k))
        return token == draft, token


class TwoCandidates(Sampler):
    """Two drafts from q, the second judged against the residual of the first (SpecInfer)."""

    def judge(self, at: A, p: A, q: A, draft: A, k: int) -> tuple[A, A]:
        row = np.arange(len(at))
        rest = np.maximum(p - q, 0).astype(np.float64)
        rest /= np.maximum(rest.sum(axis=1, keepdims=True), 1e-30)
        second = inverse(q, self.rng.random(len(at)))
        first = self.rng.random(len(at)) < p[row, draft] / q[row, draft]
        again = self.rng.random(len(at)) < rest[row, second] / q[row, second]
        last = inverse(np.maximum(rest - q, 0) + 1e-30, self.rng.random(len(at)))
        token = np.where(first, draft, np.where(again, second, last))
        return first | again, token


class StaleDraftCache(Sampler):
    """The draft sees the text of one token ago; its q is what it really drew from."""

    def draft_view(self, at: A) -> A:
        return self.before[at]


class ConfidenceStop(Sampler):
    """A draft that q gives less than .4 is the last of its window."""

    def stops(self, q_d: A) -> A:
        return q_d < 0.4


def one_hot(lm: MarkovLM) -> MarkovLM:
    q = np.zeros_like(lm.q)
    q[np.arange(len(q)), lm.q.argmax(axis=1)] = 1
    return replace(lm, q=q)


def bfloat16(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    logits = np.log(np.maximum(p, 1e-12)).astype(np.float32) + 12  # of size 8 to 16
    bits = logits.view(np.uint32)
    return softmax(((bits + 0x8000) & 0xFFFF0000).view(np.float32))


def noise(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return softmax(np.log(np.maximum(p, 1e-30)) + 0.03 * rng.standard_normal(p.shape))


@dataclass(frozen=True)
class Control:
    """A sampler, what it does to the model, and what p looks like to the one who scores."""

    sampler: type[Sampler] = Sampler
    model: Callable[[MarkovLM], MarkovLM] | None = None
    scored: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None

    def prepare(self, lm: MarkovLM) -> MarkovLM:
        return lm if self.model is None else self.model(lm)

    def seen(
        self, evidence: list[RequestEvidence], rng: np.random.Generator
    ) -> list[RequestEvidence]:
        if self.scored is None:
            return evidence
        return [replace(e, p=self.scored(e.p, rng)) for e in evidence]


CONTROLS = {
    "exact": Control(),
    "target-match coupling": Control(TargetMatch),
    "one-hot exact": Control(model=one_hot),
    "exact 2-candidate": Control(TwoCandidates),
    "stale draft cache": Control(StaleDraftCache),
    "bfloat16 logits": Control(scored=bfloat16),
    "logit noise of .03": Control(scored=noise),
    "confidence-stopped windows": Control(ConfidenceStop),
}
"""By name."""
