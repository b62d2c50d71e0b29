"""The reference engine: step = schedule → draft → verify → commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gatekeeper.core.memory import MemoryLedger
from gatekeeper.protocols import EngineInfo, Finished, StepResult
from gatekeeper_adapters.engines.reference.admission import check_request
from gatekeeper_adapters.engines.reference.commit import commit
from gatekeeper_adapters.engines.reference.judge import judge
from gatekeeper_adapters.engines.reference.packing import Segment, pack
from gatekeeper_adapters.engines.reference.scheduler import Scheduler, Work
from gatekeeper_adapters.engines.reference.timing import Stopwatch
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree
from gatekeeper_adapters.engines.reference.verify import EXACT, Verifier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Tokens

    from torch import Tensor

    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.protocols import Scored
    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scoring import Scorer

__all__ = ["Limits", "ReferenceEngine"]


@dataclass(frozen=True)
class Limits:
    """Sizes fixed at start: slots, positions per slot, prompt tokens cached in one step."""

    max_batch: int
    max_context: int
    prefill_chunk: int = 128


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
        self.info = info
        self._decoder = decoder
        self._proposer = proposer
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._limits = limits
        self._verifier = verifier
        self._scheduler = Scheduler(
            slots=limits.max_batch,
            max_context=limits.max_context,
            prefill_chunk=limits.prefill_chunk,
        )
        self._cancelled: list[Finished] = []
        self._candidates = self._workspace = 0

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
        check_request(
            request,
            max_context=self._limits.max_context,
            vocab_size=self._decoder.vocab_size,
            known=request.request_id in self._scheduler,
        )
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
        decoder, (draft_weights, draft_kv) = self._decoder, self._proposer.held()
        known = decoder.weight_bytes + decoder.cache.bytes + draft_weights + draft_kv
        workspace = self._workspace
        if decoder.device.startswith("cuda"):
            peak = torch.cuda.max_memory_allocated(decoder.device)
            workspace = max(0, peak - known - self._candidates)
        return MemoryLedger(
            target_weights=decoder.weight_bytes,
            target_kv=decoder.cache.bytes,
            draft_weights=draft_weights,
            draft_kv=draft_kv,
            candidates=self._candidates,
            workspace=workspace,
        )

    def close(self) -> None:
        """Drop weights and caches."""
        for request_id in list(self._scheduler.active):
            self._leave(request_id)
        cuda = self._decoder.device.startswith("cuda")
        del self._decoder, self._proposer, self._scorer
        if cuda:
            torch.cuda.empty_cache()

    def _step(self) -> StepResult:
        finished, self._cancelled = self._cancelled, []
        for sequence in self._scheduler.admit():
            if sequence.request.gamma:
                self._proposer.admit(sequence)
        works = self._scheduler.plan()
        if not works:
            return StepResult((), (), tuple(finished))
        watch = Stopwatch(self._decoder.device)
        trees = self._draft(works)
        watch.mark()
        segments = [_segment(work, tree) for work, tree in zip(works, trees, strict=True)]
        batch = pack(segments, self._decoder.cache)
        watch.mark()
        states: Tensor | None = None
        if any(work.sequence.request.gamma for work in works) and self._proposer.reads_states:
            logits, states = self._decoder.forward_with_states(batch)
        else:
            logits = self._decoder.forward(batch)
        watch.mark()
        judged = judge(works, trees, logits, self._verifier)
        watch.mark()
        self._share(works, watch)
        self._workspace = logits.numel() * logits.element_size()
        self._candidates = sum(tree.bytes for tree in trees)
        paths = {entry.work.sequence.slot: entry.verdict.path for entry in judged}
        self._keep(works, trees, paths, states)
        memory = self.memory().total
        emitted, rounds = [], []
        for entry in judged:
            sequence = entry.work.sequence
            emission, record = commit(entry, memory=memory, batch=len(works))
            emitted.append(emission)
            rounds.append(record)
            if sequence.request.gamma:
                kept = min(record.accepted, record.committed)
                self._proposer.settle(sequence, record.context, kept)
            reason = sequence.ended(self._limits.max_context)
            if reason is not None:
                self._leave(sequence.id)
                finished.append(Finished(sequence.id, reason))
        return StepResult(tuple(emitted), tuple(rounds), tuple(finished))

    def _draft(self, works: Tokens[Work]) -> list[CandidateTree]:
        speculative = [work for work in works if work.sequence.request.gamma]
        chunks = [(work.sequence, work.until) for work in speculative if work.window is None]
        if chunks:
            self._proposer.prefill(chunks)
        # an empty window asks for the bonus position's q alone, which only evidence needs
        asked = [
            (work.sequence, work.window)
            for work in speculative
            if work.window or (work.window == 0 and work.sequence.request.evidence)
        ]
        found = self._proposer.propose(asked) if asked else []
        by_slot = {seq.slot: tree for (seq, _), tree in zip(asked, found, strict=True)}
        return [by_slot.get(work.sequence.slot, NOTHING) for work in works]

    def _keep(
        self,
        works: Tokens[Work],
        trees: Tokens[CandidateTree],
        paths: Mapping[int, tuple[int, ...]],
        states: Tensor | None,
    ) -> None:
        """Keep the text and the accepted branch in the target's cache; tell the proposer of both."""
        first = 0
        for work, tree in zip(works, trees, strict=True):
            sequence, path = work.sequence, paths.get(work.sequence.slot, ())
            top = first + work.until - sequence.cached
            self._decoder.cache.keep_path(sequence.slot, work.until, path)
            if states is not None and sequence.request.gamma:
                rows = [*range(first, top), *(top + node for node in path)]
                self._proposer.learn(sequence, sequence.cached, states[rows])
            sequence.cached = work.until
            first = top + len(tree.tokens)

    def _share(self, works: Tokens[Work], watch: Stopwatch) -> None:
        """Each sequence of a step bears an equal part of its time."""
        draft_s, transfer_s, verify_s, correction_s = watch.laps()
        for work in works:
            spent = work.sequence.spent
            for place, lap in enumerate((draft_s, verify_s, correction_s, transfer_s)):
                spent[place] += lap / len(works)

    def _leave(self, request_id: str) -> None:
        sequence = self._scheduler.retire(request_id)
        if sequence is not None and sequence.request.gamma:
            self._proposer.release(sequence)


def _segment(work: Work, tree: CandidateTree) -> Segment:
    sequence = work.sequence
    tokens = [*sequence.tokens[sequence.cached : work.until], *tree.tokens]
    wanted = 0 if work.window is None else len(tree.tokens) + 1
    parents = () if tree.is_chain else tree.parents
    return Segment(sequence.slot, sequence.cached, tokens, wanted, parents)
