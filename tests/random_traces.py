"""Random span forests with everything that real exports get wrong, for Hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from span_builders import span

if TYPE_CHECKING:
    from gatekeeper.core.traces import Span

KINDS = ("other", "tool", "decode")


@st.composite
def forests(draw: Any, *, most: Any = 7, unfinished: Any = False) -> Any:
    """Spans anywhere relative to their parents: early, outliving, outside, touching, empty."""
    count = draw(st.integers(1, most))
    made = []
    for i in range(count):
        start = draw(st.integers(0, 9))
        end: int | None = start + draw(st.integers(0, 5))
        if unfinished and draw(st.integers(0, 5)) == 0:
            end = None
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        made.append(
            span(
                f"s{i}",
                start,
                end,
                parent=None if parent is None else f"s{parent}",
                kind=draw(st.sampled_from(KINDS)),
            )
        )
    return made


@st.composite
def tangles(draw: Any, *, most: int = 6) -> list[Span]:
    """Forests with orphans, streaming consumers, links, skew of whole subtrees, duplicates.

    A call streams its answer: what is below it may start in the middle of its decoding. Calls are
    not nested in calls or in server phases, which is a matter of its own.
    """
    made: list[Span] = []
    kinds: list[str] = []
    parents: list[int | None] = []
    for i in range(draw(st.integers(1, most))):
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        above = set()
        at = parent
        while at is not None:
            above.add(kinds[at])
            at = parents[at]
        allowed = ["other", "tool"]
        if "call" not in above:
            allowed.append("decode")
            if "decode" not in above:
                allowed.append("call")
        kind = draw(st.sampled_from(allowed))
        made.append(_one(draw, i, made, parent, kind))
        kinds.append(kind)
        parents.append(parent)
    if made and draw(st.booleans()):  # the clock of one host is off
        host, offset = draw(st.integers(0, len(made) - 1)), draw(st.integers(-3, 3))
        made = [_shifted(s, offset) if _within(parents, i, host) else s for i, s in enumerate(made)]
    copies = draw(st.lists(st.sampled_from(made), max_size=2))
    return [*made, *copies]


def _one(draw: Any, i: int, made: list[Span], parent: int | None, kind: str) -> Span:
    near = 0 if parent is None else made[parent].start_ns
    start = near + draw(st.integers(-1, 7)) if parent is not None else draw(st.integers(0, 9))
    end = start + draw(st.integers(0, 6))
    more: dict[str, Any] = {}
    if kind == "call":
        more["langfuse.completion_start_ns"] = draw(st.integers(start, end))
        more["gen_ai.usage.output_tokens"] = 1
    named = None if parent is None else f"s{parent}"
    if parent is None and draw(st.integers(0, 4)) == 0:
        named = "never-exported"
    links = draw(st.lists(st.integers(0, i - 1), max_size=1)) if i else []
    lost = draw(st.integers(0, 7)) == 0
    return span(
        f"s{i}",
        start,
        None if lost else end,
        parent=named,
        kind="model" if kind == "call" else kind,
        links=tuple(f"s{j}" for j in links),
        **more,
    )


def _shifted(one: Span, offset: int) -> Span:
    moved = dict(one.attributes)
    if "langfuse.completion_start_ns" in moved:
        moved["langfuse.completion_start_ns"] += offset
    end = None if one.end_ns is None else one.end_ns + offset
    return replace(one, start_ns=one.start_ns + offset, end_ns=end, attributes=moved)


def _within(parents: list[int | None], i: int, host: int) -> bool:
    at: int | None = i
    while at is not None and at != host:
        at = parents[at]
    return at == host
