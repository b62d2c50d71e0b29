"""Prompts of the battery, and what several items need of a plain greedy answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.item import ask_all

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gatekeeper.gates.battery.exchange import Reply, Stage
    from gatekeeper.gates.battery.facts import Facts

__all__ = ["PROMPTS", "SHORT_ANSWERS", "Steady", "steady"]

PROMPTS = (
    "Colours in a row: red, green, blue, red, green, blue, red, green,",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "Item 1: apples, 3 kg. Item 2: pears, 3 kg. Item 3: plums, 3 kg. Item 4:",
)
"""Texts that go on as they began, so that drafts of any kind are accepted."""

_SAY = (
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
SHORT_ANSWERS = (
    _SAY.format("Say yes.", "Yes.", "Say yes again."),
    _SAY.format("Name one colour.", "Red.", "Name one more."),
)
"""Texts whose answers end soon, after answers that ended before."""


@dataclass(frozen=True)
class Steady:
    """A prompt with the answer that came twice."""

    prompt: str
    reply: Reply

    @property
    def text(self) -> str:
        """The answer's text."""
        return self.reply.first.text


def steady(
    facts: Facts,
    max_tokens: int,
    prompts: Sequence[str] = PROMPTS,
    **fields: Any,  # noqa: ANN401 - any JSON
) -> Generator[Stage, tuple[Reply, ...], list[Steady]]:
    """Greedy answers that the server gives twice over; the others can show nothing."""
    asks = [facts.ask(prompt, max_tokens, **fields) for prompt in prompts]
    replies = yield from ask_all([*asks, *asks])
    pairs = zip(prompts, replies[: len(asks)], replies[len(asks) :], strict=True)
    return [
        Steady(prompt, one)
        for prompt, one, two in pairs
        if one.first.text
        and (one.first.text, one.first.finish) == (two.first.text, two.first.finish)
    ]
