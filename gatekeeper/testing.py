"""A small, exact, fully deterministic engine for tests: numpy only, no model files.

``FakeEngine`` implements :class:`gatekeeper.protocols.Engine` over a synthetic Markov language
model: continuous batching, speculative rounds by rejection sampling, evidence, independent
scoring. Faults and delays are switched on at construction, so code under test never sees them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gatekeeper.core.acceptance import Round
from gatekeeper.core.memory import MemoryLedger
from gatekeeper.errors import InputError
from gatekeeper.protocols import Emission, EngineInfo, Finished, Scored, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.protocols import Engine

    Floats = NDArray[np.float64]

__all__ = ["Costs", "FakeEngine", "FakeProvider", "Fault", "VirtualClock"]

Fault = Literal["residual_not_subtracted", "bonus_from_q", "correction_from_q"]
"""Errors of a sampler that keep its output plausible; the names follow the essay of the gate."""


_V_RANGE = (2, 64)


class VirtualClock:
    """A clock that moves only when told: seconds of a test that take no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the virtual time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now += seconds


@dataclass(frozen=True)
class Costs:
    """Seconds that the parts of a step take; ``jitter`` is the relative sd of a step's time."""

    prefill_token_s: float = 0.0
    draft_round_s: float = 0.0
    draft_token_s: float = 0.0
    verify_s: float = 0.0
    verify_position_s: float = 0.0
    jitter: float = 0.0


@dataclass
class _Sequence:
    request: DecodeRequest
    rng: np.random.Generator
    text: list[int]
    produced: int = 0
    rounds: int = 0


@dataclass
class _Window:
    """What one round did to one sequence, before the step's time is shared out."""

    sequence: _Sequence
    drafted: int
    accepted: int
    emission: Emission
    reason: str | None
    context: int


class FakeEngine:
    """Markov target, noisy copy of it as the proposer, exact speculative sampling.

    Args:
        vocab_size: V, at most 64.
        order: 1 or 2, tokens of context that the next distribution depends on.
        agreement: weight of the target in the proposal's mixture; 1 proposes the target itself.
        model_seed: fixes the tables; request seeds fix the draws.
        fault: a sampler error to build in, or None for the exact algorithm.
        costs, spend: seconds per step and who waits for them (``VirtualClock.advance``,
            ``time.sleep``, or None: recorded in the rounds, not waited for).
    """

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        order: int = 1,
        agreement: float = 0.7,
        model_seed: int = 0,
        max_context: int = 512,
        max_batch: int = 8,
        end_tokens: tuple[int, ...] = (),
        fault: Fault | None = None,
        costs: Costs | None = None,
        spend: Callable[[float], None] | None = None,
        identity_rule: str = "deficit",
    ) -> None:
        if not _V_RANGE[0] <= vocab_size <= _V_RANGE[1]:
            raise InputError(f"must lie in {_V_RANGE}", field="vocab_size", value=vocab_size)
        if order not in (1, 2):
            raise InputError("must be 1 or 2", field="order", value=order)
        rng = np.random.default_rng(model_seed)
        shape = (vocab_size**order, vocab_size)
        self._target = rng.normal(0.0, 1.5, shape)
        noise = _softmax(rng.normal(0.0, 1.5, shape))
        self._proposal = np.log(agreement * _softmax(self._target) + (1 - agreement) * noise)
        self._order = order
        self._fault = fault
        self._costs = costs or Costs()
        self._spend = spend
        self._time_rng = np.random.default_rng(model_seed + 1)
        self._queue: deque[_Sequence] = deque()
        self._active: dict[str, _Sequence] = {}
        self._cancelled: list[str] = []
        self._info = EngineInfo(
            name="fake",
            version="1",
            device="cpu",
            dtype="float64",
            vocab_size=vocab_size,
            max_context=max_context,
            max_batch=max_batch,
            end_tokens=end_tokens,
            identity_rule=identity_rule,
            details={"order": order, "agreement": agreement},
        )

    @property
    def info(self) -> EngineInfo:
        """What is running."""
        return self._info

    def tokenize(self, text: str) -> tuple[int, ...]:
        """UTF-8 bytes modulo V."""
        return tuple(byte % self._info.vocab_size for byte in text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Token ids as numbers in angle brackets; not the inverse of ``tokenize``."""
        return "".join(f"<{token}>" for token in tokens)

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request.

        Raises:
            InputError: the prompt is empty, has an unknown id, does not fit, or the id is in use.
        """
        V = self._info.vocab_size
        if not request.prompt:
            raise InputError("is empty", field="prompt", value=request.request_id)
        unknown = [token for token in request.prompt if not 0 <= token < V]
        if unknown:
            raise InputError("is outside the vocabulary", field="prompt", value=unknown[0])
        if len(request.prompt) >= self._info.max_context:
            raise InputError(
                f"does not fit {self._info.max_context} tokens",
                field="prompt",
                value=len(request.prompt),
            )
        if request.request_id in self._active or any(
            waiting.request.request_id == request.request_id for waiting in self._queue
        ):
            raise InputError("is in use", field="request_id", value=request.request_id)
        rng = np.random.default_rng(request.seed)
        self._queue.append(_Sequence(request, rng, list(request.prompt)))

    def step(self) -> StepResult:
        """Admit what fits, then advance every active request by one round."""
        prefilled = 0
        while self._queue and len(self._active) < self._info.max_batch:
            sequence = self._queue.popleft()
            self._active[sequence.request.request_id] = sequence
            prefilled += len(sequence.text)
        cancelled = [Finished(request_id, "cancelled") for request_id in self._cancelled]
        self._cancelled.clear()
        windows = [self._advance(sequence) for sequence in self._active.values()]
        rounds = self._share_time(windows, prefilled) if windows else ()
        ended = [
            Finished(window.sequence.request.request_id, window.reason)
            for window in windows
            if window.reason is not None
        ]
        for done in ended:
            del self._active[done.request_id]
        return StepResult(
            tuple(window.emission for window in windows), rounds, (*cancelled, *ended)
        )

    def cancel(self, request_id: str) -> None:
        """Free the request's slot; it appears as cancelled in the next step's result."""
        waiting = [s for s in self._queue if s.request.request_id != request_id]
        if self._active.pop(request_id, None) is None and len(waiting) == len(self._queue):
            return
        self._queue = deque(waiting)
        self._cancelled.append(request_id)

    def score(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        sampling: SamplingSettings,
        *,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> Scored:
        """Score tokens from the table alone, knowing nothing of how they were made."""
        text = list(prompt)
        rows, deficits = [], []
        for index, token in enumerate(tokens):
            banned = stop if index < min_tokens else ()
            logits = self._logits(self._target, text, sampling, banned)
            rows.append(_distribution(logits, sampling))
            deficits.append(float(logits.max() - logits[token]))
            text.append(token)
        shape = (len(rows), self._info.vocab_size)
        return Scored(
            np.asarray(rows, dtype=np.float32).reshape(shape),
            np.asarray(deficits, dtype=np.float32),
        )

    def memory(self) -> MemoryLedger:
        """Invented but consistent bytes: a fixed model and one KiB per token held."""
        held = sum(len(sequence.text) for sequence in self._active.values())
        slots = self._info.max_batch * self._info.max_context
        return MemoryLedger(
            target_weights=self._target.nbytes,
            draft_weights=self._proposal.nbytes,
            target_kv=1024 * slots,
            draft_kv=512 * slots,
            candidates=8 * len(self._active),
            workspace=1024 * held,
        )

    def close(self) -> None:
        """Forget every request."""
        self._queue.clear()
        self._active.clear()

    def _advance(self, sequence: _Sequence) -> _Window:
        request = sequence.request
        room = self._info.max_context - len(sequence.text)
        left = min(request.max_tokens - sequence.produced, room)
        drafts, qs = self._draft(sequence, max(0, min(request.gamma, left - 1)))
        tokens: list[int] = []
        accepted = 0
        for k in range(len(drafts) + 1):
            q = qs[k] if k < len(qs) else None
            draft = drafts[k] if k < len(drafts) else None
            token, kept = self._decide(sequence, tokens, draft, q)
            tokens.append(token)
            accepted += kept
            ends = token in request.end_tokens
            if ends or not kept:
                break
        context = len(sequence.text)
        sequence.text.extend(tokens)
        sequence.produced += len(tokens)
        reason = None
        if tokens[-1] in request.end_tokens:
            reason = "stop"
        elif sequence.produced >= request.max_tokens:
            reason = "length"
        elif len(sequence.text) >= self._info.max_context:
            reason = "context"
        n = len(tokens)
        proposed = tuple(drafts[k] if k < len(drafts) else -1 for k in range(n))
        last = 2 if accepted == len(drafts) else 1
        kind = tuple(0 if k < accepted else last for k in range(n))
        emission = Emission(
            request.request_id,
            sequence.rounds,
            tuple(tokens),
            kind,
            proposed,
            self._evidence(qs, n) if request.evidence else None,
        )
        return _Window(sequence, len(drafts), accepted, emission, reason, context)

    def _draft(self, sequence: _Sequence, gamma: int) -> tuple[list[int], list[Floats]]:
        """Propose ``gamma`` tokens; with evidence one more q row, for the bonus position."""
        request = sequence.request
        text = list(sequence.text)
        drafts: list[int] = []
        rows: list[Floats] = []
        for k in range(gamma + 1):
            if k == gamma and (not gamma or not (request.evidence or self._fault)):
                break
            banned = request.end_tokens if sequence.produced + k < request.min_tokens else ()
            logits = self._logits(self._proposal, text, request.sampling, banned)
            rows.append(_distribution(logits, request.sampling))
            if k < gamma:
                drafts.append(_draw(rows[-1], sequence.rng))
                text.append(drafts[-1])
        return drafts, rows

    def _decide(
        self, sequence: _Sequence, before: list[int], draft: int | None, q: Floats | None
    ) -> tuple[int, bool]:
        """One position of rejection sampling (Leviathan et al. 2023, algorithm 1)."""
        request, rng = sequence.request, sequence.rng
        produced = sequence.produced + len(before)
        banned = request.end_tokens if produced < request.min_tokens else ()
        logits = self._logits(self._target, sequence.text + before, request.sampling, banned)
        p = _distribution(logits, request.sampling)
        if draft is None or q is None:
            source = q if self._fault == "bonus_from_q" and q is not None else p
            return _draw(source, rng), False
        if rng.random() * q[draft] < p[draft]:
            return draft, True
        if self._fault == "residual_not_subtracted":
            return _draw(p, rng), False
        if self._fault == "correction_from_q":
            return _draw(q, rng), False
        residual = np.maximum(p - q, 0.0)
        return _draw(residual / residual.sum(), rng), False

    def _logits(
        self,
        table: Floats,
        text: Sequence[int],
        sampling: SamplingSettings,
        banned: Sequence[int],
    ) -> Floats:
        V = self._info.vocab_size
        row = 0
        for token in text[-self._order :]:
            row = row * V + token
        logits: Floats = table[row].copy()
        counts = np.bincount(np.asarray(text, dtype=np.int64), minlength=V)
        for token, bias in sampling.logit_bias:
            logits[token] += bias
        logits[list(sampling.forbidden_tokens)] = -np.inf
        logits[list(banned)] = -np.inf
        seen = counts > 0
        scale = sampling.repetition_penalty
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / scale, logits[seen] * scale)
        logits -= sampling.presence_penalty * seen + sampling.frequency_penalty * counts
        return logits

    def _evidence(self, rows: list[Floats], n: int) -> NDArray[np.float32]:
        q = np.full((n, self._info.vocab_size), np.nan, dtype=np.float32)
        known = rows[:n]
        if known:
            q[: len(known)] = known
        return q

    def _share_time(self, windows: list[_Window], prefilled: int) -> tuple[Round, ...]:
        """Spend the step's time and share it equally among its requests."""
        costs = self._costs
        scale = 1.0
        if costs.jitter:
            scale = math.exp(costs.jitter * float(self._time_rng.standard_normal()))
        depth = max(window.drafted for window in windows)
        draft = scale * (costs.draft_round_s * (depth > 0) + costs.draft_token_s * depth)
        positions = sum(window.drafted + 1 for window in windows)
        verify = scale * (costs.verify_s + costs.verify_position_s * positions)
        prefill = scale * costs.prefill_token_s * prefilled
        if self._spend is not None:
            self._spend(draft + verify + prefill)
        size = len(windows)
        memory = self.memory().total
        rounds = []
        for window in windows:
            request = window.sequence.request
            rejected = window.emission.kind[-1] == 1
            rounds.append(
                Round(
                    request_id=request.request_id,
                    index=window.sequence.rounds,
                    gamma=request.gamma,
                    drafted=window.drafted,
                    accepted=window.accepted,
                    rejection_position=window.accepted if rejected else None,
                    committed=len(window.emission.tokens),
                    draft_s=draft / size,
                    verify_s=(verify + prefill) / size,
                    correction_s=0.0,
                    transfer_s=0.0,
                    memory_bytes=memory,
                    batch=size,
                    context=window.context,
                )
            )
            window.sequence.rounds += 1
        return tuple(rounds)


class FakeProvider:
    """Opens ``FakeEngine`` instances; keyword arguments of the engine are given at construction."""

    def __init__(self, name: str = "fake", **options: Any) -> None:  # noqa: ANN401 - passed through
        self.name = name
        self.options = options
        self.opened: list[FakeEngine] = []

    def version(self) -> str:
        """Version string recorded in artifacts."""
        return "1"

    def manifest(self, source: str, *, cache: Path) -> Mapping[str, Any]:
        """Invented, but well-formed digests: nothing is read."""
        return {
            "source": source,
            "revision": None,
            "files": {"model": "0" * 64},
            "tokenizer": "1" * 64,
            "vocab_size": int(self.options.get("vocab_size", 32)),
            "folder": str(cache),
        }

    def open(
        self, artifact: Mapping[str, Any], *, cache: Path, max_batch: int, device: str
    ) -> Engine:
        """Return a fresh engine; the artifact is not looked at."""
        del artifact, cache, device
        engine = FakeEngine(**{"max_batch": max_batch, **self.options})
        self.opened.append(engine)
        return engine


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    total: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return total


def _distribution(logits: Floats, sampling: SamplingSettings) -> Floats:
    """Temperature, top-k, top-p, min-p in that order; ties keep the lowest ids."""
    p = np.zeros_like(logits)
    if sampling.greedy:
        p[int(logits.argmax())] = 1.0
        return p
    p = _softmax(logits / sampling.temperature)
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0.0
        p = p / p.sum()
    if sampling.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0.0
        p = p / p.sum()
    if sampling.min_p:
        p[p < sampling.min_p * p.max()] = 0.0
        p = p / p.sum()
    return p


def _draw(p: Floats, rng: np.random.Generator) -> int:
    """Sample one id; ids of probability zero never come out, rounding included."""
    cumulative = np.cumsum(p)
    point = rng.random() * cumulative[-1]
    last = int(np.flatnonzero(p)[-1])
    return min(int(np.searchsorted(cumulative, point, side="right")), last)
