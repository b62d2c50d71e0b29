"""Spans of a stored task, as far as computing it needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.causes import CALL_ID
from gatekeeper.core.span_documents import from_text
from gatekeeper.core.span_lean import call_ids, lean
from gatekeeper.store import spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gatekeeper.core.task_assignment import Routing
    from gatekeeper.core.traces import Span
    from gatekeeper.store.database import Session

__all__ = ["read_spans"]

_LARGE = 2048
"""Characters of a span's document from which it may hold long texts worth leaving out."""


def read_spans(session: Session, task_id: str, routing: Routing, *, limit: int) -> list[Span]:
    """Read up to ``limit`` spans of a task, the large ones without their long texts.

    Which tool-call ids the texts name has to stay, and all ids are known only after all spans:
    where there is a large one, the documents are read twice, one at a time.
    """
    found = []
    ids: frozenset[str] | None = None
    for text in spans.of_task(session, task_id, limit=limit):
        span = from_text(text)
        if len(text) >= _LARGE:
            if ids is None:
                ids = _call_ids(spans.of_task(session, task_id, limit=limit))
            span = lean(span, ids, routing.attributes)
        found.append(span)
    return found


def _call_ids(texts: Iterable[str]) -> frozenset[str]:
    """Tool-call ids of a task's spans; only a document that has such an attribute is parsed."""
    return call_ids(from_text(text) for text in texts if any(key in text for key in CALL_ID))
