"""Refuse requests that do not fit an engine, before they wait for a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from gatekeeper.core.decoding import DecodeRequest

__all__ = ["check_request"]


def check_request(
    request: DecodeRequest, *, max_context: int, vocab_size: int, known: bool
) -> None:
    """Check prompt, ids and limits; ``known`` says the id is in use.

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
    )
    for name, good, value, remedy in checks:
        if not good:
            raise InputError("does not fit", field=name, value=value, remedy=remedy)
