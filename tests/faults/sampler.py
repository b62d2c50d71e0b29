"""An exact speculative sampler over many requests at once, every step of it a method.

A fault or a benign variant is a subclass that overrides one of them. What leaves is the evidence
format alone: p comes from ``MarkovLM`` and the text, never from what the sampler believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from faults.markov import END, MarkovLM, inverse

from gatekeeper.core.stats.evidence import RequestEvidence


@dataclass
class Log:
    """Rows of every request, as tuples of arrays in the order of ``COLUMNS``."""

    COLUMNS = ("who", "context", "k", "round", "kind", "draft", "token")
    rows: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    p: list[np.ndarray] = field(default_factory=list)
    q: list[np.ndarray] = field(default_factory=list)

    def add(self, *columns: object) -> None:
        full = np.broadcast_arrays(*columns)
        self.rows.append(tuple(np.array(c) for c in full))


class Sampler:
    """Exact: every method does what the algorithm says.

    Arrays of length R (requests): ``a``, ``b`` the last two tokens, ``before`` the context of the
    row before, ``seen`` [R, V] what each request has emitted (only where the model has a penalty).
    ``at`` names the requests that a call is about.
    """

    WINDOW_DEPENDS_ON_DRAFTS = False

    def __init__(
        self, lm: MarkovLM, rng: np.random.Generator, prompt: np.ndarray, *, gamma: int
    ) -> None:
        self.lm, self.rng, self.gamma, self.prompt = lm, rng, gamma, prompt
        self.a, self.b = prompt * 31 % lm.vocabulary, prompt * 17 % lm.vocabulary
        self.before = lm.context(self.a, self.b)
        self.seen = np.zeros((len(prompt), lm.vocabulary), dtype=bool) if lm.presence else None
        self.done = np.zeros(len(prompt), dtype=np.int64)
        self.ended = np.zeros(len(prompt), dtype=bool)
        self.number = 0
        self.log = Log()

    # What an engine may get wrong -------------------------------------------------------------

    def uniform(self, purpose: str, at: np.ndarray, k: int) -> np.ndarray:
        return self.rng.random(len(at))

    def window(self) -> int:
        return self.gamma

    def begins(self, active: np.ndarray) -> None:
        """Notice that a round begins."""

    def view(self, at: np.ndarray) -> np.ndarray:
        """Context that the target sees."""
        return self.lm.context(self.a[at], self.b[at])

    def draft_view(self, at: np.ndarray) -> np.ndarray:
        """Context that the draft sees."""
        return self.lm.context(self.a[at], self.b[at])

    def history(self, at: np.ndarray) -> np.ndarray | None:
        """Tokens that the target's penalties look at."""
        return None if self.seen is None else self.seen[at]

    def target(self, at: np.ndarray, k: int) -> np.ndarray:
        """p of a window position, as the engine believes it."""
        return penalised(self.lm, self.lm.p[self.view(at)], self.history(at))

    def target_at_bonus(self, at: np.ndarray, k: int) -> np.ndarray:
        return self.target(at, k)

    def pick(self, q: np.ndarray, u: np.ndarray) -> np.ndarray:
        return inverse(q, u)

    def stops(self, q_d: np.ndarray) -> np.ndarray:
        """Whether the window ends with the draft just drawn."""
        return np.zeros(len(q_d), dtype=bool)

    def chance(self, at: np.ndarray, p: np.ndarray, q: np.ndarray, draft: np.ndarray) -> np.ndarray:
        row = np.arange(len(draft))
        return np.minimum(1.0, p[row, draft] / np.maximum(q[row, draft], 1e-30))

    def residual(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.maximum(p - q, 0)

    def correct(self, at: np.ndarray, p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
        return inverse(self.residual(p, q), self.uniform("residual", at, k))

    def judge(
        self, at: np.ndarray, p: np.ndarray, q: np.ndarray, draft: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Accept flags and tokens."""
        accept = self.uniform("accept", at, k) < self.chance(at, p, q, draft)
        return accept, np.where(accept, draft, self.correct(at, p, q, k))

    def emit_bonus(self, at: np.ndarray, k: int) -> np.ndarray:
        return inverse(self.target_at_bonus(at, k), self.uniform("bonus", at, k))

    def commits(self, at: np.ndarray, draft: np.ndarray, token: np.ndarray) -> None:
        """Notice what was drafted and what was emitted."""

    # The loop ---------------------------------------------------------------------------------

    def run(self, tokens: int) -> None:
        """Advance every request until it has that many tokens or has ended."""
        while (active := np.flatnonzero((self.done < tokens) & ~self.ended)).size:
            self.round(active)
            self.number += 1

    def round(self, active: np.ndarray) -> None:
        self.begins(active)
        at, length = active, self.window()
        last = np.full(len(self.done), length)
        for k in range(length + 1):
            bonus = at[last[at] == k]
            if len(bonus):
                token = self.emit_bonus(bonus, k)
                self.emit(bonus, k, 2, np.full(len(bonus), -1), token)
            at = at[last[at] > k]
            if not len(at):
                break
            q = self.lm.q[self.draft_view(at)]
            draft = self.pick(q, self.uniform("draft", at, k))
            short = self.stops(q[np.arange(len(at)), draft])
            last[at[short]] = k + 1
            accept, token = self.judge(at, self.target(at, k), q, draft, k)
            self.emit(at, k, np.where(accept, 0, 1), draft, token)
            at = at[accept]
            at = at[~self.ended[at]]

    def emit(
        self, at: np.ndarray, k: int, kind: object, draft: np.ndarray, token: np.ndarray
    ) -> None:
        context = self.lm.context(self.a[at], self.b[at])
        self.log.add(at, context, k, self.number, kind, draft, token)
        if self.seen is not None:
            self.log.p.append(penalised(self.lm, self.lm.p[context], self.seen[at]))
            self.seen[at, token] = True
        if type(self).draft_view is not Sampler.draft_view:
            self.log.q.append(self.lm.q[self.draft_view(at)])
        self.commits(at, draft, token)
        self.done[at] += 1
        self.before[at] = context
        self.a[at], self.b[at] = self.b[at], token
        if self.lm.ends:
            self.ended[at] |= token == END

    def evidence(
        self, *, numbers: np.ndarray, replicate: np.ndarray, tokens: int
    ) -> list[RequestEvidence]:
        columns = dict(
            zip(Log.COLUMNS, map(np.concatenate, zip(*self.log.rows, strict=True)), strict=True)
        )
        p = np.concatenate(self.log.p) if self.log.p else None
        q = np.concatenate(self.log.q) if self.log.q else None
        order = np.argsort(columns["who"], kind="stable")
        bounds = np.searchsorted(columns["who"][order], np.arange(len(self.prompt) + 1))
        out = []
        for i in range(len(self.prompt)):
            rows = order[bounds[i] : bounds[i + 1]][:tokens]
            context = columns["context"][rows]
            out.append(
                RequestEvidence(
                    prompt=int(self.prompt[i]),
                    replicate=int(replicate[i]),
                    request=int(numbers[i]),
                    p=self.lm.p[context] if p is None else p[rows],
                    q=self.lm.q[context] if q is None else q[rows],
                    **{name: columns[name][rows] for name in Log.COLUMNS[2:]},
                )
            )
        return out


def penalised(lm: MarkovLM, p: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    if seen is None:
        return p
    weights = np.where(seen, p * np.float32(np.exp(-lm.presence)), p)
    return weights / weights.sum(axis=1, keepdims=True)
