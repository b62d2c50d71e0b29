"""A span without the texts that no figure of its task depends on.

What people, models and tools wrote can be many times as large as everything else of a task, and while
the task is computed only one thing in it counts: which tool-call ids a model call names, since they say
which call caused which tool (`gatekeeper.core.causes`). So a long text gives way to the ids in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.core.causes import CALL_ID, ids_named
from gatekeeper.core.dialects.vocabulary import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.traces import Span

__all__ = ["LONG_TEXT", "call_ids", "lean"]

LONG_TEXT = 256
"""Characters of an attribute's value, written as JSON, from which it is long."""

_READ = frozenset(CALL_ID).union(
    (key for key, _ in VOCABULARY.kind_by_value),
    VOCABULARY.models,
    VOCABULARY.output_tokens,
    VOCABULARY.input_tokens,
    VOCABULARY.total_tokens,
)


def call_ids(spans: Iterable[Span]) -> frozenset[str]:
    """Tool-call ids that these spans have as their own."""
    values = (span.attributes.get(key) for span in spans for key in CALL_ID)
    return frozenset(value for value in values if isinstance(value, str))


def lean(
    span: Span, ids: frozenset[str], read: frozenset[str] = frozenset(), *, longest: int = LONG_TEXT
) -> Span:
    """Leave the tool-call ids of every long attribute, of the span and of its events.

    Args:
        span: the span.
        ids: tool-call ids of its task.
        read: attributes whose values are looked at as such, by routing rules for example.
        longest: characters from which a value is long.
    """
    kept = _READ | read
    events = span.events
    if any(event.attributes for event in events):
        events = tuple(
            replace(event, attributes=_lean(event.attributes, ids, kept, longest))
            for event in events
        )
    return replace(span, attributes=_lean(span.attributes, ids, kept, longest), events=events)


def _lean(
    attributes: Mapping[str, Any], ids: frozenset[str], kept: frozenset[str], longest: int
) -> dict[str, Any]:
    found = {}
    for key, value in attributes.items():
        if isinstance(value, (str, list, dict)) and key not in kept:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found[key] = value if len(text) < longest else " ".join(sorted(ids_named(text, ids)))
        else:
            found[key] = value
    return found
