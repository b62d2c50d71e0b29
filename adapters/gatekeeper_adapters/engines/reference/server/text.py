"""The text of one answer as it grows: whole characters only, and no beginning of a stop text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Detokenizer", "StopGuard"]

UNFINISHED = "\ufffd"
"""What decoders write for the bytes of a character that is not complete yet."""

_PENDING = 3
"""Bytes at the end of a text that may still become a character: UTF-8 has at most four."""

_PATIENCE = 8
"""Tokens for which all such signs are waited for: byte fallback writes them for whole characters
too, as long as the bytes on end are not all text."""

_WINDOW = 16
_WINDOW_AT_MOST = 64
_CONTEXT = 8


class Detokenizer:
    """Decodes one token at a time; the pieces join to the text of all tokens.

    Decoders join tokens by what precedes them (a leading space, bytes of one character), so a short
    window of the last tokens is decoded anew each time; the work per token is bounded.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that were given out
        self._clean = 0  # tokens of the window when last nothing was held back

    def push(self, token: int) -> str:
        """The text that is certain with this token: empty in the middle of a character."""
        self._window.append(token)
        text = self._decode(self._window)
        patient = len(self._window) - self._clean <= _PATIENCE
        certain = len(text.rstrip(UNFINISHED)) if patient else _certain(text)
        new = text[self._given : certain]
        self._given = max(self._given, certain)
        if certain == len(text):
            if len(self._window) >= _WINDOW:
                self._shorten(self._clean)
            self._clean = len(self._window)
        elif len(self._window) >= _WINDOW_AT_MOST:  # bytes of no character, on and on
            self._shorten(len(self._window) - _CONTEXT)
            self._clean = -_PATIENCE
        return new

    def instead(self, token: int) -> str:
        """What ``token`` would add here, bytes of unfinished characters as U+FFFD; nothing changes."""
        return self._decode([*self._window, token])[self._given :]

    def flush(self) -> str:
        """What was held back, once no token will follow."""
        text = self._decode(self._window) if self._window else ""
        rest, self._given = text[self._given :], len(text)
        return rest

    def _shorten(self, tokens: int) -> None:
        """Forget the first tokens of the window; what was held back stays so."""
        self._window = self._window[tokens:]
        self._given = _certain(self._decode(self._window))


class StopGuard:
    """Holds back the end of a text while it could become a stop text.

    Whether an answer has ended is the engine's to say; ``cut`` then leaves the stop text out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """The part of the text so far that no stop text can begin in."""
        if not self._stops:
            return text
        self._held += text
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        free = len(self._held) - keep
        out, self._held = self._held[:free], self._held[free:]
        return out

    def cut(self, text: str) -> str:
        """The last text, up to where the first stop text begins in it."""
        rest, self._held = self._held + text, ""
        places = [place for stop in self._stops if (place := rest.find(stop)) >= 0]
        return rest[: min(places)] if places else rest

    def flush(self, text: str) -> str:
        """The last text, where something else than a stop text ended the answer."""
        rest, self._held = self._held + text, ""
        return rest


def _certain(text: str) -> int:
    """Characters of a decoded text that no further byte changes."""
    end = len(text)
    while end and len(text) - end < _PENDING and text[end - 1] == UNFINISHED:
        end -= 1
    return end


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, not all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
