from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import trace_corpus
from gatekeeper_adapters.traces.langsmith import FORMAT
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.model_calls import timing
from gatekeeper.core.span_kinds import classify
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.errors import TraceError

NOON = 1769860800 * 10**9  # 2026-01-31T12:00:00Z
SECOND = 10**9


def run(**changes: Any) -> dict[str, Any]:
    return {
        "id": "call",
        "trace_id": "task",
        "parent_run_id": "task",
        "name": "Model",
        "run_type": "llm",
        "start_time": "2026-01-31T12:00:00.000000Z",
        "end_time": "2026-01-31T12:00:02.000000Z",
        "events": [
            {"name": "new_token", "time": "2026-01-31T12:00:00.750000Z", "kwargs": {"token": "b"}},
            {"name": "new_token", "time": "2026-01-31T12:00:00.500000Z", "kwargs": {"token": "a"}},
            {"name": "end", "time": None},
        ],
        "extra": {
            "metadata": {
                "ls_model_name": "small",
                "ls_provider": "me",
                "thread_id": "t",
                "team": 1,
            },
            "runtime": {"sdk": "x"},
        },
        "outputs": {
            "model": "small-1",
            "usage_metadata": {
                "input_tokens": 7,
                "output_tokens": 40,
                "input_token_details": {"cache_read": 3},
                "output_token_details": {"reasoning": 5},
            },
        },
        "session_name": "shop",
        "status": "success",
        "error": None,
        **changes,
    }


def read(value: Any) -> Any:
    return read_traces(json.dumps(value).encode(), [FORMAT])


def only(value: Any) -> Any:
    ((one,),) = [t.spans for t in read(value)]
    return one


def test_times_usage_model_and_thread_are_read_and_the_rest_is_kept() -> None:
    one = only(run())
    assert (one.start_ns, one.end_ns) == (NOON, NOON + 2 * SECOND)
    assert (one.trace_id, one.span_id, one.parent_id) == ("task", "call", "task")
    assert (one.name, one.service) == ("Model", "shop")
    told = {k: v for k, v in one.attributes.items() if k.startswith("gen_ai.")}
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "me",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small-1",
        "gen_ai.conversation.id": "t",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 5,
        "gen_ai.response.time_to_first_chunk": 0.5,
    }
    assert one.attributes["langsmith.status"] == "success"
    assert one.attributes["langsmith.metadata.team"] == 1
    assert one.attributes["langsmith.extra.runtime"] == {"sdk": "x"}
    assert [e.time_ns - NOON for e in one.events] == [750_000_000, 500_000_000]


def test_first_new_token_ends_the_prefill_and_without_one_the_call_only_counts_tokens() -> None:
    streamed = timing(only(run()))
    assert streamed.grade == "B"
    assert [(p.kind, p.end_ns - p.start_ns) for p in streamed.phases] == [
        ("prefill", SECOND // 2),
        ("decode", 3 * SECOND // 2),
    ]
    whole = timing(only(run(events=[])))
    assert (whole.grade, whole.output_tokens) == ("C", 40)
    exported = only(run(events=None, first_token_time="2026-01-31T12:00:00.250000Z"))
    assert exported.attributes["gen_ai.response.time_to_first_chunk"] == 0.25


def test_first_token_before_the_start_is_not_used_and_noted() -> None:
    early = run(events=[{"name": "new_token", "time": "2026-01-31T11:59:59Z"}])
    (trace,) = read(early)
    assert "gen_ai.response.time_to_first_chunk" not in trace.spans[0].attributes
    assert trace.repairs == ("first token before its run starts: not used",)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llm", "model"),
        ("tool", "tool"),
        ("retriever", "tool"),
        ("embedding", "tool"),
        ("chain", "other"),
        ("parser", "other"),
        ("prompt", "other"),
    ],
)
def test_run_type_is_the_kind_of_time(kind: str, expected: str) -> None:
    assert classify(only(run(run_type=kind, outputs={"model": "small"}))).kind == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outputs": {"llm_output": {"token_usage": {"completion_tokens": 3}}}}, 3),
        ({"outputs": {"usage": {"completion_tokens": 4}}}, 4),
        ({"outputs": None, "completion_tokens": 5}, 5),
        ({"outputs": None, "completion_tokens": 0}, None),
        (
            {
                "outputs": {
                    "generations": [
                        [{"message": {"kwargs": {"usage_metadata": {"output_tokens": 6}}}}]
                    ]
                }
            },
            6,
        ),
    ],
)
def test_token_counts_wherever_the_integration_puts_them(changes: Any, expected: Any) -> None:
    assert only(run(**changes)).attributes.get("gen_ai.usage.output_tokens") == expected


POST = {
    "id": "call",
    "trace_id": "call",
    "dotted_order": "20260131T120000000001Zcall",
    "name": "Model",
    "run_type": "llm",
    "start_time": 1769860800000,
    "extra": {"metadata": {"ls_model_name": "small"}, "runtime": {"sdk": "js"}},
    "outputs": {},
    "events": [],
}
PATCH = {
    "trace_id": "call",
    "dotted_order": "20260131T120000000001Zcall",
    "end_time": 1769860801500,
    "extra": {"metadata": {"team": "x"}},
    "outputs": {"usage_metadata": {"output_tokens": 9}},
    "events": [{"name": "new_token", "time": 1769860800250}],
    "name": None,
}


@pytest.mark.parametrize(
    "payload",
    [
        {"post": [POST], "patch": [PATCH]},
        {"patch": [PATCH], "post": [POST, POST]},
        [{"patch": [PATCH]}, {"post": [POST]}, {"patch": [PATCH]}],
        {"post": [POST], "patch": [{**PATCH, "start_time": POST["start_time"]}]},
    ],
)
def test_post_and_patch_are_one_run_in_any_order_and_number(payload: Any) -> None:
    (trace,) = read(payload)
    (one,) = trace.spans
    assert trace.repairs == ()
    assert (one.span_id, one.name) == ("call", "Model")
    assert (one.start_ns, one.end_ns) == (NOON, NOON + 1_500_000_000)
    assert one.attributes["gen_ai.usage.output_tokens"] == 9
    assert one.attributes["gen_ai.request.model"] == "small"
    assert one.attributes["langsmith.metadata.team"] == "x"
    assert one.attributes["langsmith.extra.runtime"] == {"sdk": "js"}
    assert one.attributes["gen_ai.response.time_to_first_chunk"] == 0.25


def test_patch_whose_post_is_lost_starts_where_its_dotted_order_says() -> None:
    lost = {**PATCH, "dotted_order": "20260131T115959000000Zroot.20260131T120000250000Zcall"}
    (trace,) = read({"patch": [{**lost, "trace_id": None, "run_type": "llm"}]})
    (one,) = trace.spans
    assert one.start_ns == NOON + 250_000_000
    assert (one.trace_id, one.parent_id) == ("root", "root")
    assert trace.repairs == ("run without a start_time: taken from its dotted_order",)


def test_updates_that_tell_different_ends_are_a_conflict_and_the_later_counts() -> None:
    later = {**PATCH, "end_time": 1769860802000}
    for order in itertools.permutations([PATCH, later]):
        (trace,) = read({"post": [POST], "patch": list(order)})
        assert trace.spans[0].end_ns == NOON + 2 * SECOND
        assert trace.repairs == ("conflict: updates of run call tell 2 ends: the later counts",)


def task() -> list[dict[str, Any]]:
    """A root of 6 s: call 0–2, tool 2–3, call 3–5; the server sums tokens up on the root."""
    chain = run(
        id="task",
        parent_run_id=None,
        name="agent",
        run_type="chain",
        end_time="2026-01-31T12:00:06Z",
        events=[],
        outputs=None,
        completion_tokens=80,
    )
    tool = run(
        id="tool",
        name="search",
        run_type="tool",
        start_time="2026-01-31T12:00:02Z",
        end_time="2026-01-31T12:00:03Z",
        events=[],
        outputs={"output": {"tool_call_id": "call_123"}},
    )
    second = run(
        id="call2",
        start_time="2026-01-31T12:00:03Z",
        end_time="2026-01-31T12:00:05Z",
        events=[{"name": "new_token", "time": "2026-01-31T12:00:04Z"}],
    )
    return [chain, run(), tool, second]


@pytest.mark.parametrize(
    "wrap",
    [
        json.dumps,
        lambda runs: json.dumps({"runs": runs, "cursors": {}}),
        lambda runs: "\n".join(map(json.dumps, reversed(runs))),
        lambda runs: json.dumps({**runs[0], "child_runs": [_bare(one) for one in runs[1:]]}),
    ],
    ids=["array", "query", "lines", "tree"],
)
def test_every_envelope_gives_the_same_task(wrap: Any) -> None:
    (trace,) = read_traces(wrap(task()).encode(), [FORMAT])
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert profiled.task.tokens_agree is True
    assert (profiled.evidence_grade, profiled.model_calls) == ("B", 2)
    assert profiled.task.wall_ns == 6 * SECOND
    path = {k: v for k, v in profiled.critical_path_ns.items() if v}
    assert path == {
        "prefill": 3 * SECOND // 2,
        "decode": 5 * SECOND // 2,
        "tool": SECOND,
        "other": SECOND,
    }
    assert profiled.saving.value == 5 * SECOND / 4
    (tool,) = [s for s in trace.spans if s.span_id == "tool"]
    assert tool.attributes["gen_ai.tool.name"] == "search"
    assert tool.attributes["gen_ai.tool.call.id"] == "call_123"


def _bare(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "trace_id": None, "parent_run_id": None}


def test_runs_that_name_no_trace_belong_to_their_topmost_parent() -> None:
    runs = [{**one, "trace_id": None} for one in task()]
    assert [t.trace_id for t in read(runs)] == ["task"]
    loop = [run(id="a", parent_run_id="b", trace_id=None), run(id="b", parent_run_id="a")]
    assert {t.trace_id for t in read(loop)} == {"a", "task"}


def test_times_without_a_zone_are_read_as_utc_and_noted() -> None:
    (trace,) = read(run(start_time="2026-01-31T12:00:00", events=[]))
    assert trace.spans[0].start_ns == NOON
    assert trace.repairs == ("times without a time zone: read as UTC",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", 5),
        ("trace_id", 5),
        ("parent_run_id", []),
        ("start_time", "noon"),
        ("start_time", None),
        ("start_time", 1769860800),  # seconds
        ("start_time", 1769860800 * 10**9),  # nanoseconds
        ("start_time", float("nan")),
        ("start_time", True),
        ("end_time", {}),
    ],
)
def test_broken_fields_are_named(field: str, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        read([run(**{field: value})])
    assert caught.value.field == f"runs[0].{field}"
    assert caught.value.remedy


def test_runs_that_never_ended_are_refused_with_the_reason() -> None:
    with pytest.raises(TraceError, match=r"no run has ended.*patch"):
        read({"post": [POST], "patch": []})
    (trace,) = read([run(), run(id="open", end_time=None)])
    assert sorted(s.end_ns is None for s in trace.spans) == [False, True]


def test_other_documents_are_not_accepted() -> None:
    others: tuple[Any, ...] = (
        {"post": [{"id": 1}]},
        {"runs": [{}]},
        [1],
        {"run_type": "llm"},
        {"patch": {}},
    )
    for other in others:
        assert not FORMAT.accepts(decode(json.dumps(other).encode()))


SCALARS = [None, True, 0, -1, 1.5, 10**400, float("nan"), float("-inf"), "", "x", "9", "\ud800"]
HOSTILE = st.sampled_from([*SCALARS, [], [1], [[]], [{}], [None], {}, {"": 1}, {"id": [], "x": {}}])


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from([*run(), "dotted_order", "child_runs", "inputs"]), HOSTILE))
def test_hostile_runs_raise_nothing_but_the_declared_error(changes: Any) -> None:
    for payload in ([run(**changes)], {"post": [POST], "patch": [{**PATCH, **changes}]}):
        try:
            for trace in read(payload):
                profile_task(trace)
        except TraceError:
            pass


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
@pytest.mark.parametrize(
    ("file", "wall_ms", "grade", "decode_ms"),
    [
        ("langsmith_js_wrap_openai_default.json", 1115, "C", 189),
        ("langsmith_js_wrap_openai_stream.json", 854, "C", 189),
        ("langsmith_py_wrap_openai_.json", 1118.333, "C", 189),
        ("langsmith_py_wrap_openai_stream_no_usage.json", 927.004, "B", 137.224),
    ],
)
def test_recorded_payloads(file: str, wall_ms: float, grade: str, decode_ms: float) -> None:
    (trace,) = read_traces((trace_corpus.ROOT / "langsmith" / file).read_bytes(), [FORMAT])
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert profiled.evidence_grade == grade
    assert profiled.task.wall_ns == round(wall_ms * 10**6)
    assert profiled.critical_path_ns["decode"] == round(decode_ms * 10**6)
