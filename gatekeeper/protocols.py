"""The narrow seams to the outside: engines, trace formats, executors, gates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gatekeeper.core.acceptance import Round
    from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
    from gatekeeper.core.memory import MemoryLedger

__all__ = [
    "Connection",
    "Delta",
    "DraftCounters",
    "DraftMaker",
    "Emission",
    "Emitted",
    "Ending",
    "Engine",
    "EngineInfo",
    "EngineProvider",
    "Executor",
    "Finished",
    "PairInfo",
    "Scored",
    "ScoredText",
    "Server",
    "ServerInfo",
    "ServerPair",
    "ServerRequest",
    "StepResult",
    "TokenLogprob",
]


@dataclass(frozen=True)
class EngineInfo:
    """What is really running, read back from the engine: never what was asked for.

    ``identity_rule`` is ``bitwise`` where the engine proved at start that its logits do not depend
    on the batch, else ``deficit``.
    """

    name: str
    version: str
    device: str
    dtype: str
    vocab_size: int
    max_context: int
    max_batch: int
    end_tokens: tuple[int, ...]
    identity_rule: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenLogprob:
    """The target's log-probability (nats) of an emitted token and of the likeliest there.

    Of the raw logits: before temperature, filters, penalties and constraints.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Emission:
    """Tokens that one round appended to one request, in order.

    ``kind[i]`` is 0 accepted, 1 correction, 2 bonus (ordinary decoding emits bonus tokens of
    empty windows); ``k[i]`` the in-round index; ``draft[i]`` the token proposed there or -1;
    ``q`` float32 [n, V] the proposal's processed distribution, NaN rows where there is none, or
    None unless the request asked for evidence; ``logprobs`` one each, or None unless asked for.
    """

    request_id: str
    round: int
    tokens: tuple[int, ...]
    kind: tuple[int, ...]
    draft: tuple[int, ...]
    q: NDArray[np.float32] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Finished:
    """A request that ended: ``reason`` is ``stop``, ``length``, ``context`` or ``cancelled``.

    Or ``constraint``: its constraint grew too complex to follow, and the answer is not whole.
    ``stop`` is the stop text that ended it, None where an end token or a limit did.
    """

    request_id: str
    reason: str
    stop: str | None = None


@dataclass(frozen=True)
class StepResult:
    """All that one engine step did."""

    emitted: tuple[Emission, ...]
    rounds: tuple[Round, ...]
    finished: tuple[Finished, ...]


@dataclass(frozen=True)
class Scored:
    """The target's opinion of given tokens, from an ordinary forward with a fresh cache.

    ``p`` float32 [n, V]: processed distribution at each position. ``deficit`` float32 [n]: max
    processed logit minus the logit of the emitted token (0 where it is the arg max).
    """

    p: NDArray[np.float32]
    deficit: NDArray[np.float32]


@runtime_checkable
class Engine(Protocol):
    """One loaded target with one proposer, decoding many requests at a time."""

    @property
    def info(self) -> EngineInfo:
        """What is running."""
        ...

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, no special tokens added."""
        ...

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids."""
        ...

    def submit(self, request: DecodeRequest) -> None:
        """Queue a request; it is admitted at a later step when a slot is free.

        Raises:
            InputError: the prompt is empty, has an id outside the vocabulary, or does not fit.
        """
        ...

    def step(self) -> StepResult:
        """Advance every active request by one round (or one prefill); idle engines return empty."""
        ...

    def cancel(self, request_id: str) -> None:
        """Free the request's slot now; it appears as cancelled in the next step's result."""
        ...

    def score(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        sampling: SamplingSettings,
        *,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> Scored:
        """Score ``tokens`` after ``prompt`` by an independent ordinary forward of the target.

        ``stop`` and ``min_tokens`` repeat the request's ``end_tokens`` and ``min_tokens`` (end
        tokens are forbidden before the minimum).
        """
        ...

    def memory(self) -> MemoryLedger:
        """Bytes held now, by purpose."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


class EngineProvider(Protocol):
    """An entry point of group ``gatekeeper.engines``; cheap to import, heavy only in ``open``."""

    name: str

    def version(self) -> str:
        """Version string recorded in artifacts.

        Raises:
            MissingExtra: the heavy dependency is absent; the remedy is the install line.
        """
        ...

    def manifest(self, source: str, *, cache: Path) -> Mapping[str, Any]:
        """Fetch or find a model, convert it once, return its artifact section.

        The section holds ``source``, ``revision``, ``files`` (name to sha256), ``tokenizer``
        (sha256), ``vocab_size``; ``folder`` (local path) is for the caller and not stored.
        """
        ...

    def open(
        self, artifact: Mapping[str, Any], *, cache: Path, max_batch: int, device: str
    ) -> Engine | ServerPair:
        """Load target and proposer of an artifact after checking every digest.

        Where the artifact is a pair of servers that already run, reach both and return them.
        """
        ...


@dataclass(frozen=True)
class ServerInfo:
    """What a server that already runs says of itself: recorded, and never verified.

    ``api`` is ``chat`` or ``completions``; ``readings`` are its answers by name (model list,
    fingerprint, version). The flags tell what it offers: log-probabilities with the text, a
    count of tokens in a text, counters of drafts. ``token_ids`` is the path that takes a prompt as
    token ids and answers in token ids, None where the server has none.
    """

    url: str
    model: str
    api: str
    readings: Mapping[str, str]
    logprobs: bool
    retokenises: bool
    counters: bool
    token_ids: str | None = None


@dataclass(frozen=True)
class ServerRequest:
    """One text to continue. ``text`` is ChatML; ``top`` asks for so many log-probabilities."""

    request_id: str
    text: str
    max_tokens: int
    sampling: SamplingSettings
    seed: int = 0
    top: int = 0


@dataclass(frozen=True)
class ScoredText:
    """One emitted token as text, its log-probability, and the likeliest tokens there (nats)."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Delta:
    """One streamed piece of an answer: text of any kind, tool calls and reasoning included."""

    text: str
    tokens: tuple[ScoredText, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How an answer ended.

    ``reason`` is the server's own ``stop`` or ``length``, else what went wrong (``dropped``,
    ``timeout``, ``http 503``). Counts come from the usage record, drafts from the server's
    timings; each None where it was not given.
    """

    reason: str
    prompt_tokens: int | None = None
    tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the server itself ended the answer."""
        return self.reason in {"stop", "length"}


@dataclass(frozen=True)
class Emitted:
    """The token ids of one answer, an end token that ended it included, and how it ended.

    ``logprobs`` are the server's own of these tokens (nats, of the raw logits), None where they
    were not asked for or are not one for each token.
    """

    tokens: tuple[int, ...]
    ending: Ending
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True)
class DraftCounters:
    """A server's running totals: ``rounds`` with a draft, tokens drafted, tokens accepted."""

    rounds: int
    drafted: int
    accepted: int


class Connection(Protocol):
    """An open connection to one server, used from one event loop."""

    def stream(self, request: ServerRequest) -> AsyncGenerator[Delta | Ending, None]:
        """Yield the pieces as they arrive, then one ``Ending``; failures end in one too."""
        ...

    async def emit(self, request: DecodeRequest) -> Emitted:
        """Answer a prompt of token ids in token ids; failures end as ``stream`` has them.

        ``gamma`` is not sent: a server has its own window.

        Raises:
            InputError: the server tells no token ids.
        """
        ...

    async def counters(self) -> DraftCounters | None:
        """Totals of drafts so far; None where the server has none, or does not answer now."""
        ...

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of a text by the server's own tokenizer; None where it does not tell."""
        ...


class Server(Protocol):
    """One server that already runs."""

    @property
    def info(self) -> ServerInfo:
        """What it says of itself."""
        ...

    def connect(self, at_most: int) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for at most so many requests at a time."""
        ...


@dataclass(frozen=True)
class PairInfo:
    """What is recorded of a pair of servers beside a run; their own words are in ``details``."""

    name: str
    version: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerPair:
    """Two servers that already run: one decodes alone, the other speculates.

    An engine's provider returns it from ``open`` in place of an engine. Nothing is stepped or
    scored: all that can be known is what a client sees.
    """

    baseline: Server
    candidate: Server
    info: PairInfo

    def close(self) -> None:
        """Nothing is held: connections belong to each run."""


class DraftMaker(Protocol):
    """What an engine's provider offers beside opening: a draft cut from a target's own layers."""

    def cut(
        self, source: str, *, layers: Sequence[int], vocabulary: int | None, cache: Path
    ) -> str:
        """Write a draft model with these layers and the head's first ``vocabulary`` rows.

        Returns its source; where the same cut exists already, nothing is written.

        Raises:
            InputError: a layer or row the target does not have.
        """
        ...


class Executor(Protocol):
    """Starts ``gatekeeper worker --once --run ID`` somewhere."""

    name: str

    def submit(self, run_id: str, attempt: int, requirements: Mapping[str, Any]) -> str:
        """Start a worker and return the executor's job id."""
        ...

    def stop(self, job_id: str) -> None:
        """End a worker; unknown ids are ignored."""
        ...
