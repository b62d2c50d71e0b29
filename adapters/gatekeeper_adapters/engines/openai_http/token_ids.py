"""Token ids in, token ids out: how servers that tell them are asked, and what they answer.

llama.cpp has a path of its own (``/completion`` with ``return_tokens``); vLLM and the reference
engine's server take ids at ``/v1/completions`` and answer in ids with ``return_token_ids``. Every
processor is named, off or on: a server that is not told has defaults of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.protocols import Emitted, Ending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.decoding import DecodeRequest

__all__ = ["COMPLETION", "COMPLETIONS", "TOKEN_PATHS", "answer", "token_body"]

COMPLETION, COMPLETIONS = "/completion", "/v1/completions"
TOKEN_PATHS = (COMPLETION, COMPLETIONS)
"""Paths that may tell token ids, in the order in which a server is tried."""

_SEEDS = 2**31
"""Seeds that both take: llama.cpp reads 32 bits, and its largest stands for a random one."""

_LEAST = -1e4
"""Below any log-probability: what servers write for zero chance."""


def token_body(request: DecodeRequest, *, model: str, path: str) -> dict[str, Any]:
    """Return the request at a path of ``TOKEN_PATHS``, not streamed."""
    sampling = request.sampling
    common: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": request.seed % _SEEDS,
        "stream": False,
    }
    bias = {str(token): value for token, value in sampling.logit_bias}
    bias |= {str(token): -100.0 for token in sampling.forbidden_tokens}
    if bias:
        common["logit_bias"] = bias
    if path == COMPLETIONS:
        logprobs = {} if request.logprobs is None else {"logprobs": request.logprobs}
        return {
            **common,
            "max_tokens": request.max_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "return_token_ids": True,
            **logprobs,
        }
    if bias:
        common["logit_bias"] = [
            [int(token), False if value <= -100 else value]  # noqa: PLR2004 - OpenAI's "never"
            for token, value in bias.items()
        ]
    return {
        **common,
        "n_predict": request.max_tokens,
        "return_tokens": True,
        "n_probs": request.logprobs or 0,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": len(request.prompt) + request.max_tokens,  # all of it
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "dynatemp_range": 0.0,
        "top_n_sigma": -1.0,
        # the order of ``SamplingSettings``, instead of the one the server was started with
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    }


def answer(document: Mapping[str, Any], request: DecodeRequest, *, path: str) -> Emitted:
    """Read an answer of a path.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError: it is none of that path, or
            holds no token ids.
    """
    if path == COMPLETION:
        tokens = _ids(document["tokens"])
        stop = document["stop_type"] != "limit"
        usage = document["tokens_evaluated"], document["tokens_predicted"]
        told = [one["logprob"] for one in document.get("completion_probabilities") or ()]
    else:
        (choice,) = document["choices"]
        tokens = _ids(choice["token_ids"])
        stop = choice["finish_reason"] != "length"
        counts = document.get("usage") or {}
        usage = counts.get("prompt_tokens"), counts.get("completion_tokens")
        told = list((choice.get("logprobs") or {}).get("token_logprobs") or ())
    if stop and len(request.end_tokens) == 1 and usage[1] == len(tokens) + 1:
        tokens = (*tokens, *request.end_tokens)  # counted and not told: the one that ended it
    timings = document.get("timings") or {}
    ending = Ending(
        "stop" if stop else "length",
        prompt_tokens=_count(usage[0]),
        tokens=_count(usage[1]),
        drafted=_count(timings.get("draft_n")),
        accepted=_count(timings.get("draft_n_accepted")),
    )
    return Emitted(tokens, ending, _logprobs(told, len(tokens)))


def _ids(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(token) is int and token >= 0 for token in given):
        raise TypeError("token ids")
    return tuple(given)


def _logprobs(told: list[Any], tokens: int) -> tuple[float, ...] | None:
    """One for each token, up to an end token that has none; None where they do not line up."""
    if not told or not tokens - 1 <= len(told) <= tokens or None in told:
        return None
    return tuple(max(float(value), _LEAST) for value in told)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
