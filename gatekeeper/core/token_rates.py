"""How long a call decodes whose trace counts its tokens but does not show its first one (grade C).

decode = output tokens × time per output token. The time per token is the median over the calls of
the same route and model that do show their first token. What that estimate is worth is measured on
those calls themselves: each is left out in turn and estimated from the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.model_calls import CallTiming

__all__ = ["ASSUMED_RATE", "TokenRate", "TokenRates", "observed_rates"]

_MILLISECOND = 10**6


@dataclass(frozen=True)
class TokenRate:
    """Time per output token in nanoseconds: a typical value and the range it is trusted in.

    ``error_p50`` and ``error_p90`` are quantiles of |estimate − decode| / decode over the ``calls``
    it was fitted to, each left out in turn; None where too few calls could measure it.
    """

    typical_ns: Fraction
    low_ns: Fraction
    high_ns: Fraction
    source: str
    calls: int = 0
    error_p50: Fraction | None = None
    error_p90: Fraction | None = None

    def at(self, edge: str) -> Fraction:
        """The rate at one of ``typical``, ``low``, ``high``."""
        return {"typical": self.typical_ns, "low": self.low_ns, "high": self.high_ns}[edge]


ASSUMED_RATE = TokenRate(
    Fraction(21 * _MILLISECOND),
    Fraction(9 * _MILLISECOND),
    Fraction(29 * _MILLISECOND),
    "assumed: no call to this model shows its first token",
)
"""Rate for grade C when nothing better is known, with a wide range on purpose.

Median, 10th and 90th percentile of duration per output token over 249 calls of at least 300
output tokens in 12 public coding-agent sessions (kv-cache-tester, Apache-2.0), where the wait for
the first token weighs little.
"""

_ELSEWHERE_ERROR = Fraction(39, 100)
"""90th percentile of the relative error of the estimate with a route's own rate, over 4,134 real
calls whose first-token time was known (median 15 %): for rates fitted to too few calls to say."""

_MEASURES_ERROR = 10
"""Fewest calls whose 10th and 90th percentile are not just their extremes."""

_SHOWS_ERROR = 3
"""Fewest calls that leave two others to estimate each from."""


@dataclass(frozen=True)
class TokenRates:
    """Fitted rates by route and model, either of them None where a trace does not name it.

    ``routes`` names the route of calls, by trace id and span id, where rules and not an attribute
    decide it.
    """

    fitted: Mapping[tuple[str | None, str | None], TokenRate] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, call: CallTiming) -> TokenRate:
        """Rate for a call: that of its route and model, else of its model anywhere, else assumed.

        Models differ too much to lend each other a rate.
        """
        own = self.fitted.get((call.route, call.model))
        if own is None and call.model is not None:
            own = self.fitted.get((None, call.model))
        return ASSUMED_RATE if own is None else own


def observed_rates(
    calls: Iterable[CallTiming], *, routes: Mapping[tuple[str, str], str] | None = None
) -> TokenRates:
    """Fit a rate to every route and model, and to every model, that has calls of grade A or B.

    A route with fewer than three such calls of a model takes the rate of that model everywhere,
    where there are more of them.

    Args:
        calls: timings, with their routes.
        routes: routes of calls by trace id and span id, for the calls that get an estimate.
    """
    seen: dict[tuple[str | None, str | None], list[Fraction]] = {}
    for call in calls:
        decode = sum(p.end_ns - p.start_ns for p in call.phases if p.kind == "decode")
        if decode and call.output_tokens:
            per_token = Fraction(decode, call.output_tokens)
            for key in {(call.route, call.model), (None, call.model)} - {(None, None)}:
                seen.setdefault(key, []).append(per_token)
    return TokenRates(
        {
            (route, model): _fit(sorted(values), route, model)
            for (route, model), values in sorted(seen.items(), key=repr)
            if len(values) >= _SHOWS_ERROR or len(values) >= len(seen.get((None, model), ()))
        },
        dict(routes or {}),
    )


def _fit(values: list[Fraction], route: str | None, model: str | None) -> TokenRate:
    """Rate of sorted times per token, with the error of leaving each out."""
    n = len(values)
    typical = _median(values, n)
    calls = f"{n} call{'s' if n > 1 else ''}"
    of = (f" of route {route}" if route else "") + (f" to {model}" if model else "")
    source = f"median of {calls}{of} that show{'s' if n == 1 else ''} the first token"
    low, high = typical * (1 - _ELSEWHERE_ERROR), typical * (1 + _ELSEWHERE_ERROR)
    if n < _SHOWS_ERROR:
        return TokenRate(typical, low, high, f"{source}; too few to measure the error", n)
    # Actual over estimate: what the estimate would have to be multiplied by.
    ratios = sorted(values[i] / _without(values, i) for i in range(n))
    errors = sorted(abs(1 / ratio - 1) for ratio in ratios)
    p50, p90 = _quantile(errors, 50), _quantile(errors, 90)
    source += (
        f"; each left out and estimated from the others, the error is {float(p50):.0%} (median) "
        f"and {float(p90):.0%} (90th percentile)"
    )
    if n >= _MEASURES_ERROR:
        low, high = typical * _quantile(ratios, 10), typical * _quantile(ratios, 90)
    return TokenRate(typical, min(low, typical), max(high, typical), source, n, p50, p90)


def _without(values: list[Fraction], left_out: int) -> Fraction:
    """Median of sorted values without one of them, by index alone."""
    n = len(values) - 1
    middle = [k + (k >= left_out) for k in (n // 2, (n - 1) // 2)]
    return sum((values[k] for k in middle), Fraction(0)) / 2


def _median(values: list[Fraction], n: int) -> Fraction:
    return (values[n // 2] + values[(n - 1) // 2]) / 2


def _quantile(values: list[Fraction], percent: int) -> Fraction:
    """Nearest-rank quantile of sorted values."""
    return values[max(0, -(-percent * len(values) // 100) - 1)]
