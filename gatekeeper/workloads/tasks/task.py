"""One task: a prompt and the program that says whether an answer solves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Task", "Verifier", "exactly"]

Verifier = Callable[[str], bool]


@dataclass(frozen=True)
class Task:
    """``verify`` is a pure function of the answer's text, end token removed; ``answer`` solves it."""

    id: str
    kind: str
    text: str
    answer: str
    verify: Verifier


def exactly(wanted: str) -> Verifier:
    """Accept ``wanted`` alone; only white space around the whole answer is forgiven."""

    def verify(text: str) -> bool:
        return text.strip() == wanted

    return verify
