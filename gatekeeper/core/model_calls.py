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
from typing import TYPE_CHECKING, Any

from gatekeeper.core.call_attempts import Attempts, attempts_of
from gatekeeper.core.dialects.vocabulary import VOCABULARY
from gatekeeper.core.token_rates import ASSUMED_RATE, TokenRate, TokenRates, observed_rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from gatekeeper.core.dialects.base import Delay, ServerPhases
    from gatekeeper.core.traces import Span

__all__ = [
    "ASSUMED_RATE",
    "RAISES_GRADE",
    "CallTiming",
    "Phase",
    "TokenRate",
    "TokenRates",
    "model_name",
    "observed_rates",
    "outlasts",
    "output_tokens",
    "phased_call",
    "split",
    "timing",
]

_SECOND = 10**9
_MILLISECOND = 10**6
_TOO_MUCH = 10**15

RAISES_GRADE: Mapping[str, str] = {
    "D": "put gen_ai.usage.output_tokens on model spans (grade C), or stream and put "
    "gen_ai.response.time_to_first_chunk there (grade B)",
    "C": "stream and put gen_ai.response.time_to_first_chunk on model spans (grade B)",
    "B": "collect the server's spans too (vLLM: --otlp-traces-endpoint), whose "
    "gen_ai.latency.time_in_queue, .time_in_model_prefill and .time_in_model_decode give grade A",
}
"""What to record in order to leave each grade; grade A has nothing to add."""

_REFUSED = frozenset({400, 401, 402, 403, 404, 405, 409, 413, 415, 422, 429, 503, 529})
"""HTTP statuses by which a server refuses a request before it decodes anything. Others, such as a
timeout, may come after a good part of the answer."""


@dataclass(frozen=True)
class Phase:
    """A stretch of a model call: segment kind, start and end in nanoseconds since the epoch."""

    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class CallTiming:
    """What one model span says of its own timing.

    ``phases`` cover the span for grades A and B and are empty for C and D, which need a rate, and
    where the phases are spans of their own. ``rule`` says in words what the grade rests on.
    ``attempts`` is how many attempts the span covers; ``began_ns`` the start of the last of several,
    None where it is unknown.
    """

    grade: str
    phases: tuple[Phase, ...]
    output_tokens: int | None
    problems: tuple[str, ...] = ()
    model: str | None = None
    rule: str = ""
    attempts: int = 1
    began_ns: int | None = None
    route: str | None = None


def output_tokens(attributes: Mapping[str, Any]) -> int | None:
    """Output tokens a span reports; None when it reports none, or zero, which exporters write
    for "unknown". A total without its output counts less the input.
    """  # noqa: D205 - the second clause belongs to the first
    found = _tokens(attributes)
    return None if found is None else found[0]


def timing(span: Span, inside: Sequence[Span] = (), lender: Span | None = None) -> CallTiming:
    """Read a model span's phases and grade from whatever dialect it speaks.

    Args:
        span: the model span.
        inside: plain spans below it, such as the HTTP requests that it made.
        lender: a span about the same call, which tells what this one does not.
    """
    counted = _tokens(span.attributes)
    if counted is None and lender is not None:
        counted = _tokens(lender.attributes)
    tokens = None if counted is None else counted[0]
    tried = attempts_of(span, inside)
    problems: list[str] = []
    if tried.count > 1:
        problems.append(f"{tried.count} attempts inside one model span")
    grade, phases, rule = _evidence(span, counted, tried, problems)
    return CallTiming(
        grade,
        phases,
        tokens,
        tuple(problems),
        _model(span, lender),
        rule,
        tried.count,
        tried.last_ns,
    )


def phased_call(span: Span, lender: Span | None = None) -> CallTiming:
    """Timing of a call whose prefill and decode are spans of their own, at or below ``span``."""
    counted = _tokens(span.attributes)
    if counted is None and lender is not None:
        counted = _tokens(lender.attributes)
    tokens = None if counted is None else counted[0]
    rule = "spans of their own for prefill and decode"
    return CallTiming("A", (), tokens, model=_model(span, lender), rule=rule)


def split(span: Span, timed: CallTiming, tpot_ns: Fraction) -> tuple[Phase, ...]:
    """Phases that cover the span exactly; ``tpot_ns`` is used for grade C only.

    Grade C puts decode at the end, never longer than the call's last attempt. Grade D stays one
    stretch of ``other``: its decode is unknown, which is not zero.
    """
    if timed.phases:
        return timed.phases
    if span.end_ns is None:
        return ()
    if timed.grade == "C" and timed.output_tokens is not None:
        began = _began(span, timed)
        decode = min(span.end_ns - began, round(timed.output_tokens * tpot_ns))
        return _lay_out(
            span.start_ns,
            span.end_ns,
            (
                ("other", began - span.start_ns),
                ("prefill", span.end_ns - began - decode),
                ("decode", decode),
            ),
        )
    return (Phase("other", span.start_ns, span.end_ns),)


def outlasts(span: Span, timed: CallTiming, tpot_ns: Fraction) -> bool:
    """Whether the estimate of a grade C call is longer than its last attempt, and so was cut."""
    if timed.grade != "C" or span.end_ns is None or timed.output_tokens is None:
        return False
    return timed.output_tokens * tpot_ns > span.end_ns - _began(span, timed)


def _began(span: Span, timed: CallTiming) -> int:
    return span.start_ns if timed.began_ns is None else timed.began_ns


def model_name(attributes: Mapping[str, Any]) -> str | None:
    """Model that a span names in whatever dialect; None when it names none."""
    found = (attributes.get(key) for key in VOCABULARY.models)
    return next((name for name in found if isinstance(name, str) and name), None)


def _model(span: Span, lender: Span | None) -> str | None:
    own = model_name(span.attributes)
    return model_name(lender.attributes) if own is None and lender is not None else own


def _tokens(attributes: Mapping[str, Any]) -> tuple[int, str] | None:
    """Output tokens and the rule that found them."""
    for key, rule in VOCABULARY.output_tokens.items():
        if key in attributes:
            count = _number(attributes[key])
            if count is not None and count >= 1:
                return int(count), rule
    for key, rule in VOCABULARY.total_tokens.items():
        total = _number(attributes.get(key)) if key in attributes else None
        if total is None:
            continue
        for other in VOCABULARY.input_tokens:
            given = _number(attributes.get(other))
            if given is not None and total - given >= 1:
                return int(total - given), f"{rule} less {other}"
    return None


def _evidence(
    span: Span, counted: tuple[int, str] | None, tried: Attempts, problems: list[str]
) -> tuple[str, tuple[Phase, ...], str]:
    """Grade, phases and rule of a model span; the first kind of evidence that holds decides."""
    if span.end_ns is None:
        problems.append("model call without an end: grade D")
        return "D", (), "the call has no end"
    tokens = None if counted is None else counted[0]
    for phases, dialect in VOCABULARY.server_phases:
        found = _server_phases(span, span.end_ns, phases, tokens, problems)
        if found is not None:
            return "A", found[0], f"{dialect}: {found[1]}"
    client = _client_phases(span, span.end_ns, tokens, tried, problems)
    if client is not None:
        return "B", client[0], client[1]
    if counted is not None:
        return "C", (), f"{counted[1]} × time per output token"
    status = _refusal(span.attributes)
    if status is not None:
        whole = Phase("other", span.start_ns, span.end_ns)
        return "B", (whole,), f"refused with status {status}: nothing was decoded"
    return "D", (), "neither phases nor a first token nor output tokens"


def _server_phases(
    span: Span, end_ns: int, names: ServerPhases, tokens: int | None, problems: list[str]
) -> tuple[tuple[Phase, ...], str] | None:
    if names.prefill.key not in span.attributes and names.decode.key not in span.attributes:
        return None
    queue, prefill, decode, inference, first, whole = (
        _delay(span, one)
        for one in (
            names.queue,
            names.prefill,
            names.decode,
            names.inference,
            names.first_token,
            names.whole,
        )
    )
    rule = f"{names.prefill.key} and {names.decode.key}"
    if decode is None and inference is not None and prefill is not None:
        decode, rule = inference - prefill, f"{names.inference.key} less {names.prefill.key}"
    elif prefill is None and inference is not None and decode is not None:
        prefill, rule = inference - decode, f"{names.inference.key} less {names.decode.key}"
    elif decode is None and whole is None and prefill is not None and (tokens or 0) <= 1:
        decode, rule = 0, f"{names.prefill.key} of a server that only prefills"
    if prefill is None or decode is None or prefill < 0 or decode < 0:
        return None
    waited = (queue or 0) + prefill
    length = end_ns - span.start_ns
    excess = waited + decode - length
    if excess > max(_MILLISECOND, length // 100):
        problems.append(
            f"span {span.span_id}: server phases exceed the span by {excess / _SECOND:.3f} s, not used"
        )
        return None
    decode -= max(0, excess)  # rounding of the exporter's clock
    if decode < 0:
        return None
    # What the phases leave of the span (tokenizing, transport) stays visible as other: before the
    # queue as far as the first token says so, the rest at the end.
    before = 0 if first is None else min(max(0, first - waited), length - waited - decode)
    lengths = (("other", before), ("queue", queue or 0), ("prefill", prefill), ("decode", decode))
    return _lay_out(span.start_ns, end_ns, lengths), rule


def _client_phases(
    span: Span, end_ns: int, tokens: int | None, tried: Attempts, problems: list[str]
) -> tuple[tuple[Phase, ...], str] | None:
    began = span.start_ns if tried.last_ns is None else tried.last_ns
    for moments, source in _first_tokens(span, tried):
        first = next((at for at in moments if began <= at <= end_ns), None)
        if first is None:
            problems.append(
                f"span {span.span_id}: first token outside the span, not used"
                if moments
                else f"span {span.span_id}: its first-token time does not say of which attempt, "
                "not used"
            )
            return None
        if first == end_ns and (tokens or 0) > 1:
            # Not streamed: the whole answer arrived at once, so this is no first-token time.
            return None
        decode, rule = end_ns - first, source
        for length in VOCABULARY.answer_lengths:
            finish = _delay(span, length)
            if finish is not None and first - span.start_ns <= finish <= end_ns - span.start_ns:
                decode = span.start_ns + finish - first
                rule = f"{source} to {length.key}"
                break
        lengths = (
            ("other", began - span.start_ns),
            ("prefill", first - began),
            ("decode", decode),
        )
        return _lay_out(span.start_ns, end_ns, lengths), rule
    return None


def _first_tokens(span: Span, tried: Attempts) -> Iterator[tuple[tuple[int, ...], str]]:
    """Each record of the first token: the moments it may mean, the likelier first, and its rule.

    A delay counts from the start of the call. After a failed attempt it may count from the start
    of the last one instead: then the later moment is taken, which makes decode shorter and never
    overstates a saving; where that start is unknown, so is the moment.
    """
    for name, rule in VOCABULARY.first_token_times.items():
        at = span.attributes.get(name)
        if isinstance(at, int) and not isinstance(at, bool):
            yield (at,), rule
    for event in span.events:
        if event.name in VOCABULARY.first_token_events:
            yield (event.time_ns,), VOCABULARY.first_token_events[event.name]
    for key, rule in VOCABULARY.first_token_delays:
        delay = _delay(span, key)
        if delay is None:
            continue
        if tried.count == 1:
            moments: tuple[int, ...] = (span.start_ns + delay,)
        elif tried.last_ns is None:
            moments = ()
        else:
            moments = (tried.last_ns + delay, span.start_ns + delay)
        yield moments, rule


def _refusal(attributes: Mapping[str, Any]) -> int | None:
    """HTTP status by which the server refused the request, None where it did not."""
    for key in VOCABULARY.error_statuses:
        status = _number(attributes.get(key))
        if status is not None and status in _REFUSED:
            return int(status)
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


def _number(value: object) -> Decimal | int | None:
    """Return a number from 0 to what any duration or count can be, however JSON wrote it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, int):
        return value if 0 <= value < _TOO_MUCH else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    # A few bytes of text can write a number that no memory holds as an integer.
    return number if number.is_finite() and 0 <= number < _TOO_MUCH else None


def _delay(span: Span, key: Delay) -> int | None:
    """Nanoseconds that an attribute holds in its own unit; None when it holds no such number."""
    if key.key not in span.attributes:
        return None
    number = _number(span.attributes[key.key])
    return None if number is None else round(number * key.unit_ns)
