"""From spans to tasks: grouping, quiet periods, late spans, versions, and any number of servers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from gatekeeper import plugins
from gatekeeper.actions import tasks as actions
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.store import spans as span_store
from gatekeeper.store import tasks
from gatekeeper.store.schema_traces import task as table

if TYPE_CHECKING:
    from gatekeeper.store.database import Database

Api = Any  # the fixture's class lives in conftest
Live = Any  # a live server, see tests/live.py

ESSAY = files("gatekeeper").joinpath("examples/essay-trace.json").read_bytes()
ESSAY_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
SECOND = 10**9
START = 1_767_225_600 * SECOND
AT_ONCE = {"quiet_s": 0}
DESK = [{"gatekeeper.route": "order-desk/*"}]


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "stringValue" if isinstance(value, str) else "intValue" if isinstance(value, int) else "doubleValue"  # fmt: skip
    return {"key": key, "value": {kind: value}}


def span(
    trace: str, number: int, start: float, end: float, parent: int | None = None, **attributes: Any
) -> dict[str, Any]:
    found = {
        "traceId": trace * 16,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(START + round(start * SECOND)),
        "endTimeUnixNano": str(START + round(end * SECOND)),
        "attributes": [attribute(k.replace("__", "."), v) for k, v in attributes.items()],
    }
    return found if parent is None else {**found, "parentSpanId": f"{parent:016x}"}


def call(trace: str, number: int, start: float, end: float, parent: int, **more: Any) -> Any:
    """A streamed call whose first token comes at once: all of it is decode."""
    first = {"gen_ai__response__time_to_first_chunk": 0.0}
    return span(trace, number, start, end, parent, gen_ai__operation__name="chat", **first, **more)


def send(api: Api, *spans: dict[str, Any]) -> None:
    body = {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}
    answer = api.clients["ingester"].post("/v1/traces", json=body)
    assert (answer.status_code, answer.json()) == (200, {})


def listed(api: Api, **query: Any) -> Any:
    return api.reader.get("/v1/tasks", params=query).json()


def age(db: Database) -> None:
    """Make it as if nothing had come in for a long time."""
    with db.write() as session:
        aged = {name: table.c[name] - 100 for name in ("touched_at", "due_at")}
        session.execute(table.update().values(aged))


def settle(api: Api) -> None:
    age(api.services.db)
    for _ in range(2):  # traces find their conversation first
        api.settle()


def parts(api: Api, route: str) -> list[tasks.TaskRoute]:
    with api.services.db.read() as session:
        return tasks.route_tasks(session, route)


def exported(data: bytes) -> list[ReadableSpan]:
    """Spans of a file as the OpenTelemetry SDK would hold them."""
    formats = list(plugins.load_all("gatekeeper.traces").values())
    made = []
    for one in read_traces(data, formats)[0].spans:
        context = SpanContext(
            int(one.trace_id, 16), int(one.span_id, 16), is_remote=False, trace_flags=TraceFlags(1)
        )
        parent = None
        if one.parent_id is not None:
            parent = SpanContext(int(one.trace_id, 16), int(one.parent_id, 16), is_remote=False)
        made.append(
            ReadableSpan(
                name=one.name,
                context=context,
                parent=parent,
                kind=SpanKind.INTERNAL,
                resource=Resource({"service.name": one.service or "unknown"}),
                attributes={
                    k: v for k, v in one.attributes.items() if not k.startswith("resource.")
                },
                start_time=one.start_ns,
                end_time=one.end_ns,
            )
        )
    return made


def test_the_essay_trace_through_the_real_exporter_saves_twelve_percent(
    live_server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = live_server.tokens["ingester"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", live_server.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{token}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    exporter = OTLPSpanExporter()
    spans = exported(ESSAY)
    for batch in (spans[2:], spans[:2], spans):  # in pieces, and once more
        assert exporter.export(batch) is SpanExportResult.SUCCESS
    exporter.shutdown()
    with live_server.client("reader") as reader:
        record = reader.get(f"/v1/tasks/{ESSAY_ID}").json()
        path = reader.get(f"/v1/tasks/{ESSAY_ID}/critical-path").json()
        assert (record["calls"], record["unmatched_calls"]) == (1, 1)
        saved = record["document"]["saving_s"]["value"]
        assert (record["wall_s"], saved, saved / record["wall_s"]) == (5.0, 0.6, 0.12)
        assert path["saving_s"] == 0.6
        assert sum(s["lag_s"] + s["duration_s"] for s in path["steps"]) == pytest.approx(5.0)
        assert [c["route"] for c in path["calls"]] == [None]
        three = reader.get(
            f"/v1/tasks/{ESSAY_ID}/critical-path", params={"decode_speedup": 3}
        ).json()
        assert three["saving_s"] == pytest.approx(0.8)
        age(live_server.db)
        deadline = time.monotonic() + 20
        while reader.get(f"/v1/tasks/{ESSAY_ID}").json()["state"] != "complete":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_route_gets_its_part_with_the_curve(routed: Api) -> None:
    routed.route("desk", rules=DESK, task_rules=AT_ONCE)
    routed.clients["ingester"].post("/v1/traces/import", content=ESSAY)
    routed.settle()
    (record,) = listed(routed, route="desk", state="complete")["items"]
    assert (record["id"], record["routes"], record["session"]) == (ESSAY_ID, ["desk"], ESSAY_ID)
    assert listed(routed, route="prose")["items"] == []
    (part,) = parts(routed, "desk")
    assert (part.grade, part.reconciled, part.version) == (record["grade"], True, record["version"])
    assert (part.wall_s, part.ceiling_s, part.decode_on_path_s) == (5.0, 1.2, 1.2)
    assert part.curve == part.curve_low == part.curve_high
    assert (dict(part.curve)[1.0], dict(part.curve)[0.5]) == (5.0, 4.4)
    assert len(part.curve) == 32


def test_a_task_is_open_until_it_has_been_quiet(routed: Api) -> None:
    routed.route("desk", rules=DESK, task_rules={"quiet_s": 1000})
    routed.route("other", rules=[{"model": "m"}], task_rules=AT_ONCE)
    routed.clients["ingester"].post("/v1/traces/import", content=ESSAY)
    routed.settle()
    (record,) = listed(routed)["items"]
    assert (record["state"], record["version"], record["wall_s"]) == ("open", 0, None)
    assert parts(routed, "desk") == []
    seen = routed.reader.get(f"/v1/tasks/{ESSAY_ID}").json()  # who asks gets figures
    assert (seen["state"], seen["version"], seen["wall_s"]) == ("open", 1, 5.0)
    assert parts(routed, "desk") == []  # which are not priced yet
    assert listed(routed)["unmatched_calls"] == 0


def test_late_spans_raise_the_version_and_equal_ones_do_not(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    root = span("ab", 1, 0, 10)
    first = call("ab", 2, 0, 4, 1, gen_ai__request__model="m")
    send(routed, root, first)
    (record,) = listed(routed)["items"]
    assert (record["version"], record["calls"], record["state"]) == (1, 1, "complete")
    send(routed, root, first)
    assert listed(routed)["items"] == [record]
    send(routed, first, call("ab", 3, 4, 9, 1, gen_ai__request__model="m"))
    (after,) = listed(routed)["items"]
    assert (after["version"], after["calls"]) == (2, 2)
    (part,) = parts(routed, "desk")
    assert (part.version, part.calls) == (2, 2)
    assert dict(part.curve)[0.5] == 5.5
    assert after["document"]["saving_s"]["value"] == 4.5


def test_calls_of_no_route_are_counted_and_never_priced(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    send(
        routed,
        span("ab", 1, 0, 10),
        call("ab", 2, 0, 4, 1, gen_ai__request__model="m"),
        call("ab", 3, 4, 8, 1, gen_ai__request__model="unknown"),
    )
    answer = listed(routed)
    assert answer["unmatched_calls"] == 1
    assert answer["items"][0]["unmatched_calls"] == 1
    (part,) = parts(routed, "desk")
    assert dict(part.curve)[0.5] == 8.0  # only its own call is faster


def test_grade_d_is_kept_and_shown_without_a_curve(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    chat = {"gen_ai__operation__name": "chat", "gen_ai__request__model": "m"}
    send(routed, span("ab", 1, 0, 10), span("ab", 2, 0, 4, 1, **chat))
    assert listed(routed)["items"][0]["grade"] == "D"
    (part,) = parts(routed, "desk")
    assert (part.grade, part.curve, part.ceiling_s) == ("D", None, None)


def test_changed_rules_compute_what_is_there_anew(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "nobody"}], task_rules=AT_ONCE)
    send(routed, span("ab", 1, 0, 10), call("ab", 2, 0, 4, 1, gen_ai__request__model="m"))
    settle(routed)
    assert listed(routed)["unmatched_calls"] == 1
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    routed.settle()
    assert [p.version for p in parts(routed, "desk")] == [2]
    assert listed(routed)["unmatched_calls"] == 0


def turn(trace: str, start: float, **more: Any) -> list[dict[str, Any]]:
    return [
        span(trace, 1, start, start + 10, gen_ai__conversation__id="talk/1", **more),
        call(trace, 2, start, start + 4, 1, gen_ai__request__model="m"),
    ]


def test_a_conversation_is_one_task_where_a_rule_says_so(routed: Api) -> None:
    grouped = {"group_by": "conversation", "quiet_s": 0}
    routed.route("desk", rules=[{"model": "m"}], task_rules=grouped)
    send(routed, *turn("aa", 0), *turn("bb", 60))
    settle(routed)
    (record,) = listed(routed)["items"]
    assert record["id"].startswith("conversation-")
    assert (record["session"], record["calls"], record["wall_s"]) == ("talk/1", 2, 70.0)
    assert record["document"]["saving_s"]["value"] == 4.0
    assert routed.reader.get(f"/v1/tasks/{'aa' * 16}").json() == record
    assert len(routed.reader.get(f"/v1/tasks/{'aa' * 16}/critical-path").json()["calls"]) == 2
    send(routed, *turn("cc", 120))  # a later turn
    assert routed.reader.get(f"/v1/tasks/{'cc' * 16}").json()["calls"] == 3
    assert [p.version for p in parts(routed, "desk")] == [2]
    send(routed, call("aa", 9, 5, 9, 1, gen_ai__request__model="m"))  # a late span of the first
    assert routed.reader.get(f"/v1/tasks/{record['id']}").json()["calls"] == 4
    # The rule goes, and with it the conversation.
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    settle(routed)
    found = listed(routed)["items"]
    assert {one["id"]: one["calls"] for one in found} == {"aa" * 16: 2, "bb" * 16: 1, "cc" * 16: 1}
    assert {one["session"] for one in found} == {"talk/1"}
    assert len(parts(routed, "desk")) == 3


def test_any_number_of_servers_compute_a_task_once_a_generation(routed: Api) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    db = routed.services.db
    errors: list[BaseException] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            try:
                actions.settle_due(db)
            except BaseException as error:
                errors.append(error)
                raise

    threads = [threading.Thread(target=tick) for _ in range(3)]
    for thread in threads:
        thread.start()
    traces = ["a1", "b2", "c3"]
    for number in range(8):
        for name in traces:
            send(
                routed,
                span(name, 100 + number, 0, 10),
                call(name, number + 1, number, number + 0.5, 100, gen_ai__request__model="m"),
            )
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    actions.settle_due(db)
    for record in listed(routed)["items"]:
        assert record["calls"] == 8
        assert 1 <= record["version"] <= 8  # never twice for the same spans
        assert record["state"] == "complete"


def test_a_span_that_comes_while_its_task_is_computed_is_not_lost(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    send(routed, span("ab", 1, 0, 10), call("ab", 2, 0, 4, 1, gen_ai__request__model="m"))
    read = span_store.of_task

    def late(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(span_store, "of_task", read)
        found = read(*arguments, **more)
        coming.start()
        coming.join(0.5)
        return found

    late_call = call("ab", 3, 4, 8, 1, gen_ai__request__model="m")
    coming = threading.Thread(target=send, args=(routed, late_call))
    monkeypatch.setattr(span_store, "of_task", late)
    actions.settle_due(routed.services.db)
    coming.join()
    assert parts(routed, "desk") == []  # what was computed without it was not stored
    actions.settle_due(routed.services.db)
    assert [p.calls for p in parts(routed, "desk")] == [2]


def test_callers_that_ask_for_one_task_at_a_time_do_not_all_hold_its_spans(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(routed, *turn("ab", 0))
    read, lock = span_store.of_task, threading.Lock()
    held, most, reads = 0, 0, 0

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal held, most, reads
        with lock:
            held, reads = held + 1, reads + 1
            most = max(most, held)
        time.sleep(0.02)  # longer than the others take to come
        found = read(*arguments, **more)
        with lock:
            held -= 1
        return found

    monkeypatch.setattr(span_store, "of_task", counted)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: routed.reader.get(f"/v1/tasks/{'ab' * 16}"), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (most, reads) == (1, 1)  # the first computes it, the others find it computed


def test_a_task_that_cannot_be_computed_says_so_and_stops_nothing(
    routed: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed.route("desk", rules=[{"model": "m"}], task_rules=AT_ONCE)
    monkeypatch.setattr(actions, "MAX_SPANS", 2)
    send(routed, span("aa", 1, 0, 1), span("aa", 2, 1, 2), span("aa", 3, 2, 3))
    send(routed, *turn("bb", 0))
    settle(routed)
    found = {r["id"]: r for r in listed(routed)["items"]}
    large = found["aa" * 16]
    assert (large["grade"], large["reconciled"]) == ("D", False)
    assert "more than 2 spans" in large["document"]["repairs"][0]
    assert found["bb" * 16]["calls"] == 1
    refused = routed.reader.get(f"/v1/tasks/{'aa' * 16}/critical-path")
    assert (refused.status_code, refused.json()["field"]) == (422, "task")


def test_pages_and_what_is_not_there(routed: Api) -> None:
    for name in ("aa", "bb", "cc"):
        send(routed, span(name, 1, 0, 1))
    first = listed(routed, limit=2)
    assert [one["id"][:2] for one in first["items"]] == ["cc", "bb"]
    rest = listed(routed, limit=2, after=first["next"])
    assert [one["id"][:2] for one in rest["items"]] == ["aa"]
    assert routed.reader.get("/v1/tasks/nothing").status_code == 404
    assert routed.reader.get("/v1/tasks/nothing/critical-path").status_code == 404
    for wrong in ("0", "nan", "-1", "x", "1e-320"):
        query = {"decode_speedup": wrong}
        answer = routed.reader.get(f"/v1/tasks/{'aa' * 16}/critical-path", params=query)
        assert answer.status_code == 422


@pytest.mark.parametrize("bad", [{"quiet": 1}, {"group_by": "x"}, {"quiet_s": "1"}])
def test_unknown_task_rules_are_refused(routed: Api, bad: dict[str, Any]) -> None:
    body = {"slice": "prose", "artifact": "current", "policy": "demo", "task_rules": bad}
    answer = routed.operator.put("/v1/routes/desk", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"].startswith("task_rules.")


def test_a_route_keeps_its_task_rules_and_economics(routed: Api) -> None:
    view = routed.route("desk", task_rules={"quiet_s": 3}, economics="shop")
    assert view["economics"] == "shop"
    assert view["task_rules"] == {"group_by": "trace", "quiet_s": 3.0, "session_attribute": None}
    assert routed.route("desk")["task_rules"] is None
    with routed.services.db.read() as session:
        assert actions.routing_of(session).routes[0].tasks.quiet_s == 5.0
