"""What a dialect is: the names by which one instrumentation says what a span was.

All fields are tables. Of every table, the first dialect in `gatekeeper.core.dialects.DIALECTS` that
knows a name decides, and unknown names are left alone, so a dialect can be added without looking
at the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MILLISECOND", "SECOND", "Delay", "Dialect", "Named", "ServerPhases"]

SECOND = 10**9
MILLISECOND = 10**6


@dataclass(frozen=True)
class Named:
    """Spans whose name tells their kind.

    ``pattern`` is matched from the start of the name without regard to case. A plain name that
    anybody could use counts only where the attribute ``needs`` stands beside it.
    """

    pattern: str
    kind: str
    needs: str | None = None


@dataclass(frozen=True)
class Delay:
    """An attribute with a time counted from the start of its span; ``unit_ns`` of its number."""

    key: str
    unit_ns: int


@dataclass(frozen=True)
class ServerPhases:
    """Attributes with the lengths of a request's phases inside the server.

    ``inference`` is prefill and decode together; ``first_token`` counts from the request's arrival,
    ``whole`` is the request from its arrival to its end.
    """

    queue: Delay
    prefill: Delay
    decode: Delay
    inference: Delay
    first_token: Delay
    whole: Delay


@dataclass(frozen=True)
class Dialect:
    """The names of one instrumentation. Attribute names are exact, values in any case.

    Attributes:
        name: how rules are shown.
        kind_by_value: attribute, and the kind that each of its values means.
        kind_by_name: span names, where no value told.
        kind_by_presence: attribute whose mere presence tells the kind, where no name did.
        output_tokens: counts of output tokens.
        input_tokens: counts of input tokens, to take off a total where output is not counted.
        total_tokens: counts of both.
        models: names of the model; the one asked for before the one that answered.
        first_token_delays: first-token times since the start of the call.
        first_token_times: first-token times in nanoseconds since the Unix epoch.
        first_token_events: span events at the first token.
        answer_lengths: ends of the answer since the start of the call, where the span may stay
            open longer.
        server_phases: phases that the server measured.
        span_names: names of this dialect's own spans; ``attempt_counts`` mean nothing elsewhere.
        attempt_counts: how many attempts one span covers; 1 is none but the first.
        attempt_events: span events at the start of each attempt.
        resend_counts: how many times a request was sent again, here or on an HTTP span below.
        error_statuses: HTTP status of a call that failed.
        restates_parent: names of spans that repeat the time of the span above.
        waits_for_prefill: attribute of a decode span that began together with its prefill.
        separates_human_wait: whether waiting for a person has spans of its own, so that the tools'
            time holds none.
    """

    name: str
    kind_by_value: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kind_by_name: tuple[Named, ...] = ()
    kind_by_presence: Mapping[str, str] = field(default_factory=dict)
    output_tokens: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    total_tokens: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    first_token_delays: tuple[Delay, ...] = ()
    first_token_times: tuple[str, ...] = ()
    first_token_events: tuple[str, ...] = ()
    answer_lengths: tuple[Delay, ...] = ()
    server_phases: ServerPhases | None = None
    span_names: str | None = None
    attempt_counts: tuple[str, ...] = ()
    attempt_events: tuple[str, ...] = ()
    resend_counts: tuple[str, ...] = ()
    error_statuses: tuple[str, ...] = ()
    restates_parent: tuple[str, ...] = ()
    waits_for_prefill: tuple[str, ...] = ()
    separates_human_wait: bool = False
