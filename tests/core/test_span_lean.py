from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trace_corpus
from benchmark_scripts import script
from span_builders import span, trace

from gatekeeper import plugins
from gatekeeper.core.causes import causes_of
from gatekeeper.core.span_lean import LONG_TEXT, call_ids, lean
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.core.traces import SpanEvent
from gatekeeper.errors import InputError
from gatekeeper.reports.profile import calls_json, profile_json

WORDS = "please look at the order that came in yesterday " * 20
SHORT = 48  # names of machines, models and dialects still fit


def figures(one: Any) -> Any:
    made = profile_task(one)
    return profile_json(made, "x"), calls_json(made)


def leaned(one: Any, longest: int = SHORT) -> Any:
    ids = call_ids(one.spans)
    return replace(one, spans=tuple(lean(s, ids, longest=longest) for s in one.spans))


@pytest.mark.parametrize("name", sorted(script("trace_seeds").seeds()))
def test_no_figure_depends_on_long_texts(name: str) -> None:
    formats = list(plugins.load_all("gatekeeper.traces").values())
    for document in script("trace_seeds").seeds()[name]:
        try:
            traces = read_traces(document, formats)
        except InputError:
            continue  # refused with its reason, whatever its texts
        for one in traces:
            assert figures(leaned(one)) == figures(one)


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
@pytest.mark.parametrize("path", trace_corpus.files(readable=True), ids=trace_corpus.name)
def test_no_figure_of_a_real_file_depends_on_long_texts(path: Any) -> None:
    for one in trace_corpus.traces(path):
        assert figures(leaned(one)) == figures(one)


def called(**answer: Any) -> Any:
    """A call that asks for a tool in a long text, the tool, and the call that is given its result."""
    return trace(
        span("a", 0, 9, kind="model", gen_ai__output__messages=f"{WORDS} call_7 {WORDS}"),
        span("t", 5, 20, kind="tool", gen_ai__tool__call__id="call_7"),
        span("b", 30, 40, kind="model", **answer),
    )


@pytest.mark.parametrize(
    "given", [f"{WORDS} call_7", [{"role": "tool", "text": WORDS, "tool_call_id": "call_7"}]]
)
def test_tool_call_ids_in_long_texts_still_say_what_caused_what(given: Any) -> None:
    whole = called(gen_ai__input__messages=given)
    bare = leaned(whole, LONG_TEXT)
    assert WORDS.strip() not in repr(bare)
    assert causes_of(build_task(bare).works) == causes_of(build_task(whole).works)
    assert len(causes_of(build_task(bare).works)) == 2
    unknown = replace(bare, spans=tuple(lean(s, frozenset()) for s in whole.spans))
    assert causes_of(build_task(unknown).works) == ()


def test_short_values_numbers_and_what_is_read_stay_as_they_are() -> None:
    attributes = {"short": "x" * 9, "n": 10**300, "list": [1, 2], "none": None, "rule": WORDS}
    one = replace(
        span("a", 0, 9), attributes=attributes, events=(SpanEvent("e", 1), SpanEvent("f", 2))
    )
    assert lean(one, frozenset(), frozenset({"rule"})) == one
    noted = replace(one, events=(SpanEvent("e", 1, {"text": WORDS, "n": 1}),))
    assert lean(noted, frozenset()).events[0].attributes == {"text": "", "n": 1}
