"""A synthetic order-2 Markov language model, and the settings a real target is sampled with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

END = 0
"""The end token, in models that have one."""


@dataclass(frozen=True)
class MarkovLM:
    """p and q of every context; contexts are hashed pairs of the last two tokens.

    ``p`` is the processed target, ``raw`` the same before processing (None: nothing was processed).
    ``presence`` is a penalty in nats on tokens that the request has emitted, on top of p. ``ends``
    says that token ``END`` ends a request.
    """

    p: np.ndarray
    q: np.ndarray
    raw: np.ndarray | None = None
    presence: float = 0.0
    ends: bool = False

    @property
    def vocabulary(self) -> int:
        return self.p.shape[1]

    @property
    def unprocessed(self) -> np.ndarray:
        return self.p if self.raw is None else self.raw

    def context(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * 7919 + b * 104_729 + (a * b) % 8191) % len(self.p)

    @classmethod
    def make(
        cls,
        rng: np.random.Generator,
        *,
        vocabulary: int = 500,
        contexts: int = 2048,
        spread: float = 3.3,
        noise: float = 0.62,
    ) -> MarkovLM:
        """Logits ~ N(0, spread²) per context; q's logits are p's plus N(0, noise²)."""
        logits = spread * rng.standard_normal((contexts, vocabulary))
        other = logits + noise * rng.standard_normal((contexts, vocabulary))
        return cls(softmax(logits), softmax(other))

    @property
    def acceptance(self) -> float:
        return float(np.minimum(self.p, self.q).sum(axis=1).mean())

    @property
    def entropy(self) -> float:
        return float(-(self.p * np.log(np.maximum(self.p, 1e-30))).sum(axis=1).mean())


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def normalised(weights: np.ndarray) -> np.ndarray:
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def draw(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """One id per row of unnormalised weights."""
    return inverse(weights, rng.random(len(weights)))


def inverse(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The id at quantile u of each row of unnormalised weights."""
    c = np.cumsum(weights, axis=1, dtype=np.float64)
    return np.minimum((c <= u[:, None] * c[:, -1:]).sum(axis=1), weights.shape[1] - 1)


def tempered(p: np.ndarray, temperature: float) -> np.ndarray:
    return normalised(p.astype(np.float64) ** (1 / temperature))


def filtered(p: np.ndarray, *, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    keep = np.ones_like(ranked, dtype=bool)
    if top_k:
        keep[:, top_k:] = False
    keep &= np.cumsum(ranked, axis=1) - ranked < top_p
    out = np.zeros_like(p)
    np.put_along_axis(out, order, np.where(keep, ranked, 0), axis=1)
    return out / out.sum(axis=1, keepdims=True)


def hashed(*numbers: np.ndarray | int) -> np.ndarray:
    """Uniforms on [0, 1) that are a function of the numbers (splitmix64 over them)."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            state = np.asarray(number).astype(np.uint64) + state + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def _grammar(lm: MarkovLM) -> MarkovLM:
    allowed = np.random.default_rng(11).random(lm.p.shape) < 0.7
    allowed[:, -1] = True
    return replace(lm, p=normalised(lm.p * allowed), raw=lm.p)


def _bias(lm: MarkovLM) -> MarkovLM:
    liked = np.random.default_rng(11).random(lm.vocabulary) < 0.1
    return replace(lm, p=normalised(lm.p * np.exp(1.0 * liked)), raw=lm.p)


def _presence_penalty(lm: MarkovLM) -> MarkovLM:
    """3 nats, as a repetition penalty of 1.3 takes from a logit of 10.

    A natural language has common words: without them hardly a token ever returns.
    """
    order = np.random.default_rng(11).permutation(lm.vocabulary)
    common = 1.0 / np.arange(1, lm.vocabulary + 1)[order]
    return replace(lm, p=normalised(lm.p * common), q=normalised(lm.q * common), presence=3.0)


def _end_token(lm: MarkovLM) -> MarkovLM:
    return replace(lm, p=_ending(lm.p), q=_ending(lm.q), raw=lm.p, ends=True)


def _ending(p: np.ndarray) -> np.ndarray:
    """The end token gets 2 %: answers of some fifty tokens."""
    out = p * 0.98 / (1 - p[:, [END]])
    out[:, END] = 0.02
    return out.astype(np.float32)


SETTINGS: dict[str, Callable[[MarkovLM], MarkovLM]] = {
    "plain": lambda lm: lm,
    "temperature .7, top-p .9": lambda lm: replace(
        lm, p=filtered(tempered(lm.p, 0.7), top_p=0.9), raw=lm.p
    ),
    "top-p .8": lambda lm: replace(lm, p=filtered(lm.p, top_p=0.8), raw=lm.p),
    "top-k 5": lambda lm: replace(lm, p=filtered(lm.p, top_k=5), raw=lm.p),
    "grammar": _grammar,
    "bias": _bias,
    "presence penalty": _presence_penalty,
    "end token": _end_token,
}
"""What requests may ask for, as a change of the model; ``raw`` keeps the target before it."""


def with_setting(lm: MarkovLM, name: str) -> MarkovLM:
    return SETTINGS[name](lm)
