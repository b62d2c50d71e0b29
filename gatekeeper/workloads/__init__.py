"""Prompt suites by slice: what the gates decode.

A slice is a kind of text with its own acceptance behaviour. The prompts are this project's own
content, plain ChatML, built deterministically: the same suite on every machine.

``prompts(slice)`` gives the texts, ``tokenised(slice, tokenize)`` the token ids of the target at
hand. The suite's digest names its exact content in evidence.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gatekeeper.core.decoding import TokenPrompt
from gatekeeper.errors import InputError
from gatekeeper.workloads import code, long_context, multilingual, prose, tool_calls
from gatekeeper.workloads.chat import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SLICES", "Prompt", "digest", "prompts", "tokenised"]

_SUITES: dict[str, Callable[[], tuple[Prompt, ...]]] = {
    "tool_calls": tool_calls.build,
    "prose": prose.build,
    "code": code.build,
    "multilingual": multilingual.build,
    "long_context": long_context.build,
}

SLICES = tuple(_SUITES)
"""Names of the shipped slices."""


def prompts(name: str) -> tuple[Prompt, ...]:
    """Return the prompts of a slice, in their fixed order, ids unique.

    Raises:
        InputError: no such slice.
    """
    if name not in _SUITES:
        raise InputError(
            "is not a workload slice",
            field="slice",
            value=name,
            remedy=f"use one of {', '.join(SLICES)}",
        )
    return _SUITES[name]()


def tokenised(
    name: str, tokenize: Callable[[str], tuple[int, ...]], *, max_tokens: int | None = None
) -> tuple[TokenPrompt, ...]:
    """Return the slice as token ids, leaving out prompts longer than ``max_tokens``.

    Leaving out, not cutting: half a conversation is another kind of text.

    Raises:
        InputError: no such slice, or every prompt is too long.
    """
    ids = [(prompt, tokenize(prompt.text)) for prompt in prompts(name)]
    kept = tuple(
        TokenPrompt(prompt.id, prompt.slice, tokens)
        for prompt, tokens in ids
        if max_tokens is None or len(tokens) <= max_tokens
    )
    if not kept:
        raise InputError(
            f"leaves no prompt of slice {name}",
            field="max_prompt_tokens",
            value=max_tokens,
            remedy=f"allow at least {min(len(tokens) for _, tokens in ids)} tokens",
        )
    return kept


def digest(name: str) -> str:
    """Return the sha256 over ids and texts of a slice: changes whenever its content does."""
    state = hashlib.sha256()
    for prompt in prompts(name):
        state.update(f"{prompt.id}\0{prompt.text}\0".encode())
    return state.hexdigest()
