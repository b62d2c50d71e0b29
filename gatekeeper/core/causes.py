"""Explicit causes between spans: links, and tool-call ids that pass through messages."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from gatekeeper.core.span_kinds import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.tasks import Work

__all__ = ["CALL_ID", "causes_of", "ids_named"]

CALL_ID = ("gen_ai.tool.call.id", "ai.toolCall.id", "tool_call.id", "tool_call_id")
"""Attributes with the id by which a model call asked for a tool."""

_OUTPUT = re.compile(r"output|response|completion", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9_\-]{6,}")


def causes_of(works: Sequence[Work]) -> tuple[tuple[int, int], ...]:
    """Pairs (cause, effect) of indices of spans that take part in the graph, sorted.

    A link says so itself. A model call whose output names a tool-call id caused that tool, even
    before the call ended: a streaming consumer starts in the middle of decoding. The tool caused
    the next model call whose input names the id.
    """
    return tuple(sorted({*_links(works), *_tool_calls(works)}))


def _links(works: Sequence[Work]) -> Iterable[tuple[int, int]]:
    linking = [i for i, w in enumerate(works) if w.span.links and not w.absorbed]
    if not linking:
        return
    live = {w.span.span_id: i for i, w in enumerate(works) if not w.absorbed}
    for i in linking:
        span = works[i].span
        for link in span.links:
            cause = live.get(link.span_id, i)
            if cause != i and link.trace_id == works[0].span.trace_id:
                yield (cause, i)


def _tool_calls(works: Sequence[Work]) -> Iterable[tuple[int, int]]:
    tools = _tools_by_call_id(works)
    if not tools:
        return
    answered: set[int] = set()
    for i, work in enumerate(works):  # in order of start, so the first match is the next call
        if work.kind != MODEL or work.absorbed:
            continue
        asked, given = _mentions(work.span.attributes, tools.keys())
        for tool in (t for name in asked for t in tools[name]):
            if works[tool].span.start_ns >= work.span.start_ns:
                yield (i, tool)
        for tool in (t for name in given for t in tools[name]):
            end = works[tool].end_ns
            if end is not None and end <= work.span.start_ns and tool not in answered:
                answered.add(tool)
                yield (tool, i)


def _tools_by_call_id(works: Sequence[Work]) -> dict[str, list[int]]:
    tools: dict[str, list[int]] = {}
    for i, work in enumerate(works):
        if work.kind != "tool" or work.absorbed:
            continue
        values = {work.span.attributes.get(key) for key in CALL_ID}
        for value in sorted(v for v in values if isinstance(v, str)):
            tools.setdefault(value, []).append(i)
    return tools


def ids_named(text: str, known: frozenset[str]) -> frozenset[str]:
    """Which of these tool-call ids stand in a text."""
    return known.intersection(_WORD.findall(text))


def _mentions(
    attributes: Mapping[str, Any], names: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Tool-call ids that a call's output and its input name; an id in both belongs to the input.

    A conversation's input repeats earlier outputs, never the other way round.
    """
    known = frozenset(names)
    output: set[str] = set()
    given: set[str] = set()
    for key, value in attributes.items():
        if value is None or isinstance(value, (int, float)):  # a number names nothing
            continue
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        found = ids_named(text, known)
        if found:
            (output if _OUTPUT.search(key) else given).update(found)
    return frozenset(output - given), frozenset(given)
