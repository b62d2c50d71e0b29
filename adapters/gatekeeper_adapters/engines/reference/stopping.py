"""Where an answer ends inside an accepted run: at an end token, or where a stop text is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Tokens

    from gatekeeper_adapters.engines.reference.scheduler import Sequence

__all__ = ["StopTexts", "cut"]

UNFINISHED = "\ufffd"
"""What decoders write for the bytes of a character that is not complete yet."""

HELD, PARTIAL = 8, 3
"""Tokens that wait for a character at most; and the bytes of one that may still be completed then."""


class StopTexts:
    """Watches generated text for the first stop text, one token at a time.

    Only generated text counts, so a stop text in the prompt, or begun there, ends nothing. Each token
    is decoded together with the one chunk before it: decoders may join tokens by what precedes them
    (a leading space), and a character may be spread over tokens. Work per token is bounded.
    """

    def __init__(self, stops: Tokens[str], detokenize: Callable[[Tokens[int]], str]) -> None:
        self._stops = tuple(stops)
        self._detokenize = detokenize
        self._keep = max(len(stop) for stop in stops) - 1
        self._tokens: list[int] = []  # the last chunk of whole characters, and what follows it
        self._whole = 0  # tokens of that chunk
        self._known = 0  # characters of that chunk
        self._tail = ""  # as much text before what follows as the longest stop text could need
        self._seen = 0  # characters of tail and following text that earlier tokens already showed

    def push(self, token: int) -> str | None:
        """The stop text that this token completes, if any: the one complete first, then the longest."""
        self._tokens.append(token)
        text = self._detokenize(self._tokens)[self._known :]
        partial = len(text) - len(text.rstrip(UNFINISHED))
        full = len(self._tokens) - self._whole > HELD  # bytes that never make a character
        if full:
            partial = min(partial, PARTIAL)
        window = self._tail + text[: len(text) - partial]
        found = self._find(window)
        self._seen = len(window)
        if full or not partial:
            self._tail = window[max(0, len(window) - self._keep) :]
            self._seen = len(self._tail)
            self._tokens = self._tokens[self._whole :]
            self._whole = len(self._tokens)
            self._known = len(self._detokenize(self._tokens)) - partial
        return found

    def _find(self, window: str) -> str | None:
        ends = []
        for stop in self._stops:
            place = window.find(stop, max(0, self._seen - len(stop) + 1))
            if place >= 0:
                ends.append((place + len(stop), place, stop))
        return min(ends)[-1] if ends else None


def cut(sequence: Sequence, tokens: list[int]) -> tuple[list[int], str | None]:
    """``tokens`` up to and with the first that ends the answer, and the stop text it completes.

    A minimum length holds back both: no stop text counts that one of its tokens completes, and end
    tokens cannot be drawn there (``rules.adjusted``). An end token outranks a stop text.
    """
    request, texts = sequence.request, sequence.stop_texts
    if sequence.grammar is not None:
        tokens = tokens[: sequence.grammar.length(tokens)]
    if texts is None and not request.end_tokens:
        return tokens, None
    for place, token in enumerate(tokens):
        if token in request.end_tokens:
            return tokens[: place + 1], None
        found = None if texts is None else texts.push(token)
        if found is not None and sequence.produced + place >= request.min_tokens:
            return tokens[: place + 1], found
    return tokens, None
