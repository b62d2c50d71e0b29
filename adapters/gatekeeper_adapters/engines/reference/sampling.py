"""The one processed distribution that draft, accept, residual and bonus all use.

``adjust`` changes logits (forbidden tokens, bias, penalties); ``distribution`` turns adjusted logits
into probabilities (temperature, top-k, top-p, min-p). Greedy skips the second: its distribution is
the point mass on the arg max, lowest id on ties. No full sort and no ``multinomial``: at a
vocabulary of 49,152 they cost 4 and 1.5 ms a row.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gatekeeper.core.decoding import SamplingSettings

__all__ = ["adjust", "distribution", "draw", "is_plain", "one_hot", "point_mass", "processed"]

TOP_P_SHORTLIST = 1024
"""Largest probabilities looked at before top-p falls back to sorting the whole row."""

NEVER = float("-inf")


def is_plain(settings: SamplingSettings) -> bool:
    """Whether ``adjust`` would leave logits as they are."""
    return not (settings.logit_bias or settings.forbidden_tokens or _penalises(settings))


def adjust(
    logits: Tensor,
    settings: SamplingSettings,
    history: Sequence[int],
    window: Sequence[int] = (),
    *,
    banned: Sequence[int] = (),
    banned_rows: int = 0,
) -> Tensor:
    """Logits float32 [n, V] after forbidden tokens, bias and penalties; the input stays as it was.

    Row j sees ``history`` (prompt and output) and ``window[:j]``, the draft tokens before it.
    ``banned`` tokens (end tokens before a minimum length) are forbidden in the first
    ``banned_rows`` rows.
    """
    if is_plain(settings) and not (banned and banned_rows):
        return logits
    out = logits.clone()
    for token, bias in settings.logit_bias:
        out[:, token] += bias
    if settings.forbidden_tokens:
        out[:, list(settings.forbidden_tokens)] = NEVER
    if banned and banned_rows:
        out[:banned_rows, list(banned)] = NEVER
    if _penalises(settings):
        seen = Counter(history)
        for row in range(out.shape[0]):
            if row:
                seen[window[row - 1]] += 1
            _penalise(out[row], settings, seen)
    return out


def distribution(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Probabilities float32 [n, V] of adjusted logits; rows sum to 1."""
    if settings.greedy:
        return one_hot(logits.argmax(dim=-1), logits.shape[-1])
    scaled = logits / settings.temperature
    if 0 < settings.top_k < scaled.shape[-1]:
        threshold = torch.topk(scaled, settings.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < threshold, NEVER)
    p = torch.softmax(scaled, dim=-1)
    if settings.top_p < 1.0:
        p = _renormalise(p.masked_fill(p < _nucleus_edge(p, settings.top_p), 0.0))
    if settings.min_p > 0.0:
        edge = settings.min_p * p.max(dim=-1, keepdim=True).values
        p = _renormalise(p.masked_fill(p < edge, 0.0))
    return p


def processed(
    logits: Tensor,
    settings: SamplingSettings,
    history: Sequence[int],
    window: Sequence[int] = (),
    *,
    banned: Sequence[int] = (),
    banned_rows: int = 0,
) -> Tensor:
    """``distribution`` of ``adjust``: what every step of the algorithm samples from."""
    adjusted = adjust(logits, settings, history, window, banned=banned, banned_rows=banned_rows)
    return distribution(adjusted, settings)


def draw(weights: Tensor, u: float) -> int:
    """Index drawn from non-negative ``weights`` [V] (not normalised) by the uniform ``u``.

    The sum runs in float64, and an index of weight 0 is never returned.
    """
    cumulative = weights.to(torch.float64).cumsum(dim=0)
    total = float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, u * total, right=True))
    if index >= weights.shape[0]:  # u·total was rounded up to the total
        index = int(torch.nonzero(weights)[-1])
    return index


def one_hot(tokens: Tensor, vocab_size: int) -> Tensor:
    """Point masses float32 [n, V] at ``tokens`` [n]."""
    out = torch.zeros(tokens.shape[0], vocab_size, device=tokens.device)
    return out.scatter_(1, tokens.unsqueeze(1), 1.0)


def point_mass(token: int, like: Tensor) -> Tensor:
    """A row [V] like another, all of it on ``token``."""
    out = torch.zeros_like(like)
    out[token] = 1.0
    return out


def _penalises(settings: SamplingSettings) -> bool:
    return (
        settings.repetition_penalty != 1.0
        or settings.presence_penalty != 0.0
        or settings.frequency_penalty != 0.0
    )


def _penalise(row: Tensor, settings: SamplingSettings, seen: Counter[int]) -> None:
    tokens = torch.tensor(list(seen), dtype=torch.int64, device=row.device)
    values = row[tokens]
    if settings.repetition_penalty != 1.0:
        penalty = settings.repetition_penalty
        values = torch.where(values > 0, values / penalty, values * penalty)
    if settings.presence_penalty != 0.0:
        values = values - settings.presence_penalty
    if settings.frequency_penalty != 0.0:
        counts = torch.tensor(list(seen.values()), dtype=row.dtype, device=row.device)
        values = values - settings.frequency_penalty * counts
    row[tokens] = values


def _nucleus_edge(p: Tensor, top_p: float) -> Tensor:
    """Smallest probability [n, 1] of the shortest head whose sum reaches ``top_p``."""
    width = min(TOP_P_SHORTLIST, p.shape[-1])
    head = torch.topk(p, width, dim=-1).values
    sums = head.to(torch.float64).cumsum(dim=-1)
    if width < p.shape[-1] and bool((sums[:, -1] < top_p).any()):
        head = torch.sort(p, dim=-1, descending=True).values  # rare: a nearly flat row
        sums = head.to(torch.float64).cumsum(dim=-1)
    last = (sums < top_p).sum(dim=-1, keepdim=True).clamp(max=head.shape[-1] - 1)
    return head.gather(1, last)


def _renormalise(p: Tensor) -> Tensor:
    return p / p.sum(dim=-1, keepdim=True)
