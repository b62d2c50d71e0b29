"""Acceptance counts of live traffic: they add, and know how alike the tokens of a request are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.acceptance import MIN_CLUSTERS
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LARGEST", "ClusterSums", "LiveCounts", "design_effect"]

LARGEST = 2**53
"""Largest count that is one: beyond it a float, as Prometheus has them, skips numbers."""


@dataclass(frozen=True)
class ClusterSums:
    """Sums over requests of 1, a², d² and a·d, where a request had a of d draft tokens accepted."""

    requests: int
    accepted_sq: int
    drafted_sq: int
    accepted_drafted: int

    def __add__(self, other: ClusterSums) -> ClusterSums:
        """Sums of disjoint requests."""
        return ClusterSums(
            self.requests + other.requests,
            self.accepted_sq + other.accepted_sq,
            self.drafted_sq + other.drafted_sq,
            self.accepted_drafted + other.accepted_drafted,
        )


@dataclass(frozen=True)
class LiveCounts:
    """Rounds, and draft tokens proposed and accepted in them.

    ``clusters`` is None where the requests behind the counts are not known, as with an engine's
    totals; then it stays unknown however much is added.
    """

    rounds: int
    drafted: int
    accepted: int
    clusters: ClusterSums | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "drafted", "accepted"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise InputError(
                    "is not a count",
                    field=name,
                    value=getattr(self, name),
                    remedy="use 0 to 2**53",
                )
        if self.accepted > self.drafted:
            raise InputError(
                f"exceeds the {self.drafted} tokens drafted",
                field="accepted",
                value=self.accepted,
                remedy="count accepted draft tokens only, not bonus or correction",
            )

    def __add__(self, other: LiveCounts) -> LiveCounts:
        """Counts of disjoint requests, or of the same ones where no clusters are known."""
        clusters = None
        if self.clusters is not None and other.clusters is not None:
            clusters = self.clusters + other.clusters
        return LiveCounts(
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            clusters,
        )

    @classmethod
    def from_rounds(cls, rounds: Iterable[tuple[str, int, int]]) -> LiveCounts:
        """Count (request, drafted, accepted) of single rounds.

        Raises:
            InputError: a round accepts more than it drafted.
        """
        by_request: dict[str, list[int]] = {}
        total = 0
        for i, (request, drafted, accepted) in enumerate(rounds):
            if not 0 <= accepted <= drafted:
                raise InputError(
                    f"exceeds the {drafted} tokens drafted",
                    field=f"rounds[{i}].accepted",
                    value=accepted,
                    remedy="count accepted draft tokens only, not bonus or correction",
                )
            sums = by_request.setdefault(request, [0, 0])
            sums[0] += drafted
            sums[1] += accepted
            total += 1
        pairs = by_request.values()
        return cls(
            total,
            sum(d for d, _ in pairs),
            sum(a for _, a in pairs),
            ClusterSums(
                len(by_request),
                sum(a * a for _, a in pairs),
                sum(d * d for d, _ in pairs),
                sum(a * d for d, a in pairs),
            ),
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / proposed draft tokens; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LiveCounts:
        """Read ``to_dict`` back."""
        clusters = document["clusters"]
        return cls(
            document["rounds"],
            document["drafted"],
            document["accepted"],
            None if clusters is None else ClusterSums(**clusters),
        )


def design_effect(accepted: int, drafted: int, clusters: ClusterSums) -> float | None:
    """Variance of the acceptance rate among requests over that of independent tokens, at least 1.

    The former is that of the ratio estimator, m/(m−1) · Σ(a_i − r·d_i)² / (Σ d_i)². None below
    ``MIN_CLUSTERS`` requests, and at a rate of 0 or 1, where no spread can be seen.
    """
    if clusters.requests < MIN_CLUSTERS or not 0 < accepted < drafted:
        return None
    rate = accepted / drafted
    spread = (
        clusters.accepted_sq
        - 2 * rate * clusters.accepted_drafted
        + rate * rate * clusters.drafted_sq
    )
    among = max(0.0, spread) / drafted**2 * clusters.requests / (clusters.requests - 1)
    effect = among / (rate * (1 - rate) / drafted)
    return max(1.0, effect) if math.isfinite(effect) else None
