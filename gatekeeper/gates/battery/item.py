"""What an item of the battery is: a claim, the questions that try it, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from gatekeeper.gates.battery.exchange import Ask, Reply, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatekeeper.gates.battery.facts import Facts

__all__ = [
    "Item",
    "Plan",
    "State",
    "Steps",
    "Verdict",
    "ask_all",
    "ask_together",
    "failed",
    "passed",
    "unfit",
    "unverified",
]

_SHOWN = 160


class State(StrEnum):
    """What became of an item. No evidence is ``NOT_VERIFIED``, never ``PASS``."""

    PASS = "pass"  # noqa: S105 - a state, not a password
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    NOT_VERIFIED = "not verified"


@dataclass(frozen=True)
class Verdict:
    """The state, one sentence, and the requests that show it with what they were answered."""

    state: State
    detail: str
    shown: tuple[tuple[Ask, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "state": str(self.state),
            "detail": self.detail,
            "shown": [{"request": ask.to_dict(), "answer": said} for ask, said in self.shown],
        }


Steps: TypeAlias = Generator[Stage, tuple[Reply, ...], tuple[Reply, ...]]
"""A part of a plan that ends in replies."""

Plan: TypeAlias = Generator[Stage, tuple[Reply, ...], Verdict]
"""Yields stages, is sent the replies of each in order, and returns the verdict."""


@dataclass(frozen=True)
class Item:
    """One promise. ``windowed``: it says something only of answers whose drafts were accepted.

    ``compares``: it compares texts, and rounding may tip a near tie: it has to fail twice.
    """

    id: str
    claim: str
    plan: Callable[[Facts], Plan]
    windowed: bool = True
    compares: bool = False


def ask_all(asks: Iterable[Ask]) -> Steps:
    """Send requests one after the other."""
    replies: tuple[Reply, ...] = yield Stage(tuple(asks))
    return replies


def ask_together(asks: Iterable[Ask]) -> Steps:
    """Send requests all at once."""
    replies: tuple[Reply, ...] = yield Stage(tuple(asks), together=True)
    return replies


def passed(detail: str, *replies: Reply) -> Verdict:
    """The promise was kept wherever it was tried."""
    return Verdict(State.PASS, detail, _shown(replies))


def failed(detail: str, *replies: Reply) -> Verdict:
    """It was broken; ``replies`` are the counter-example."""
    return Verdict(State.FAIL, detail, _shown(replies))


def unfit(detail: str, *replies: Reply) -> Verdict:
    """The server says, or shows, that it does not offer this."""
    return Verdict(State.NOT_APPLICABLE, detail, _shown(replies))


def unverified(detail: str, *replies: Reply) -> Verdict:
    """It could not be tried."""
    return Verdict(State.NOT_VERIFIED, detail, _shown(replies))


def _shown(replies: Iterable[Reply]) -> tuple[tuple[Ask, str], ...]:
    return tuple((reply.ask, _said(reply)) for reply in replies)


def _said(reply: Reply) -> str:
    if not reply.good and reply.ask.leave_after is None:
        return reply.why
    if not reply.choices:
        return (reply.text or repr(reply.document))[:_SHOWN]
    made = "" if reply.made is None else f", {reply.made} tokens"
    said = [
        f"{choice.text or choice.calls!r:.{_SHOWN}} ({choice.finish})"
        if choice.calls and not choice.text
        else f"{choice.text[:_SHOWN]!r} ({choice.finish})"
        for choice in reply.choices
    ]
    return "; ".join(said) + made
