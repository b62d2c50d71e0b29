"""The reference engine: step = schedule → draft → verify → commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gatekeeper.protocols import EngineInfo, Finished, StepResult
from gatekeeper_adapters.engines.reference.account import Account
from gatekeeper_adapters.engines.reference.admission import Admission
from gatekeeper_adapters.engines.reference.commit import commit
from gatekeeper_adapters.engines.reference.drafting import draft
from gatekeeper_adapters.engines.reference.judge import judge
from gatekeeper_adapters.engines.reference.keeping import keep
from gatekeeper_adapters.engines.reference.packing import pack
from gatekeeper_adapters.engines.reference.prefix_cache import PrefixCache
from gatekeeper_adapters.engines.reference.scheduler import Scheduler, Work, segments
from gatekeeper_adapters.engines.reference.timing import Stopwatch, share
from gatekeeper_adapters.engines.reference.verify import EXACT, Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from torch import Tensor

    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.core.memory import MemoryLedger
    from gatekeeper.protocols import Scored
    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.devices import Transfers
    from gatekeeper_adapters.engines.reference.judge import Judged
    from gatekeeper_adapters.engines.reference.limits import Limits
    from gatekeeper_adapters.engines.reference.packing import PackedBatch
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scheduler import Sequence
    from gatekeeper_adapters.engines.reference.scoring import Scorer
    from gatekeeper_adapters.engines.reference.typical import Typical

__all__ = ["ReferenceEngine"]


class ReferenceEngine:
    """Implements ``gatekeeper.protocols.Engine``.

    ``verifier`` is EXACT, or TYPICAL for artifacts declared approximate; tests pass faulty ones. No
    request reaches it. ``prefixes.counts`` tells what shared prefixes saved, where limits allow any.
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
        verifier: Verifier | Typical = EXACT,
        transfers: Transfers | None = None,
    ) -> None:
        self.info = info
        self._decoder = decoder
        self._proposer = proposer
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._limits = limits
        self._verifier = verifier
        self._transfers = transfers
        self._scheduler = Scheduler(limits, proposer.most_candidates)
        self._admission = Admission(limits, decoder.vocab_size, tokenizer, self.detokenize)
        self.prefixes = PrefixCache.within(limits.prefix_cache_bytes, decoder.cache, proposer)
        self._account = Account(decoder, proposer, self.prefixes)
        self._cancelled: list[Finished] = []

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
            InputError: something of the request does not fit this engine.
        """
        known = request.request_id in self._scheduler
        self._admission.check(request, self._proposer, known=known)
        self._scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """Free the request's slot now; unknown or finished ids are ignored."""
        if request_id in self._scheduler:
            self._leave(request_id)
            self._cancelled.append(Finished(request_id, "cancelled"))

    def step(self) -> StepResult:
        """One round for every decoding sequence, and the next piece of waiting prompts."""
        with torch.inference_mode():
            finished, self._cancelled = self._cancelled, []
            works = self._schedule()
            if not works:
                return StepResult((), (), tuple(finished))
            watch = Stopwatch(self._decoder.device, self._transfers)
            trees = draft(self._proposer, works)
            watch.mark()
            batch = pack(segments(works, trees), self._decoder.cache)
            watch.mark()
            logits, states = self._forward(works, batch)
            watch.mark()
            judged = judge(works, trees, logits, self._verifier)
            watch.mark()
            share(works, watch)
            self._admission.pacing.learn(works, watch)
            self._account.note(trees, logits)
            keep(works, trees, judged, self._decoder.cache, states=states, learn=self._learn)
            return self._commit(judged, len(works), finished)

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
        """Bytes held; see ``account.py``."""
        return self._account.ledger()

    def close(self) -> None:
        """Drop weights and caches."""
        for request_id in list(self._scheduler.active):
            self._leave(request_id)
        cuda = self._decoder.device.startswith("cuda")
        del self._decoder, self._proposer, self._scorer
        del self._scheduler, self.prefixes, self._account
        if cuda:
            torch.cuda.empty_cache()

    def _schedule(self) -> list[Work]:
        """Let waiting requests into free slots; the work of this step."""
        for sequence in self._scheduler.admit():
            self._admission.prepare(sequence)
            if sequence.request.gamma:
                self._proposer.admit(sequence)
            states = self.prefixes.begin(sequence) if self.prefixes else None
            if states is not None:
                self._learn(sequence, 0, states)
        return self._scheduler.plan()

    def _forward(self, works: Tokens[Work], batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """The target's logits of every row to judge; its states too where they are read."""
        if any(work.sequence.request.gamma for work in works) and self._proposer.reads_states:
            return self._decoder.forward_with_states(batch)
        return self._decoder.forward(batch), None

    def _learn(self, sequence: Sequence, start: int, states: Tensor) -> None:
        self._proposer.learn(sequence, start, states)
        if self.prefixes:
            self.prefixes.read(sequence, states)

    def _commit(self, judged: Tokens[Judged], batch: int, finished: list[Finished]) -> StepResult:
        """Append what was accepted, as far as the first stop; let go of what ended."""
        memory = self.memory().total
        emitted, rounds = [], []
        for entry in judged:
            sequence = entry.work.sequence
            emission, record = commit(entry, memory=memory, batch=batch)
            emitted.append(emission)
            rounds.append(record)
            if self.prefixes and record.index == 0:
                self.prefixes.finish(sequence)
            if sequence.request.gamma:
                kept = min(record.accepted, record.committed)
                self._proposer.settle(sequence, record.context, kept)
            reason = sequence.ended(self._limits.max_context)
            if reason is not None:
                self._leave(sequence.id)
                finished.append(Finished(sequence.id, reason, sequence.stopped))
        return StepResult(tuple(emitted), tuple(rounds), tuple(finished))

    def _leave(self, request_id: str) -> None:
        sequence = self._scheduler.retire(request_id)
        if sequence is not None and sequence.request.gamma:
            self._proposer.release(sequence)
        if self.prefixes:
            self.prefixes.forget(request_id)
