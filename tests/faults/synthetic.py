"""A synthetic order-2 Markov language model and a speculative sampler with fault switches.

Many requests advance together, so that 20 seeds of some thousand tokens take seconds. Only the
evidence format leaves this module; the switch that was set does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gatekeeper.core.stats.evidence import RequestEvidence

FAULTS = (
    "residual_not_subtracted",
    "bonus_from_q",
    "accept_above_tenth",
    "argmax_draft",
    "correction_from_q",
    "q_wrong_temperature",
    "absolute_residual",
    "bonus_stale_context",
    "same_seed_per_request",
    "greedy_match_accept",
    "lenient",
)


@dataclass(frozen=True)
class MarkovLM:
    """p and q of every context; contexts are hashed pairs of the last two tokens."""

    p: np.ndarray
    q: np.ndarray

    @property
    def vocabulary(self) -> int:
        return self.p.shape[1]

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
        """Logits ~ N(0, spread²) per context; q's logits are p's plus N(0, (noise·…)²) noise."""
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


def draw(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """One id per row of unnormalised weights."""
    c = np.cumsum(weights, axis=1, dtype=np.float64)
    u = rng.random((len(weights), 1)) * c[:, -1:]
    return np.minimum((c <= u).sum(axis=1), weights.shape[1] - 1)


def tempered(q: np.ndarray, temperature: float) -> np.ndarray:
    w = q.astype(np.float64) ** (1 / temperature)
    return (w / w.sum(axis=1, keepdims=True)).astype(np.float32)


@dataclass
class _Log:
    """Rows of every request, as lists of (request, context, k, round, kind, draft, token)."""

    rows: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    def add(self, *columns: object) -> None:
        full = np.broadcast_arrays(*columns)
        self.rows.append(tuple(np.array(c) for c in full))


def decode(
    lm: MarkovLM,
    rng: np.random.Generator,
    *,
    requests: int,
    tokens: int,
    gamma: int = 4,
    fault: str | None = None,
    strength: float = 0.7,
    prompts: int | None = None,
    first_request: int = 0,
) -> list[RequestEvidence]:
    """Decode ``requests`` × ``tokens`` tokens speculatively; prompts repeat every ``prompts``."""
    if fault is not None and fault not in FAULTS:
        raise ValueError(fault)
    prompts = prompts or max(1, requests // 2)
    numbers = np.arange(first_request, first_request + requests)
    prompt = numbers % prompts
    a, b = prompt * 31 % lm.vocabulary, prompt * 17 % lm.vocabulary
    done = np.zeros(requests, dtype=np.int64)
    log = _Log()
    if fault == "same_seed_per_request":
        alone = [
            decode(
                lm,
                np.random.default_rng(int(p) + 1),
                requests=1,
                tokens=tokens,
                gamma=gamma,
                prompts=prompts,
                first_request=int(p),
            )[0]
            for p in prompt
        ]
        return [
            RequestEvidence(
                int(p), int(r // prompts), int(r), e.token, e.p, e.q, e.k, e.round, e.kind, e.draft
            )
            for p, r, e in zip(prompt, numbers, alone, strict=True)
        ]
    sampler = _Sampler(lm, rng, gamma, fault, strength, log)
    number = 0
    while (active := np.flatnonzero(done < tokens)).size:
        a[active], b[active], emitted = sampler.round(active, a[active], b[active], number)
        done[active] += emitted
        number += 1
    return _evidence(lm, log, prompt=prompt, numbers=numbers, prompts=prompts, tokens=tokens)


@dataclass
class _Sampler:
    """The speculative sampler with its one fault switch."""

    lm: MarkovLM
    rng: np.random.Generator
    gamma: int
    fault: str | None
    strength: float
    log: _Log

    def propose(self, q: np.ndarray) -> np.ndarray:
        if self.fault == "argmax_draft":
            return q.argmax(axis=1)
        if self.fault == "q_wrong_temperature":
            q = tempered(q, self.strength)
        return draw(self.rng, q)

    def chance(self, p: np.ndarray, q: np.ndarray, draft: np.ndarray) -> np.ndarray:
        """Probability of accepting each draft."""
        row = np.arange(len(draft))
        p_d, q_d = p[row, draft], q[row, draft]
        if self.fault == "accept_above_tenth":
            return (p_d > 0.1).astype(float)
        if self.fault == "greedy_match_accept":
            return (draft == p.argmax(axis=1)).astype(float)
        lenient = 1.1 if self.fault == "lenient" else 1.0
        return np.minimum(1.0, lenient * p_d / q_d)

    def residual(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        broken = {
            "residual_not_subtracted": p,
            "correction_from_q": q,
            "absolute_residual": np.abs(p - q),
        }
        return broken.get(str(self.fault), np.maximum(p - q, 0))

    def bonus(self, context: np.ndarray, stale: np.ndarray) -> np.ndarray:
        if self.fault == "bonus_from_q":
            return self.lm.q[context]
        return self.lm.p[stale if self.fault == "bonus_stale_context" else context]

    def round(
        self, active: np.ndarray, a: np.ndarray, b: np.ndarray, number: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One round of the active requests, whose last tokens are a, b; new a, b and counts."""
        lm = self.lm
        a, b = a.copy(), b.copy()
        emitted = np.zeros(len(active), dtype=np.int64)
        stale = lm.context(a, b)
        at = np.arange(len(active))
        for k in range(self.gamma):
            context = lm.context(a[at], b[at])
            p, q = lm.p[context], lm.q[context]
            draft = self.propose(q)
            accept = self.rng.random(len(at)) < self.chance(p, q, draft)
            token = np.where(accept, draft, draw(self.rng, self.residual(p, q)))
            self.log.add(active[at], context, k, number, np.where(accept, 0, 1), draft, token)
            emitted[at] += 1
            a[at], b[at] = b[at], token
            stale[at] = context
            at = at[accept]
        context = lm.context(a[at], b[at])
        token = draw(self.rng, self.bonus(context, stale[at]))
        self.log.add(active[at], context, self.gamma, number, 2, -1, token)
        emitted[at] += 1
        a[at], b[at] = b[at], token
        return a, b, emitted


def _evidence(
    lm: MarkovLM, log: _Log, *, prompt: np.ndarray, numbers: np.ndarray, prompts: int, tokens: int
) -> list[RequestEvidence]:
    who, context, k, number, kind, draft, token = (
        np.concatenate([r[i] for r in log.rows]) for i in range(7)
    )
    order = np.argsort(who, kind="stable")
    bounds = np.searchsorted(who[order], np.arange(len(prompt) + 1))
    out = []
    for i in range(len(prompt)):
        rows = order[bounds[i] : bounds[i + 1]][:tokens]
        out.append(
            RequestEvidence(
                prompt=int(prompt[i]),
                replicate=int(numbers[i] // prompts),
                request=int(numbers[i]),
                token=token[rows],
                p=lm.p[context[rows]],
                q=lm.q[context[rows]],
                k=k[rows],
                round=number[rows],
                kind=kind[rows],
                draft=draft[rows],
            )
        )
    return out


def arrays(evidence: list[RequestEvidence]) -> dict[str, np.ndarray]:
    """The arrays of an EVIDENCE.npz."""
    columns = {
        name: np.concatenate([getattr(e, name) for e in evidence])
        for name in ("token", "p", "q", "k", "round", "kind", "draft")
    }
    for name in ("prompt", "replicate", "request"):
        columns[name] = np.concatenate([np.full(e.rows, getattr(e, name)) for e in evidence])
    return columns
