"""Rounds and acceptance counts that add."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from gatekeeper.core.claims import equation
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

__all__ = [
    "MIN_CLUSTERS",
    "ROUND_COLUMNS",
    "AcceptanceCounts",
    "Interval",
    "Round",
    "acceptance_interval",
    "acceptance_rate",
    "mean_accepted_length",
    "rounds_frame",
]

MIN_CLUSTERS = 5
"""Fewest requests from which a spread between requests is estimated at all."""


@dataclass(frozen=True)
class Round:
    """One draft-then-verify step of one request. Times in seconds, memory in bytes.

    ``gamma`` is the window asked for, ``drafted`` the tokens actually proposed (a look-up may find
    fewer), ``accepted`` the accepted prefix, ``rejection_position`` the 0-based index of the first
    rejected draft token or None when all were accepted. ``committed`` counts the tokens appended,
    bonus or correction included, stops applied. Batched steps share their time equally among
    the requests in them, so that sums over rounds equal the engine's time.
    """

    request_id: str
    index: int
    gamma: int
    drafted: int
    accepted: int
    rejection_position: int | None
    committed: int
    draft_s: float
    verify_s: float
    correction_s: float
    transfer_s: float
    memory_bytes: int
    batch: int
    context: int


ROUND_COLUMNS = tuple(f.name for f in fields(Round))
"""Columns of a DataFrame of rounds; ``rejection_position`` is Int64 with NA for None."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided confidence interval."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class AcceptanceCounts:
    """Sufficient statistics of rounds; counts of disjoint requests add with ``+``.

    ``reached[k]``: rounds in which draft position k (from 0) was proposed and all before it were
    accepted; ``accepted_at[k]``: those in which k was accepted too. ``requests`` counts clusters;
    the last five fields are sums over requests of squares and products of their (accepted,
    drafted, rounds), from which intervals clustered by request follow. Rounds of one request must
    not be split between two counts, or it counts as two clusters.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    reached: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    correction_s: float = 0.0
    transfer_s: float = 0.0
    requests: int = 0
    accepted_sq: int = 0
    drafted_sq: int = 0
    rounds_sq: int = 0
    accepted_drafted: int = 0
    accepted_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.drafted:
            raise InputError(
                "exceeds the tokens drafted",
                field="accepted",
                value=self.accepted,
                remedy="count accepted draft tokens only, not bonus or correction",
            )

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """Sum field by field; curves of different length are filled up with nothing reached."""
        sums: dict[str, Any] = {}
        for f in fields(self):
            left, right = getattr(self, f.name), getattr(other, f.name)
            if isinstance(left, tuple):
                sums[f.name] = tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))
            else:
                sums[f.name] = left + right
        return AcceptanceCounts(**sums)

    @classmethod
    def from_rounds(cls, rounds: Iterable[Round]) -> AcceptanceCounts:
        """Count rounds; those of one ``request_id`` form one cluster.

        Raises:
            InputError: a round accepts more than it drafted.
        """
        by_request: dict[str, list[Round]] = {}
        for entry in rounds:
            by_request.setdefault(entry.request_id, []).append(entry)
        total = cls()
        for group in by_request.values():
            total += cls._of_request(group)
        return total

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> AcceptanceCounts:
        """Count a DataFrame of ``ROUND_COLUMNS``.

        Raises:
            InputError: a column is missing.
        """
        return cls.from_rounds(_rows(frame))

    @classmethod
    def _of_request(cls, group: list[Round]) -> AcceptanceCounts:
        for entry in group:
            if not 0 <= entry.accepted <= entry.drafted:
                raise InputError(
                    f"exceeds the {entry.drafted} tokens drafted",
                    field=f"{entry.request_id}.round[{entry.index}].accepted",
                    value=entry.accepted,
                    remedy="count accepted draft tokens only, not bonus or correction",
                )
        positions = range(max(entry.drafted for entry in group))
        accepted = sum(entry.accepted for entry in group)
        drafted = sum(entry.drafted for entry in group)
        return cls(
            rounds=len(group),
            drafted=drafted,
            accepted=accepted,
            committed=sum(entry.committed for entry in group),
            reached=tuple(sum(e.drafted > k and e.accepted >= k for e in group) for k in positions),
            accepted_at=tuple(sum(e.accepted > k for e in group) for k in positions),
            draft_s=math.fsum(entry.draft_s for entry in group),
            verify_s=math.fsum(entry.verify_s for entry in group),
            correction_s=math.fsum(entry.correction_s for entry in group),
            transfer_s=math.fsum(entry.transfer_s for entry in group),
            requests=1,
            accepted_sq=accepted**2,
            drafted_sq=drafted**2,
            rounds_sq=len(group) ** 2,
            accepted_drafted=accepted * drafted,
            accepted_rounds=accepted * len(group),
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / proposed draft tokens; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def conditional_acceptance(self) -> tuple[float | None, ...]:
        """P(position k accepted | positions before it accepted); None where never reached."""
        return tuple(
            a / r if r else None for a, r in zip(self.accepted_at, self.reached, strict=True)
        )

    @property
    def mean_accepted_length(self) -> float | None:
        """1 + accepted / rounds, so with the bonus or correction token; None without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    def acceptance_interval(self, confidence: float = 0.95) -> Interval | None:
        """Interval of ``acceptance_rate`` clustered by request; None with too few requests."""
        return _rate_interval(self, confidence)

    def length_interval(self, confidence: float = 0.95) -> Interval | None:
        """Interval of ``mean_accepted_length`` clustered by request, by the delta method.

        The ratio estimator's variance is m/(m−1) · Σ(a_i − r·n_i)² / (Σ n_i)², with a normal
        quantile. None below ``MIN_CLUSTERS`` requests, or where the requests do not differ at all
        (no spread is no evidence of certainty).
        """
        mean = self.mean_accepted_length
        if mean is None or self.requests < MIN_CLUSTERS:
            return None
        variance = _ratio_variance(
            mean - 1,
            products=(self.accepted_sq, self.accepted_rounds, self.rounds_sq),
            total=self.rounds,
            clusters=self.requests,
        )
        if variance <= 0:
            return None
        half = _normal_quantile(confidence) * math.sqrt(variance)
        return Interval(mean, max(1.0, mean - half), mean + half, confidence)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        document = asdict(self)
        return document | {n: list(document[n]) for n in ("reached", "accepted_at")}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> AcceptanceCounts:
        """Read ``to_dict`` back."""
        lists = {name: tuple(document[name]) for name in ("reached", "accepted_at")}
        return cls(**{**document, **lists})


def rounds_frame(rounds: Iterable[Round]) -> pd.DataFrame:
    """DataFrame with ``ROUND_COLUMNS``, one row a round, in the order given."""
    import pandas as pd  # noqa: PLC0415 - keeps pandas out of importing this module

    frame = pd.DataFrame([asdict(entry) for entry in rounds], columns=list(ROUND_COLUMNS))
    return frame.astype({"request_id": str, "rejection_position": "Int64"})


@equation("acceptance.rate", table=True)
def acceptance_rate(frame: pd.DataFrame, gamma: int | None = None) -> float | None:
    """Accepted / proposed draft tokens of a table of rounds, all or those of one ``gamma``."""
    return AcceptanceCounts.from_frame(_of_gamma(frame, gamma)).acceptance_rate


@equation("acceptance.mean_length", table=True)
def mean_accepted_length(frame: pd.DataFrame, gamma: int | None = None) -> float | None:
    """1 + accepted / rounds of a table of rounds, all or those of one ``gamma``."""
    return AcceptanceCounts.from_frame(_of_gamma(frame, gamma)).mean_accepted_length


@equation("acceptance.rate_end", table=True)
def acceptance_interval(
    frame: pd.DataFrame, end: str, gamma: int | None = None, confidence: float = 0.95
) -> float | None:
    """One ``end`` (``low`` or ``high``) of the clustered interval of the acceptance rate."""
    counts = AcceptanceCounts.from_frame(_of_gamma(frame, gamma))
    interval = counts.acceptance_interval(confidence)
    return None if interval is None else {"low": interval.low, "high": interval.high}[end]


def _of_gamma(frame: pd.DataFrame, gamma: int | None) -> pd.DataFrame:
    return frame if gamma is None else frame[frame["gamma"] == gamma]


def _rows(frame: pd.DataFrame) -> Iterable[Round]:
    missing = [name for name in ROUND_COLUMNS if name not in frame.columns]
    if missing:
        raise InputError(
            "are missing", field="columns", value=missing, remedy="give every column of a round"
        )
    # NA of Int64, or NaN after a way through float: both are None here
    known = frame["rejection_position"].notna().tolist()
    columns = (frame[name].tolist() for name in ROUND_COLUMNS)
    where = ROUND_COLUMNS.index("rejection_position")
    for has_rejection, values in zip(known, zip(*columns, strict=True), strict=True):
        row = list(values)
        row[where] = int(row[where]) if has_rejection else None
        yield Round(*row)


def _rate_interval(counts: AcceptanceCounts, confidence: float) -> Interval | None:
    """Wilson interval on the effective sample size n / deff of a clustered proportion.

    deff = clustered variance of the ratio / binomial variance, taken as at least 1; at a rate of 0
    or 1, where no spread can be seen, each request counts as one observation.
    """
    # imported late: statsmodels takes seconds, and most users of this module only count
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415

    rate = counts.acceptance_rate
    if rate is None or counts.requests < MIN_CLUSTERS:
        return None
    binomial = rate * (1 - rate) / counts.drafted
    if binomial > 0:
        clustered = _ratio_variance(
            rate,
            products=(counts.accepted_sq, counts.accepted_drafted, counts.drafted_sq),
            total=counts.drafted,
            clusters=counts.requests,
        )
        effective = counts.drafted / max(1.0, clustered / binomial)
    else:
        effective = float(min(counts.requests, counts.drafted))
    low, high = proportion_confint(
        rate * effective, effective, alpha=1 - confidence, method="wilson"
    )
    # the library returns NaN for inputs it cannot use; that is unknown, not an interval
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return Interval(rate, min(float(low), rate), max(float(high), rate), confidence)


def _ratio_variance(
    ratio: float, *, products: tuple[int, int, int], total: int, clusters: int
) -> float:
    """Delta-method variance of Σa/Σb over clusters, from (Σa², Σab, Σb²) and Σb."""
    aa, ab, bb = products
    spread = aa - 2 * ratio * ab + ratio**2 * bb
    return max(0.0, spread) / total**2 * clusters / (clusters - 1)


def _normal_quantile(confidence: float) -> float:
    from statistics import NormalDist  # noqa: PLC0415 - beside its only use

    return NormalDist().inv_cdf(0.5 + confidence / 2)
