"""How a model call's time splits into queue, prefill and decode, and how well that is known.

Evidence grades of a call:

    A  the server's own phases are on the span
    B  the client saw the first token; the queue folds into prefill
    C  only output tokens: decode = tokens × an estimate of the time per output token
    D  nothing usable: the call's time is known, its split is not
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.traces import Span

__all__ = [
    "ASSUMED_RATE",
    "RAISES_GRADE",
    "CallTiming",
    "Phase",
    "TokenRate",
    "model_name",
    "observed_rates",
    "split",
    "timing",
]

_SECOND = 10**9
_MILLISECOND = 10**6

RAISES_GRADE: Mapping[str, str] = {
    "D": "put gen_ai.usage.output_tokens on model spans (grade C), or stream and put "
    "gen_ai.response.time_to_first_chunk there (grade B)",
    "C": "stream and put gen_ai.response.time_to_first_chunk on model spans (grade B)",
    "B": "collect the server's spans too (vLLM: --otlp-traces-endpoint), whose "
    "gen_ai.latency.time_in_queue, .time_in_model_prefill and .time_in_model_decode give grade A",
}
"""What to record in order to leave each grade; grade A has nothing to add."""


@dataclass(frozen=True)
class Phase:
    """A stretch of a model call: segment kind, start and end in nanoseconds since the epoch."""

    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class TokenRate:
    """Time per output token in nanoseconds: a typical value and the range it is trusted in."""

    typical_ns: Fraction
    low_ns: Fraction
    high_ns: Fraction
    source: str

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

_ESTIMATE_ERROR = Fraction(39, 100)
"""90th percentile of the relative error of the grade C estimate with a route's own rate, over
4,134 real calls whose first-token time was known (median 15 %)."""


@dataclass(frozen=True)
class CallTiming:
    """What one model span says of its own timing.

    ``phases`` cover the span for grades A and B and are empty for C and D, which need a rate.
    """

    grade: str
    phases: tuple[Phase, ...]
    output_tokens: int | None
    problems: tuple[str, ...] = ()
    model: str | None = None


_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
    "langfuse.usage.output",
    "output_tokens",
)
"""Output-token counts of all dialects, newest name first."""

_MODEL_NAMES = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "langfuse.model",
    "ai.model.id",
)
"""Model names of all dialects; the one asked for first, since answers may add a date."""

_FIRST_TOKEN: tuple[tuple[str, int], ...] = (
    ("gen_ai.response.time_to_first_chunk", _SECOND),
    ("gen_ai.server.time_to_first_token", _SECOND),
    ("gen_ai.latency.time_to_first_token", _SECOND),
    ("ai.response.msToFirstChunk", _MILLISECOND),
    ("ttft_ms", _MILLISECOND),
)
"""First-token delays of all dialects and the unit of each in nanoseconds."""

_FIRST_TOKEN_EVENTS = ("First Token Stream Event", "gen_ai.content.first_token")


def output_tokens(attributes: Mapping[str, Any]) -> int | None:
    """Output tokens a span reports; None when it reports none, or zero, which exporters write
    for "unknown".
    """  # noqa: D205 - the second clause belongs to the first
    for key in _TOKENS:
        count = _number(attributes.get(key))
        if count is not None and count >= 1:
            return int(count)
    return None


def timing(span: Span) -> CallTiming:
    """Read a model span's phases and grade from whatever dialect it speaks."""
    tokens = output_tokens(span.attributes)
    model = model_name(span.attributes)
    problems: list[str] = []
    if span.end_ns is None:
        return CallTiming("D", (), tokens, ("model call without an end: grade D",), model)
    for grade, phases in (
        ("A", _server_phases(span, span.end_ns, problems)),
        ("B", _client_phases(span, span.end_ns, tokens, problems)),
    ):
        if phases:
            return CallTiming(grade, phases, tokens, tuple(problems), model)
    return CallTiming("C" if tokens is not None else "D", (), tokens, tuple(problems), model)


def split(span: Span, timed: CallTiming, tpot_ns: Fraction) -> tuple[Phase, ...]:
    """Phases that cover the span exactly; ``tpot_ns`` is used for grade C only.

    Grade C puts decode at the end, never longer than the call. Grade D stays one stretch of
    ``other``: its decode is unknown, which is not zero.
    """
    if timed.phases:
        return timed.phases
    if span.end_ns is None:
        return ()
    if timed.grade == "C" and timed.output_tokens is not None:
        decode = min(span.end_ns - span.start_ns, round(timed.output_tokens * tpot_ns))
        wait = span.end_ns - span.start_ns - decode
        return _lay_out(span.start_ns, span.end_ns, (("prefill", wait), ("decode", decode)))
    return (Phase("other", span.start_ns, span.end_ns),)


def observed_rates(calls: Iterable[CallTiming]) -> dict[str, TokenRate]:
    """Median time per output token of each model's calls of grade A and B.

    Models differ too much to lend each other a rate. The range is the error that the estimate
    has on other calls of its route.
    """
    seen: dict[str, list[Fraction]] = {}
    for call in calls:
        decode = sum(p.end_ns - p.start_ns for p in call.phases if p.kind == "decode")
        if decode and call.output_tokens and call.model:
            seen.setdefault(call.model, []).append(Fraction(decode, call.output_tokens))
    rates = {}
    for model, values in sorted(seen.items()):
        values.sort()
        typical = (values[len(values) // 2] + values[(len(values) - 1) // 2]) / 2
        rates[model] = TokenRate(
            typical,
            typical * (1 - _ESTIMATE_ERROR),
            typical * (1 + _ESTIMATE_ERROR),
            f"median of {len(values)} calls to this model that show their first token",
        )
    return rates


def model_name(attributes: Mapping[str, Any]) -> str | None:
    """Model that a span names in whatever dialect; None when it names none."""
    found = (attributes.get(key) for key in _MODEL_NAMES)
    return next((name for name in found if isinstance(name, str) and name), None)


def _server_phases(span: Span, end_ns: int, problems: list[str]) -> tuple[Phase, ...]:
    read = {
        name: _nanoseconds(span.attributes.get(f"gen_ai.latency.{name}"), _SECOND)
        for name in (
            "time_in_queue",
            "time_in_model_prefill",
            "time_in_model_decode",
            "time_in_model_inference",
        )
    }
    queue, prefill, decode = (read[name] for name in list(read)[:3])
    inference = read["time_in_model_inference"]
    if decode is None and inference is not None and prefill is not None:
        decode = inference - prefill
    if prefill is None and inference is not None and decode is not None:
        prefill = inference - decode
    if prefill is None or decode is None or prefill < 0 or decode < 0:
        return ()
    excess = (queue or 0) + prefill + decode - (end_ns - span.start_ns)
    if excess > max(_MILLISECOND, (end_ns - span.start_ns) // 100):
        problems.append(
            f"span {span.span_id}: server phases exceed the span by {excess / _SECOND:.3f} s, not used"
        )
        return ()
    decode -= max(0, excess)  # rounding of the exporter's clock
    if decode < 0:
        return ()
    # What the phases leave of the span (tokenizing, transport) stays visible as other.
    return _lay_out(
        span.start_ns, end_ns, (("queue", queue or 0), ("prefill", prefill), ("decode", decode))
    )


def _client_phases(
    span: Span, end_ns: int, tokens: int | None, problems: list[str]
) -> tuple[Phase, ...]:
    first = _first_token(span)
    if first is None:
        return ()
    if not span.start_ns <= first <= end_ns:
        problems.append(f"span {span.span_id}: first token outside the span, not used")
        return ()
    if first == end_ns and (tokens or 0) > 1:
        # Not streamed: the whole answer arrived at once, so this is no first-token time.
        return ()
    finish = _nanoseconds(span.attributes.get("ai.response.msToFinish"), _MILLISECOND)
    prefill = first - span.start_ns
    decode = end_ns - first
    if finish is not None and prefill <= finish <= end_ns - span.start_ns:
        decode = finish - prefill  # the span stays open for tools that run in the stream
    return _lay_out(span.start_ns, end_ns, (("prefill", prefill), ("decode", decode)))


def _first_token(span: Span) -> int | None:
    at = span.attributes.get("langfuse.completion_start_ns")
    if isinstance(at, int):
        return at
    for event in span.events:
        if event.name in _FIRST_TOKEN_EVENTS:
            return event.time_ns
    for key, unit in _FIRST_TOKEN:
        delay = _nanoseconds(span.attributes.get(key), unit)
        if delay is not None:
            return span.start_ns + delay
    return None


def _lay_out(start: int, end: int, lengths: Iterable[tuple[str, int]]) -> tuple[Phase, ...]:
    phases = []
    at = start
    for kind, length in lengths:
        if length:
            phases.append(Phase(kind, at, at + length))
            at += length
    if at < end:
        phases.append(Phase("other", at, end))
    return tuple(phases)


def _number(value: object) -> Decimal | None:
    """Return a finite, non-negative number however JSON wrote it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() and number >= 0 else None


def _nanoseconds(value: object, unit: int) -> int | None:
    number = _number(value)
    return None if number is None else round(number * unit)
