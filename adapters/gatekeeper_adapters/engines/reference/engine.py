"""The reference engine: step = schedule → draft → verify → commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gatekeeper.core.acceptance import Round
from gatekeeper.core.memory import MemoryLedger
from gatekeeper.errors import InputError
from gatekeeper.protocols import Emission, EngineInfo, Finished, StepResult
from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.proposers.base import Proposal
from gatekeeper_adapters.engines.reference.sampling import adjust, distribution, is_plain, one_hot
from gatekeeper_adapters.engines.reference.scheduler import Scheduler, Work
from gatekeeper_adapters.engines.reference.timing import Stopwatch
from gatekeeper_adapters.engines.reference.uniforms import uniforms
from gatekeeper_adapters.engines.reference.verify import (
    ACCEPTED,
    EXACT,
    Verdict,
    Verifier,
    verify,
    verify_greedy,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Tokens

    from numpy.typing import NDArray
    from torch import Tensor

    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.protocols import Scored
    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scoring import Scorer

__all__ = ["Limits", "ReferenceEngine"]

PREFILL_CHUNK = 128


@dataclass(frozen=True)
class Limits:
    """Sizes fixed at start: slots, positions per slot, prompt tokens cached in one step."""

    max_batch: int
    max_context: int
    prefill_chunk: int = PREFILL_CHUNK


@dataclass(frozen=True)
class _Judged:
    """A verdict with what evidence needs: the proposal and its dense rows, if any."""

    work: Work
    proposal: Proposal
    verdict: Verdict


class ReferenceEngine:
    """Implements ``gatekeeper.protocols.Engine``.

    ``verifier`` is EXACT; tests pass faulty ones. Nothing in an artifact or a request reaches it.
    """

    def __init__(
        self,
        decoder: Decoder,
        proposer: Proposer,
        scorer: Scorer,
        tokenizer: Any,  # noqa: ANN401 - tokenizers.Tokenizer, untyped
        info: EngineInfo,
        *,
        limits: Limits,
        verifier: Verifier = EXACT,
    ) -> None:
        self._decoder = decoder
        self._proposer = proposer
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._info = info
        self._limits = limits
        self._verifier = verifier
        self._device = decoder.device
        self._scheduler = Scheduler(
            slots=limits.max_batch,
            max_context=limits.max_context,
            prefill_chunk=limits.prefill_chunk,
        )
        self._cancelled: list[Finished] = []
        self._candidates = 0
        self._workspace = 0

    @property
    def info(self) -> EngineInfo:
        """What is running."""
        return self._info

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, no special tokens added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenize(self, tokens: Tokens[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request.

        Raises:
            InputError: prompt, limits or token ids do not fit this engine.
        """
        self._check(request)
        self._scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """Free the request's slot now; unknown or finished ids are ignored."""
        if request_id in self._scheduler:
            self._leave(request_id)
            self._cancelled.append(Finished(request_id, "cancelled"))

    def step(self) -> StepResult:
        """One round for every decoding sequence, and the next piece of waiting prompts."""
        with torch.inference_mode():
            return self._step()

    def score(
        self,
        prompt: Tokens[int],
        tokens: Tokens[int],
        sampling: SamplingSettings,
        *,
        stop: Tokens[int] = (),
        min_tokens: int = 0,
    ) -> Scored:
        """Score by the independent forward of ``scoring.py``."""
        with torch.inference_mode():
            return self._scorer.score(prompt, tokens, sampling, stop=stop, min_tokens=min_tokens)

    def memory(self) -> MemoryLedger:
        """Bytes held; on CUDA the workspace is what the allocator peaked at beyond the rest."""
        draft_weights, draft_kv = self._proposer.held()
        known = self._decoder.weight_bytes + self._decoder.cache.bytes + draft_weights + draft_kv
        workspace = self._workspace
        if self._device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(self._device)
            workspace = max(0, peak - known - self._candidates)
        return MemoryLedger(
            target_weights=self._decoder.weight_bytes,
            target_kv=self._decoder.cache.bytes,
            draft_weights=draft_weights,
            draft_kv=draft_kv,
            candidates=self._candidates,
            workspace=workspace,
        )

    def close(self) -> None:
        """Drop weights and caches."""
        for request_id in list(self._scheduler.active):
            self._leave(request_id)
        del self._decoder, self._proposer, self._scorer
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _step(self) -> StepResult:
        finished, self._cancelled = self._cancelled, []
        for sequence in self._scheduler.admit():
            if sequence.request.gamma:
                self._proposer.admit(sequence)
        works = self._scheduler.plan()
        if not works:
            return StepResult((), (), tuple(finished))
        watch = Stopwatch(self._device)
        proposals = self._draft(works)
        watch.mark()
        batch = pack(
            [_segment(work, found) for work, found in zip(works, proposals, strict=True)],
            self._decoder.cache,
        )
        watch.mark()
        logits = self._decoder.forward(batch)
        watch.mark()
        judged = self._judge(works, proposals, logits)
        watch.mark()
        draft_s, transfer_s, verify_s, correction_s = watch.laps()
        share = [lap / len(works) for lap in (draft_s, verify_s, correction_s, transfer_s)]
        for work in works:
            work.sequence.cached = work.until
            work.sequence.spent = [a + b for a, b in zip(work.sequence.spent, share, strict=True)]
        self._workspace = logits.numel() * logits.element_size()
        self._candidates = sum(_proposal_bytes(found) for found in proposals)
        memory = self.memory().total
        emitted, rounds = [], []
        for entry in judged:
            emission, record = self._commit(entry, memory, len(works))
            emitted.append(emission)
            rounds.append(record)
            reason = entry.work.sequence.ended(self._limits.max_context)
            if reason is not None:
                self._leave(entry.work.sequence.id)
                finished.append(Finished(entry.work.sequence.id, reason))
        return StepResult(tuple(emitted), tuple(rounds), tuple(finished))

    def _draft(self, works: Tokens[Work]) -> list[Proposal]:
        speculative = [work for work in works if work.sequence.request.gamma]
        if speculative:
            chunks = [(w.sequence, w.until) for w in speculative if w.window is None]
            if chunks:
                self._proposer.prefill(chunks)
        # an empty window asks for the bonus position's q alone, which only evidence needs
        asked = [w for w in speculative if w.window or (w.window == 0 and _evident(w))]
        windows = [(w.sequence, w.window or 0) for w in asked]
        found = self._proposer.propose(windows) if windows else []
        by_slot = {w.sequence.slot: each for w, each in zip(asked, found, strict=True)}
        return [by_slot.get(w.sequence.slot, Proposal()) for w in works]

    def _judge(
        self, works: Tokens[Work], proposals: Tokens[Proposal], logits: Tensor
    ) -> list[_Judged]:
        """Verify every window; plain greedy rows share one arg max over the whole batch."""
        all_best: list[int] | None = None
        judged = []
        row = 0
        for work, proposal in zip(works, proposals, strict=True):
            if work.window is None:
                continue
            request = work.sequence.request
            count = len(proposal.tokens) + 1
            early = max(0, min(count, request.min_tokens - work.sequence.produced))
            simple = request.sampling.greedy and self._verifier is EXACT
            if simple and is_plain(request.sampling) and not (early and request.end_tokens):
                if all_best is None:
                    all_best = logits.argmax(dim=-1).tolist()
                verdict = verify_greedy(all_best[row : row + count], proposal.tokens)
            else:
                adjusted = adjust(
                    logits[row : row + count],
                    request.sampling,
                    work.sequence.tokens,
                    proposal.tokens,
                    banned=request.end_tokens,
                    banned_rows=early,
                )
                if simple:
                    verdict = verify_greedy(adjusted.argmax(dim=-1).tolist(), proposal.tokens)
                else:
                    verdict = verify(
                        distribution(adjusted, request.sampling),
                        proposal.tokens,
                        _dense(proposal, logits),
                        uniforms(request.seed, work.sequence.produced, count),
                        self._verifier,
                    )
            judged.append(_Judged(work, proposal, verdict))
            row += count
        return judged

    def _commit(self, entry: _Judged, memory: int, batch: int) -> tuple[Emission, Round]:
        """Append the verdict's tokens up to an end token; lengths roll back by not advancing."""
        sequence, drafts, verdict = entry.work.sequence, entry.proposal.tokens, entry.verdict
        request = sequence.request
        before = len(sequence.tokens)
        tokens = [*drafts[: verdict.accepted], verdict.token]
        for place, token in enumerate(tokens):
            if token in request.end_tokens:
                tokens = tokens[: place + 1]
                break
        count = len(tokens)
        full = count == verdict.accepted + 1
        sequence.tokens.extend(tokens)
        sequence.cached = before + count - 1
        if request.gamma:
            self._proposer.settle(sequence, before, min(verdict.accepted, count))
        emission = Emission(
            request_id=sequence.id,
            round=sequence.rounds,
            tokens=tuple(tokens),
            kind=(ACCEPTED,) * (count - full) + ((verdict.kind,) if full else ()),
            draft=(*drafts[:count], -1)[:count],
            q=_evidence(entry.proposal, count, self._decoder.vocab_size)
            if request.evidence
            else None,
        )
        rejected = None if verdict.accepted == len(drafts) else verdict.accepted
        draft_s, verify_s, correction_s, transfer_s = sequence.spent
        record = Round(
            request_id=sequence.id,
            index=sequence.rounds,
            gamma=request.gamma,
            drafted=len(drafts),
            accepted=verdict.accepted,
            rejection_position=rejected,
            committed=count,
            draft_s=draft_s,
            verify_s=verify_s,
            correction_s=correction_s,
            transfer_s=transfer_s,
            memory_bytes=memory,
            batch=batch,
            context=before,
        )
        sequence.rounds += 1
        sequence.spent = [0.0] * 4
        return emission, record

    def _leave(self, request_id: str) -> None:
        sequence = self._scheduler.retire(request_id)
        if sequence is not None and sequence.request.gamma:
            self._proposer.release(sequence)

    def _check(self, request: DecodeRequest) -> None:
        limit, vocab = self._limits.max_context, self._decoder.vocab_size
        sampling = request.sampling
        ids = (*request.prompt, *request.end_tokens, *sampling.forbidden_tokens)
        strange = [t for t in (*ids, *(t for t, _ in sampling.logit_bias)) if not 0 <= t < vocab]
        checks = (
            ("prompt", bool(request.prompt), 0, "give at least one token"),
            (
                "prompt",
                len(request.prompt) < limit,
                len(request.prompt),
                f"use under {limit} tokens",
            ),
            ("token", not strange, strange[:1], f"use ids below {vocab}"),
            ("max_tokens", request.max_tokens > 0, request.max_tokens, "ask for at least one"),
            ("gamma", request.gamma >= 0, request.gamma, "use 0 (no speculation) or more"),
            (
                "request_id",
                request.request_id not in self._scheduler,
                request.request_id,
                "use a new id",
            ),
        )
        for name, good, value, remedy in checks:
            if not good:
                raise InputError("does not fit", field=name, value=value, remedy=remedy)


def _evident(work: Work) -> bool:
    return work.sequence.request.evidence


def _segment(work: Work, proposal: Proposal) -> Segment:
    sequence = work.sequence
    tokens = [*sequence.tokens[sequence.cached : work.until], *proposal.tokens]
    wanted = 0 if work.window is None else len(proposal.tokens) + 1
    return Segment(sequence.slot, sequence.cached, tokens, wanted)


def _dense(proposal: Proposal, logits: Tensor) -> Tensor:
    """The proposal's rows [g, V]; deterministic candidates become point masses."""
    if proposal.q is not None:
        return proposal.q
    tokens = torch.tensor(proposal.tokens, dtype=torch.int64, device=logits.device)
    return one_hot(tokens, logits.shape[-1])


def _evidence(proposal: Proposal, count: int, vocab: int) -> NDArray[np.float32]:
    """The proposal's distribution at each emitted position; NaN where there was none."""
    out = np.full((count, vocab), np.nan, dtype=np.float32)
    if proposal.q is not None:
        rows = proposal.q[:count].cpu().numpy()
        out[: len(rows)] = rows
        return out
    known: Iterable[int | None] = (*proposal.tokens, proposal.following)
    for row, token in zip(out, known, strict=False):
        if token is not None:
            row[:] = 0.0
            row[token] = 1.0
    return out


def _proposal_bytes(proposal: Proposal) -> int:
    rows = 0 if proposal.q is None else proposal.q.numel() * proposal.q.element_size()
    return 8 * len(proposal.tokens) + rows
