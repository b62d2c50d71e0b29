"""ChatML text of a conversation that ends where the assistant is to speak."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Prompt", "chat", "compact"]


@dataclass(frozen=True)
class Prompt:
    """One prompt of a slice, before tokenisation."""

    id: str
    slice: str
    text: str


def chat(turns: Iterable[tuple[str, str]], *, begin: str = "") -> str:
    """Join ``(role, text)`` turns and open the assistant's turn, optionally begun for it."""
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{said}<|im_start|>assistant\n{begin}"


def compact(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """JSON on one line, keys in the order given: what models write as tool calls."""
    return json.dumps(value, separators=(", ", ": "))
