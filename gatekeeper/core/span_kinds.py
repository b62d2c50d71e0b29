"""Which kind of time a span is, in whatever dialect it speaks.

The first rule that matches wins: an attribute's value, then the span's name, then the mere presence
of an attribute; within each, dialects in their order (`gatekeeper.core.dialects`). Kinds are those
of the task-time equation, plus ``model``: a call to a model whose own time still has to be split
into queue, prefill and decode (`gatekeeper.core.model_calls`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gatekeeper.core.dialects.vocabulary import VOCABULARY, Classified
from gatekeeper.core.segment_kinds import KINDS, MODEL, WORK

if TYPE_CHECKING:
    from gatekeeper.core.traces import Span

__all__ = ["KINDS", "MODEL", "WORK", "Classified", "classify"]

_NO_RULE = Classified("other", "no rule", told=False)
# Names are few and repeat; those of a hostile trace must not fill the memory.
_NAMES_KEPT = 4096
_LONGEST_KEPT = 200


def classify(span: Span) -> Classified:
    """Kind of a span and the rule that decided; ``other`` by no rule when nothing matches."""
    attributes = span.attributes
    for key, meaning in VOCABULARY.kind_by_value:
        value = attributes.get(key)
        if value is not None and isinstance(value, str):
            found = meaning.get(value.casefold())
            if found is not None:
                return found
    name = span.name
    for needs, found in _kept(name) if len(name) <= _LONGEST_KEPT else _named(name):
        if needs is None or needs in attributes:
            return found
    for key, found in VOCABULARY.kind_by_presence:
        if key in attributes:
            return found
    return _NO_RULE


def _named(name: str) -> tuple[tuple[str | None, Classified], ...]:
    """Rules that a span's name fits, each with the attribute it needs."""
    return tuple(
        (needs, found) for pattern, needs, found in VOCABULARY.kind_by_name if pattern.match(name)
    )


_kept = lru_cache(_NAMES_KEPT)(_named)
