"""Equations over what servers count and what the client saw of itself.

``drafts``
    one row a block: ``phase``, ``pair``, ``arm``, ``concurrency``, ``gamma`` and, nullable,
    ``rounds`` (verification rounds that had a draft), ``drafted``, ``accepted`` (tokens), from the
    server's counters or, without ``rounds``, from the timings of its answers.
``health``
    one row a block: ``phase``, ``concurrency``, ``lag_p50_s``, ``lag_p95_s``, ``lag_max_s``: by how
    much the client's event loop was late.
``sweep``, ``confirm``
    beside the columns of :mod:`gatekeeper.core.stats.serving_blocks`: ``chunks`` (streamed pieces)
    and, nullable, ``counted`` (the server's tokenizer on the streamed text).

Unknown is NA in the tables and None from an equation, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.claims import equation
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COMPLETE",
    "acceptance",
    "client_lag",
    "drafted",
    "incomplete",
    "starved_share",
    "usage_disagreements",
]

COMPLETE = ("stop", "length")
"""Reasons with which a server itself ends an answer."""

_SLACK_TOKENS, _SLACK_SHARE = 2, 0.1
"""A retokenised text may merge tokens at its seams, and an end token has no text."""


@equation("servers.acceptance", table=True)
def acceptance(drafts: pd.DataFrame, *, figure: str, concurrency: int, arm: str) -> float | None:
    """One figure of a server's drafts in the confirmation blocks of one concurrency.

    ``acceptance_rate``: accepted / drafted. ``drafted_per_round`` and ``accepted_per_round`` count
    rounds that had a draft only. None where a block's are unknown.

    Raises:
        InputError: no such figure.
    """
    rows = drafts[
        (drafts["phase"] == "confirm")
        & (drafts["arm"] == arm)
        & (drafts["concurrency"] == concurrency)
    ]
    figures = ("acceptance_rate", "drafted_per_round", "accepted_per_round")
    if figure not in figures:
        raise InputError(
            "is not a figure of drafts",
            field="figure",
            value=figure,
            remedy=f"use one of {', '.join(figures)}",
        )
    proposed, accepted = _sum(rows, "drafted"), _sum(rows, "accepted")
    if figure == "acceptance_rate":
        return accepted / proposed if proposed and accepted is not None else None
    rounds = _sum(rows, "rounds")
    if not rounds or proposed is None or accepted is None:
        return None
    return (proposed if figure == "drafted_per_round" else accepted) / rounds


@equation("servers.drafted", table=True)
def drafted(drafts: pd.DataFrame, *, arm: str) -> float | None:
    """Tokens that an arm's server drafted in all blocks; None where a block's are unknown."""
    return _sum(drafts[drafts["arm"] == arm], "drafted")


@equation("servers.client_lag", table=True)
def client_lag(health: pd.DataFrame) -> float | None:
    """Median over blocks of the client's 95th percentile of lag, seconds."""
    return float(health["lag_p95_s"].median()) if health["lag_p95_s"].notna().any() else None


@equation("servers.starved_share", table=True)
def starved_share(health: pd.DataFrame, *, concurrency: int, limit_s: float) -> float | None:
    """Share of confirmation blocks whose 95th percentile of lag exceeds ``limit_s``.

    A block whose lag was not measured counts as starved. None without blocks.
    """
    rows = health[(health["phase"] == "confirm") & (health["concurrency"] == concurrency)]
    return float((~(rows["lag_p95_s"] <= limit_s)).mean()) if len(rows) else None


@equation("servers.incomplete", table=True)
def incomplete(table: pd.DataFrame, *, arm: str) -> int:
    """Answers of an arm that its server did not end itself."""
    return int((~table.loc[table["arm"] == arm, "reason"].isin(COMPLETE)).sum())


@equation("servers.usage_disagreements", table=True)
def usage_disagreements(table: pd.DataFrame, *, arm: str, max_tokens: int) -> int:
    """Complete answers whose usage contradicts the stream.

    More tokens than were allowed, fewer tokens than pieces with text, or a count that differs from
    the retokenised text by more than 2 tokens and 10 %.
    """
    rows = table[(table["arm"] == arm) & table["reason"].isin(COMPLETE)]
    tokens = rows["tokens"].astype(float)
    counted = rows["counted"].astype("Float64").to_numpy(float, na_value=float("nan"))
    apart = (tokens - counted).abs()
    wrong = (
        (tokens > max_tokens)
        | (rows["chunks"] > tokens + _SLACK_TOKENS)
        | (apart > _SLACK_TOKENS + _SLACK_SHARE * counted)
    )
    return int(wrong.sum())


def _sum(rows: pd.DataFrame, column: str) -> float | None:
    values = rows[column]
    return float(values.sum()) if len(values) and values.notna().all() else None
