"""Attributes that session logs without spans of their own are given, in OpenTelemetry's names.

A session log says what happened when; its reader makes spans of that. What kind of time each
span is then stands in these attributes, so that the rules of `gatekeeper.core.span_kinds` and
`gatekeeper.core.model_calls` need to know nothing of the log.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CALL",
    "HUMAN_WAIT",
    "MAY_HIDE_HUMAN",
    "SESSION",
    "TOOL",
    "WAITS_APART",
    "seconds_ns",
    "usage",
]

SESSION: Mapping[str, Any] = {"gen_ai.operation.name": "invoke_agent"}
"""A session, or an agent inside it: a container."""

CALL: Mapping[str, Any] = {"gen_ai.operation.name": "chat"}
"""One call to a model."""

TOOL: Mapping[str, Any] = {"gen_ai.operation.name": "execute_tool"}
"""Work of a tool."""

HUMAN_WAIT: Mapping[str, Any] = {"gatekeeper.kind": "human_wait"}
"""The log itself says that a person was waited for."""

MAY_HIDE_HUMAN: Mapping[str, Any] = {"gatekeeper.human_wait": "possible"}
"""The log cannot tell work of a tool from waiting for a person's approval of it."""

WAITS_APART: Mapping[str, Any] = {"gatekeeper.human_wait": "apart"}
"""The log tells every wait for a person apart: what is not marked hides none."""

_LARGEST_S = Decimal(10) ** 12  # thirty thousand years: beyond it a number is no duration


def usage(reported: object) -> dict[str, Any]:
    """Token counts of an Anthropic ``usage`` object in OpenTelemetry's names; {} where absent.

    OpenTelemetry counts cached input among the input tokens, Anthropic beside them.
    """
    if not isinstance(reported, dict):
        return {}
    fresh, written, read, output = (
        value if isinstance(value := reported.get(key), int) else None
        for key in (
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "output_tokens",
        )
    )
    found = {
        "gen_ai.usage.input_tokens": (
            None if fresh is None else fresh + (written or 0) + (read or 0)
        ),
        "gen_ai.usage.cache_creation.input_tokens": written,
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.output_tokens": output,
    }
    return {key: value for key, value in found.items() if value is not None}


def seconds_ns(value: object, field: str) -> int:
    """Return seconds, as JSON holds them, in nanoseconds; the decimal that is written counts.

    Raises:
        TraceError: it is no finite number of seconds, or below 0.
    """
    number: Decimal | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            number = None
    if number is None or not number.is_finite() or not 0 <= number < _LARGEST_S:
        raise TraceError(
            "is not a number of seconds",
            field=field,
            value="absent" if value is None else value,
            remedy="write seconds as a JSON number, 0 or more",
        )
    return int((number * 10**9).to_integral_value())
