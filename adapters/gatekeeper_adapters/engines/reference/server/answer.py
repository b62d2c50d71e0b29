"""One answer on its way: the choices of an HTTP request, piece by piece, with their times."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper.errors import InputError
from gatekeeper_adapters.engines.reference.server.text import Detokenizer, StopGuard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper.protocols import TokenLogprob
    from gatekeeper_adapters.engines.reference.server.bridge import Bridge, Progress

__all__ = ["Answer", "Choice", "Piece", "Scored", "Times"]

REASONS = {"stop": "stop", "length": "length", "context": "length"}
"""The engine's reasons in OpenAI's words."""

_LEAST = -9999.0
"""What OpenAI writes for a log-probability that JSON cannot hold."""


@dataclass(frozen=True)
class Scored:
    """A token as text with its log-probability (nats), the likeliest there, and where it begins."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Piece:
    """What a choice grew by; ``finish`` on its last one.

    ``tokens`` are the ids that were emitted since the piece before; their text may come later.
    """

    index: int
    text: str
    scored: tuple[Scored, ...] = ()
    finish: str | None = None
    tokens: tuple[int, ...] = ()


@dataclass
class Times:
    """Moments of an answer on the bridge's clock, None while they have not come.

    Over all choices: the first slot, the first token, the last token.
    """

    arrived: float
    admitted: float | None = None
    first: float | None = None
    last: float | None = None

    def note(self, progress: Progress) -> None:
        """Take in what happened."""
        if progress.admitted and self.admitted is None:
            self.admitted = progress.at
        if progress.tokens:
            self.first = progress.at if self.first is None else self.first
            self.last = progress.at

    @property
    def queue_s(self) -> float | None:
        """Seconds until a slot was free."""
        return None if self.admitted is None else max(0.0, self.admitted - self.arrived)

    @property
    def prefill_s(self) -> float | None:
        """Seconds from the slot to the first token."""
        if self.admitted is None or self.first is None:
            return None
        return max(0.0, self.first - self.admitted)

    @property
    def decode_s(self) -> float | None:
        """Seconds from the first token to the last."""
        return None if self.first is None or self.last is None else self.last - self.first

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first is None else max(0.0, self.first - self.arrived)


class Choice:
    """The text of one sequence."""

    def __init__(
        self, index: int, request: DecodeRequest, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.index = index
        self.tokens = 0
        self.finish: str | None = None
        self._request = request
        self._words = Detokenizer(decode)
        self._guard = StopGuard(request.stop)
        self._pending: list[Scored] = []
        self._made = 0  # characters of text so far, and how many of them were given out
        self._given = 0

    def take(self, progress: Progress) -> Piece:
        """Turn a step's tokens into the piece of text that is certain now."""
        done, tokens = progress.finished, progress.tokens
        self.tokens += len(tokens)
        if done is not None and tokens and tokens[-1] in self._request.end_tokens:
            tokens = tokens[:-1]  # no text
        out = last = ""  # the last token's text waits: a stop text that it completes is cut off
        for token, score in zip(tokens, progress.logprobs or itertools.repeat(None), strict=False):
            out += self._guard.push(last)
            last = self._push(token, score)
        if done is None:
            out += self._guard.push(last)
        else:
            rest = self._words.flush()
            self._made += len(rest)
            ending = self._guard.flush if done.stop is None else self._guard.cut
            out += ending(last + rest)
            self.finish = REASONS[done.reason]
        self._given += len(out)
        scored = self._release(over=done is not None)
        return Piece(self.index, out, scored, self.finish, progress.tokens)

    def _push(self, token: int, score: TokenLogprob | None) -> str:
        if score is None:
            text = self._words.push(token)
            self._made += len(text)
            return text
        shown = self._words.instead(token)
        top = tuple((self._words.instead(one), max(value, _LEAST)) for one, value in score.top)
        text = self._words.push(token)
        begin, self._made = self._made, self._made + len(text)
        self._pending.append(Scored(shown, max(score.logprob, _LEAST), top, begin, self._made))
        return text

    def _release(self, *, over: bool) -> tuple[Scored, ...]:
        """Scores of the tokens whose text is out; at the end, of those that began in it."""
        count = 0
        for one in self._pending:
            if one.end > self._given and not (over and one.begin < self._given):
                break
            count += 1
        out, self._pending = self._pending[:count], self._pending[count:]
        return tuple(out)


@dataclass
class Answer:
    """All choices of one request; closing it frees what the engine still holds for it.

    ``prompt_tokens`` counts the prompt once, however many choices there are.
    """

    bridge: Bridge
    requests: tuple[DecodeRequest, ...]
    decode: Callable[[Sequence[int]], str]
    times: Times
    drafted: int = 0
    accepted: int = 0
    choices: list[Choice] = field(init=False)
    _news: asyncio.Queue[Progress] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.choices = [
            Choice(index, request, self.decode) for index, request in enumerate(self.requests)
        ]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.requests[0].prompt)

    @property
    def tokens(self) -> int:
        """Tokens generated so far, end tokens and cut-off stop texts included."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def complete(self) -> bool:
        """Whether every choice has ended by itself."""
        return all(choice.finish is not None for choice in self.choices)

    def submit(self) -> None:
        """Queue the requests.

        Raises:
            Busy: there is no room for them.
            Unavailable: the engine serves no more.
        """
        self.bridge.submit(self.requests, self._news.put_nowait)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces as they come, in the order of the steps and within a step of the choices.

        Raises:
            GatekeeperError: the engine refused a request, or failed.
        """
        by_id = {r.request_id: c for r, c in zip(self.requests, self.choices, strict=True)}
        while not self.complete:
            progress = await self._news.get()
            if progress.error is not None:
                raise progress.error
            done = progress.finished
            if done is not None and done.reason not in REASONS:
                raise InputError(
                    f"could not be followed to its end ({done.reason})",
                    field="response_format",
                    remedy="ask for a simpler schema or expression",
                )
            self.times.note(progress)
            self.drafted += progress.drafted
            self.accepted += progress.accepted
            if progress.tokens or done is not None:
                yield by_id[progress.request_id].take(progress)

    def close(self) -> None:
        """Cancel what has not ended."""
        self.bridge.cancel(
            request.request_id
            for request, choice in zip(self.requests, self.choices, strict=True)
            if choice.finish is None
        )
