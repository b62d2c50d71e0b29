"""Refuse requests that do not fit an engine, and set up those that got a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.errors import InputError
from gatekeeper_adapters.engines.reference.constraints import Grammars
from gatekeeper_adapters.engines.reference.pacing import Pacing
from gatekeeper_adapters.engines.reference.stopping import StopTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper_adapters.engines.reference.limits import Limits
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scheduler import Sequence as Seq

__all__ = ["Admission", "check_request"]


class Admission:
    """What an engine keeps to refuse requests, and to give newcomers what they need beside tokens."""

    def __init__(
        self,
        limits: Limits,
        vocab_size: int,
        tokenizer: Any,  # noqa: ANN401 - tokenizers.Tokenizer, untyped
        detokenize: Callable[[Sequence[int]], str],
    ) -> None:
        self._limits = limits
        self._vocab = vocab_size
        self._detokenize = detokenize
        self._grammars = Grammars(tokenizer, vocab_size)
        self.pacing = Pacing()

    def check(self, request: DecodeRequest, proposer: Proposer, *, known: bool) -> None:
        """Refuse a request that does not fit; ``known`` says the id is in use.

        Raises:
            InputError: the first thing that does not fit.
        """
        check_request(
            request,
            max_context=self._limits.max_context,
            vocab_size=self._vocab,
            known=known,
            proposers=proposer.names if request.proposer else (),
        )
        self._grammars.make(request)

    def prepare(self, sequence: Seq) -> None:
        """Set up what a newcomer's request asks for: stop texts, a constraint, adaptive windows."""
        request = sequence.request
        if request.stop:
            sequence.stop_texts = StopTexts(request.stop, self._detokenize)
        sequence.grammar = self._grammars.make(request)
        sequence.windows = self.pacing.begin(request)


def check_request(
    request: DecodeRequest,
    *,
    max_context: int,
    vocab_size: int,
    known: bool,
    proposers: Sequence[str] = (),
) -> None:
    """Check prompt, ids and limits; ``known`` says the id is in use.

    ``proposers`` are the names a request may give; where it gives none they need not be told.

    Raises:
        InputError: the first thing that does not fit.
    """
    sampling = request.sampling
    ids = (*request.prompt, *request.end_tokens, *sampling.forbidden_tokens)
    strange = [t for t in (*ids, *(t for t, _ in sampling.logit_bias)) if not 0 <= t < vocab_size]
    size = len(request.prompt)
    checks = (
        ("prompt", size > 0, 0, "give at least one token"),
        ("prompt", size < max_context, size, f"use under {max_context} tokens"),
        ("token", not strange, strange[:1], f"use ids below {vocab_size}"),
        ("max_tokens", request.max_tokens > 0, request.max_tokens, "ask for at least one"),
        ("gamma", request.gamma >= 0, request.gamma, "use 0 (no speculation) or more"),
        ("request_id", not known, request.request_id, "use a new id"),
        ("stop", all(request.stop), list(request.stop), "use stop texts of at least one character"),
        (
            "logprobs",
            request.logprobs is None or 0 <= request.logprobs <= vocab_size,
            request.logprobs,
            f"use 0 (of the emitted token alone) to {vocab_size}",
        ),
        (
            "proposer",
            request.proposer is None or request.proposer in proposers,
            request.proposer,
            f"use one of {', '.join(proposers)}, or none for the first",
        ),
    )
    for name, good, value, remedy in checks:
        if not good:
            raise InputError("does not fit", field=name, value=value, remedy=remedy)
