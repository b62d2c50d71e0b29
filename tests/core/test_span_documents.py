from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.span_documents import LATEST_NS, clean, digest, from_text, to_text
from gatekeeper.core.traces import Span, SpanEvent, SpanLink
from gatekeeper.errors import TraceError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def a_span(**changes: Any) -> Span:
    fields: dict[str, Any] = {"trace_id": "t", "span_id": "s", "name": "n", "start_ns": 1}
    return Span(**{**fields, "end_ns": None, **changes})


@given(st.dictionaries(st.text(), values, max_size=4), st.text())
def test_a_span_comes_back_as_it_was(attributes: dict[str, Any], name: str) -> None:
    one = a_span(
        name=name,
        end_ns=5,
        attributes=attributes,
        events=(SpanEvent("e", 2, attributes),),
        links=(SpanLink("t", "x"),),
    )
    text = to_text(one)
    assert text.isascii()
    assert from_text(text) == one
    assert digest(text) == digest(to_text(from_text(text)))


def test_the_order_of_attributes_does_not_matter_but_every_value_does() -> None:
    one, two = (
        a_span(attributes=dict(pairs)) for pairs in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    )
    assert digest(to_text(one)) == digest(to_text(two))
    assert digest(to_text(one)) != digest(to_text(a_span(attributes={"a": 1, "b": 3})))


def test_what_databases_refuse_survives_as_text() -> None:
    odd = a_span(name="nul \x00 and \ud800", attributes={"x": math.inf})
    assert from_text(to_text(odd)) == odd
    with pytest.raises(ValueError, match="JSON"):
        json.dumps(json.loads(to_text(odd)), allow_nan=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"span_id": "x" * 201},
        {"trace_id": "a\x00b"},
        {"start_ns": -1},
        {"end_ns": -1},
        {"start_ns": LATEST_NS},
        {"end_ns": 10**30},
    ],
)
def test_ids_and_times_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(TraceError):
        to_text(a_span(**changes))


def test_clean() -> None:
    assert (
        clean("a\x00\ud800\nb ü")
        == "a\N{REPLACEMENT CHARACTER}" * 1 + "\N{REPLACEMENT CHARACTER}" * 2 + "b ü"
    )
