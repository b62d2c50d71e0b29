"""Fixtures follow MLflow's documented trace schema: attributes are JSON text inside the JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gatekeeper_adapters.traces.mlflow import FORMAT
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.model_calls import timing
from gatekeeper.core.span_kinds import classify
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

NOON = 1769860800 * 10**9
SECOND = 10**9


def span(span_id: str = "call", parent: str | None = "root", **changes: Any) -> dict[str, Any]:
    """A span of schema 3 that lasts from noon to two seconds later."""
    return {
        "trace_id": "tr-1",
        "span_id": span_id,
        "parent_span_id": parent,
        "name": span_id,
        "start_time_unix_nano": NOON,
        "end_time_unix_nano": NOON + 2 * SECOND,
        "events": [],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        **changes,
        "attributes": {
            key: json.dumps(value) for key, value in changes.get("attributes", LLM).items()
        },
    }


LLM = {
    "mlflow.traceRequestId": "tr-1",
    "mlflow.spanType": "CHAT_MODEL",
    "mlflow.spanInputs": {"model": "small", "messages": []},
    "mlflow.chat.tokenUsage": {
        "input_tokens": 7,
        "output_tokens": 40,
        "total_tokens": 47,
        "cache_read_input_tokens": 3,
    },
    "team": "x",
}
INFO = {
    "trace_id": "tr-1",
    "state": "OK",
    "trace_metadata": {
        "mlflow.trace.session": "chat-7",
        "mlflow.trace.tokenUsage": json.dumps({"input_tokens": 14, "output_tokens": 80}),
    },
    "tags": {"mlflow.traceName": "agent"},
}


def task() -> list[dict[str, Any]]:
    """A root of 6 s: call 0–2, tool 2–3, call 3–5 that streams from 4 on."""
    chunk = {"name": "mlflow.chunk.item.0", "time_unix_nano": NOON + 4 * SECOND, "attributes": {}}
    return [
        span(
            "root",
            None,
            end_time_unix_nano=NOON + 6 * SECOND,
            attributes={"mlflow.spanType": "AGENT", "mlflow.spanInputs": "go"},
        ),
        span(events=[{**chunk, "time_unix_nano": NOON + SECOND // 2}]),
        span(
            "search",
            start_time_unix_nano=NOON + 2 * SECOND,
            end_time_unix_nano=NOON + 3 * SECOND,
            attributes={"mlflow.spanType": "TOOL"},
        ),
        span(
            "call2",
            start_time_unix_nano=NOON + 3 * SECOND,
            end_time_unix_nano=NOON + 5 * SECOND,
            events=[{**chunk, "name": "mlflow.chunk.item.1", "time_unix_nano": NOON + 5}, chunk][
                1:
            ],
        ),
    ]


def whole(spans: Any = None) -> dict[str, Any]:
    return {"info": INFO, "data": {"spans": task() if spans is None else spans}}


def read(value: Any) -> Any:
    return read_traces(json.dumps(value).encode(), [FORMAT])


def only(*changes: Any, **more: Any) -> Any:
    ((one,),) = [t.spans for t in read(whole([span(*changes, **more)]))]
    return one


def test_attributes_are_decoded_and_understood_and_the_rest_is_kept() -> None:
    one = only()
    assert (one.trace_id, one.span_id, one.parent_id) == ("tr-1", "call", "root")
    assert (one.start_ns, one.end_ns) == (NOON, NOON + 2 * SECOND)
    assert {k: v for k, v in one.attributes.items() if k.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 3,
    }
    assert one.attributes["team"] == "x"
    assert one.attributes["mlflow.spanInputs"] == {"model": "small", "messages": []}
    assert one.attributes["mlflow.span.status"] == {"code": "STATUS_CODE_OK", "message": ""}
    assert (timing(one).grade, timing(one).output_tokens) == ("C", 40)


def test_text_that_is_encoded_twice_or_not_at_all() -> None:
    twice = span()
    twice["attributes"] = {"mlflow.spanType": json.dumps(json.dumps("LLM")), "note": "{broken"}
    plain = span()
    plain["attributes"] = {"mlflow.spanType": "LLM", "deep": "[" * 100_000}
    for raw in (twice, plain):
        ((one,),) = [t.spans for t in read(whole([raw]))]
        assert one.attributes["mlflow.spanType"] == "LLM"
        assert classify(one).kind == "model"
    assert one.attributes["deep"] == "[" * 100_000


def test_what_the_span_itself_says_in_other_conventions_is_the_last_word() -> None:
    own = {"mlflow.spanType": "CHAIN", "gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    one = only(attributes=own)
    assert classify(one).kind == "model"
    assert timing(one).model == "m"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("LLM", "model"),
        ("CHAT_MODEL", "model"),
        ("TOOL", "tool"),
        ("RETRIEVER", "tool"),
        ("EMBEDDING", "tool"),
        ("RERANKER", "tool"),
        ("MEMORY", "persistence"),
        ("EVALUATOR", "verification"),
        ("GUARDRAIL", "verification"),
        ("AGENT", "other"),
        ("CHAIN", "other"),
        ("PARSER", "other"),
        ("UNKNOWN", "other"),
        ("MY_OWN", "other"),
    ],
)
def test_span_type_is_the_kind_of_time(kind: str, expected: str) -> None:
    assert classify(only(attributes={"mlflow.spanType": kind})).kind == expected


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN", "WORKFLOW"])
def test_container_with_a_token_total_is_no_model_call(kind: str) -> None:
    assert classify(only(attributes={**LLM, "mlflow.spanType": kind})).kind == "other"


def schema_2(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": raw["name"],
            "context": {"span_id": raw["span_id"], "trace_id": "0x1"},
            "parent_id": raw["parent_span_id"],
            "start_time": raw["start_time_unix_nano"],
            "end_time": raw["end_time_unix_nano"],
            "status_code": "OK",
            "events": [{**e, "timestamp": e["time_unix_nano"]} for e in raw["events"]],
            "attributes": {**raw["attributes"], "mlflow.traceRequestId": '"tr-1"'},
        }
        for raw in spans
    ]


def schema_3(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ids in base64; MLflow's own id of the trace is an attribute."""
    own = {"mlflow.traceRequestId": '"tr-1"'}
    return [
        {**raw, "trace_id": "lfyAlYCiuukpxkUdqZ22TA==", "attributes": {**raw["attributes"], **own}}
        for raw in spans
    ]


def as_objects(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names of the Python object."""
    return [
        {
            "trace_id": "tr-1",
            "span_id": raw["span_id"],
            "parent_id": raw["parent_span_id"],
            "name": raw["name"],
            "start_time_ns": str(raw["start_time_unix_nano"]),
            "end_time_ns": raw["end_time_unix_nano"],
            "events": raw["events"],
            "attributes": raw["attributes"],
        }
        for raw in spans
    ]


@pytest.mark.parametrize(
    "document",
    [
        json.dumps(whole()),
        json.dumps([whole()]),
        json.dumps({"traces": [whole()]}),
        json.dumps({"trace_id": "tr-1", "trace": json.dumps(whole())}),
        json.dumps({"spans": task(), "request": "go", "response": "done"}),
        json.dumps(task()),
        "\n".join(map(json.dumps, reversed(task()))),
        json.dumps(whole(schema_2(task()))),
        json.dumps({"spans": schema_2(task())}),
        json.dumps({"spans": schema_3(task())}),
        json.dumps(as_objects(task())),
    ],
    ids=[
        "json",
        "array",
        "page",
        "row",
        "data",
        "spans",
        "lines",
        "schema2",
        "data2",
        "data3",
        "objects",
    ],
)
def test_every_envelope_and_schema_gives_the_same_task(document: str) -> None:
    (trace,) = read_traces(document.encode(), [FORMAT])
    assert trace.trace_id == "tr-1"
    assert trace.repairs == ()
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert (profiled.evidence_grade, profiled.model_calls) == ("B", 2)
    path = {k: v for k, v in profiled.critical_path_ns.items() if v}
    assert path == {
        "prefill": 3 * SECOND // 2,
        "decode": 5 * SECOND // 2,
        "tool": SECOND,
        "other": SECOND,
    }
    assert profiled.saving.value == 5 * SECOND / 4


def test_root_carries_the_session_the_info_and_a_total_that_is_checked() -> None:
    (trace,) = read(whole())
    root = next(s for s in trace.spans if s.parent_id is None)
    assert root.attributes["gen_ai.conversation.id"] == "chat-7"
    assert root.attributes["gen_ai.agent.name"] == "root"
    assert root.attributes["mlflow.info.tags"] == {"mlflow.traceName": "agent"}
    assert profile_task(trace).task.tokens_agree is True
    wrong = json.dumps({"output_tokens": 81})
    metadata = {**INFO["trace_metadata"], "mlflow.trace.tokenUsage": wrong}  # type: ignore[dict-item]
    (trace,) = read({**whole(), "info": {**INFO, "trace_metadata": metadata}})
    assert profile_task(trace).task.tokens_agree is False


def test_total_of_a_trace_whose_only_span_is_the_call_is_no_second_count() -> None:
    one = only("call", None)
    assert one.attributes["gen_ai.usage.output_tokens"] == 40


def test_event_times_in_microseconds_are_read_as_such_and_noted() -> None:
    event = {"name": "mlflow.chunk.item.0", "time_unix_nano": NOON // 1000 + 500_000}
    (trace,) = read(whole([span(events=[event])]))
    assert trace.spans[0].attributes["gen_ai.response.time_to_first_chunk"] == 0.5
    assert trace.repairs == ("event times count microseconds: read as such",)
    # Cut off to whole microseconds, an event at the very start seems to be before it.
    late = span(start_time_unix_nano=NOON + 700, events=[{**event, "time_unix_nano": NOON // 1000}])
    ((one,),) = [t.spans for t in read(whole([late]))]
    assert one.attributes["gen_ai.response.time_to_first_chunk"] == 0


def test_unfinished_span_and_links() -> None:
    open_ = span("open", end_time_unix_nano=None, links=[{"trace_id": "t", "span_id": "s"}])
    (trace,) = read(whole([span(), open_]))
    (found,) = [s for s in trace.spans if s.span_id == "open"]
    assert found.end_ns is None
    assert [(link.trace_id, link.span_id) for link in found.links] == [("t", "s")]
    assert only("call", "").parent_id is None
    inside = span(links=[{"trace_id": "lfyAlYCiuukpxkUdqZ22TA==", "span_id": "s"}])
    ((one,),) = [t.spans for t in read(whole(schema_3([inside])))]
    assert [link.trace_id for link in one.links] == ["tr-1"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"info": INFO, "data": None}, "holds no spans.*info alone"),
        ({"info": INFO}, "holds no spans"),
        (whole([]), "holds no spans"),
        (whole([span(end_time_unix_nano=None)]), "no span has ended"),
        (whole([span(end_time_unix_nano=0)]), "no span has ended"),
    ],
)
def test_traces_that_give_no_timings_are_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("span_id", None),
        ("span_id", 5),
        ("parent_span_id", 5),
        ("start_time_unix_nano", None),
        ("start_time_unix_nano", 0),
        ("start_time_unix_nano", "noon"),
        ("end_time_unix_nano", 1.5),
        ("events", {}),
        ("links", [{"trace_id": 1}]),
    ],
)
def test_broken_fields_are_named(field: str, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        read(whole([span(**{field: value})]))
    assert caught.value.field is not None
    assert caught.value.field.startswith(f"spans[0].{field}")
    assert caught.value.remedy


def test_span_without_any_trace_id_is_named() -> None:
    with pytest.raises(TraceError) as caught:
        read([span(trace_id=None, attributes={})])
    assert caught.value.field == "spans[0].trace_id"


def test_other_documents_are_not_accepted() -> None:
    others = [
        {"spans": [{"spanID": "a", "operationName": "b"}]},
        {"resourceSpans": []},
        {"data": [{"spans": [{"traceID": "t"}]}]},
        {"spans": [{"context": {"span_id": "a"}, "start_time": "2026", "attributes": {"llm": 1}}]},
        {"spans": [{"span_id": "a", "start_time_unix_nano": 1, "attributes": []}]},
        {"info": {"trace_id": "t"}, "data": 3},
        {"trace": {"id": "t"}, "observations": []},
        [1, None],
    ]
    for other in others:
        assert not FORMAT.accepts(decode(json.dumps(other).encode()))


SCALARS = [None, True, 0, -1, 1.5, 10**400, float("nan"), float("-inf"), "", "x", "9", "\ud800"]
HOSTILE = st.sampled_from([*SCALARS, [], [1], [[]], [{}], [None], {}, {"": 1}, {"id": [], "x": {}}])


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*span(), "links", "context"]), HOSTILE),
    st.dictionaries(st.sampled_from([*LLM, "mlflow.llm.model"]), HOSTILE),
    st.dictionaries(st.sampled_from([*INFO, "request_id", "request_metadata"]), HOSTILE),
)
def test_hostile_traces_raise_nothing_but_the_declared_error(
    changes: Any, attributes: Any, info: Any
) -> None:
    raw = {**span(attributes=attributes), **changes}
    try:
        for trace in read({"info": {**INFO, **info}, "data": {"spans": [*task(), raw]}}):
            profile_task(trace)
    except TraceError:
        pass
