from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from sqlalchemy import func, select

from gatekeeper.actions import ingest
from gatekeeper.actions.ingest_settings import IngestLimits
from gatekeeper.errors import TooLarge
from gatekeeper.store import schema_traces

if TYPE_CHECKING:
    from collections.abc import Callable

Api = Any  # the fixture's class lives in conftest

PROTOBUF = "application/x-protobuf"
ESSAY = files("gatekeeper").joinpath("examples/essay-trace.json").read_bytes()


def a_span(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "name": f"step {number}",
        "startTimeUnixNano": str(10**18 + number),
        "endTimeUnixNano": str(10**18 + number + 1000),
        **changes,
    }


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def protobuf(count: int) -> bytes:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number in range(1, count + 1):
        spans.add(
            trace_id=bytes.fromhex("cd" * 16),
            span_id=number.to_bytes(8),
            name="step",
            start_time_unix_nano=10**18 + number,
            end_time_unix_nano=10**18 + number + 5,
        )
    return message.SerializeToString()


def post(api: Api, content: bytes, media_type: str = PROTOBUF, **headers: str) -> Any:
    sent = {"Content-Type": media_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return api.clients["ingester"].post("/v1/traces", content=content, headers=sent)


def stored(api: Api) -> int:
    with api.services.db.read() as session:
        query = select(func.count()).select_from(schema_traces.span)
        return int(session.execute(query).scalar_one())


def test_protobuf_and_json_plain_and_packed(api: Api) -> None:
    answer = post(api, protobuf(3))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == PROTOBUF
    assert not ExportTraceServiceResponse.FromString(answer.content).HasField("partial_success")
    assert post(api, gzip.compress(protobuf(5)), Content_Encoding="gzip").status_code == 200
    assert stored(api) == 5
    body = json.dumps(request(a_span(1), a_span(2))).encode()
    answer = post(api, body, "application/json; charset=utf-8")
    assert (answer.status_code, answer.json()) == (200, {})
    two_members = gzip.compress(body[:50]) + gzip.compress(body[50:])
    assert post(api, two_members, "application/json", Content_Encoding="gzip").json() == {}
    assert stored(api) == 7


def test_nothing_to_store_is_fine(api: Api) -> None:
    assert post(api, b"").status_code == 200
    assert post(api, b"{}", "application/json").json() == {}
    assert post(api, b'{"resourceSpans": []}', "application/json").json() == {}
    assert stored(api) == 0


def test_bad_spans_are_refused_one_by_one_and_the_rest_is_stored(api: Api) -> None:
    spans = [
        a_span(1),
        a_span(2, traceId="0" * 32),
        a_span(3, spanId="0" * 16),
        a_span(4, startTimeUnixNano="0"),
        a_span(5, startTimeUnixNano=10**25),
        a_span(6, endTimeUnixNano=1.5),
        a_span(7, spanId="short"),
        a_span(8),
    ]
    answer = post(api, json.dumps(request(*spans)).encode(), "application/json")
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "6"
    assert "all zero" in partial["errorMessage"]
    assert "and 3 more" in partial["errorMessage"]
    assert stored(api) == 2


def test_all_spans_bad_is_a_bad_request(api: Api) -> None:
    answer = post(api, json.dumps(request(a_span(0))).encode(), "application/json")
    assert answer.status_code == 400
    assert answer.json()["code"] == 3
    assert "all zero" in answer.json()["message"]


def test_equal_spans_are_accepted_in_silence_and_contradicting_ones_counted(api: Api) -> None:
    body = json.dumps(request(a_span(1), a_span(2))).encode()
    for _ in range(2):
        assert post(api, body, "application/json").json() == {}
    changed = json.dumps(request(a_span(1, name="other"), a_span(2), a_span(3))).encode()
    partial = post(api, changed, "application/json").json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "0000000000000001" in partial["errorMessage"]
    assert stored(api) == 3
    twice = request(a_span(4), a_span(4), a_span(4, name="other"))
    partial = post(api, json.dumps(twice).encode(), "application/json").json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    message = ExportTraceServiceRequest.FromString(protobuf(1))
    post(api, message.SerializeToString())
    message.resource_spans[0].scope_spans[0].spans[0].name = "other"
    answer = ExportTraceServiceResponse.FromString(post(api, message.SerializeToString()).content)
    assert answer.partial_success.rejected_spans == 1
    assert "stored already" in answer.partial_success.error_message


Attack = tuple[bytes, str, dict[str, str], int]
JSON = "application/json"
GZIP = {"Content_Encoding": "gzip"}
DEEP = b'{"arrayValue":{"values":[' * 3000 + b"]}}" * 3000
ATTACKS: dict[str, Attack] = {
    "not protobuf": (b"\xff\xfe rubbish", PROTOBUF, {}, 400),
    "cut off protobuf": (protobuf(3)[:-2], PROTOBUF, {}, 400),
    "not JSON": (b"{", JSON, {}, 400),
    "a list": (b"[]", JSON, {}, 400),
    "a number": (b"7", JSON, {}, 400),
    "not UTF-8": (b'{"a": "\xff"}', JSON, {}, 400),
    "NaN": (b'{"resourceSpans": NaN}', JSON, {}, 400),
    "endless digits": (b'{"resourceSpans": ' + b"9" * 5000 + b"}", JSON, {}, 400),
    "spans that are no list": (json.dumps(request()).replace("[]", "7").encode(), JSON, {}, 400),
    "nested beyond reading": (DEEP, JSON, {}, 400),
    "nested attribute": (
        json.dumps(request(a_span(1, attributes="@"))).replace('"@"', "[" + '{"key":"a","value":' + DEEP.decode().replace("[]", "[1]") + "}]").encode(),
        JSON,
        {},
        400,
    ),
    "not gzip": (b"rubbish", PROTOBUF, GZIP, 400),
    "cut off gzip": (gzip.compress(protobuf(50))[:-9], PROTOBUF, GZIP, 400),
    "gzip with rubbish behind": (gzip.compress(protobuf(2)) + b"xx", PROTOBUF, GZIP, 400),
    "zlib is not gzip": (zlib.compress(protobuf(2)), PROTOBUF, GZIP, 400),
    "unknown encoding": (protobuf(1), PROTOBUF, {"Content_Encoding": "br"}, 415),
    "unknown type": (protobuf(1), "text/plain", {}, 415),
    "no type": (protobuf(1), "", {}, 415),
    "bomb": (gzip.compress(b" " * (IngestLimits.unpacked_bytes + 1)), JSON, GZIP, 413),
    "huge": (b" " * (IngestLimits.body_bytes + 1), PROTOBUF, {}, 413),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_a_status_in_the_encoding_of_the_request(api: Api, name: str) -> None:
    body, media_type, headers, status = ATTACKS[name]
    answer = post(api, body, media_type, **headers)
    assert answer.status_code == status, answer.text
    if media_type == PROTOBUF:
        found = Status.FromString(answer.content)
        code, message = found.code, found.message
    else:
        assert answer.headers["content-type"] == JSON
        code, message = answer.json()["code"], answer.json()["message"]
    assert code in (3, 8)
    assert message
    assert stored(api) == 0


def test_a_bomb_is_refused_without_being_unpacked_whole() -> None:
    bomb = gzip.compress(b"\0" * 200_000_000, 1)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            ingest.unpacked(bomb, "gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * IngestLimits.unpacked_bytes


def test_who_may_send(api: Api) -> None:
    answer = api.anonymous.post(
        "/v1/traces", content=protobuf(1), headers={"Content-Type": PROTOBUF}
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert Status.FromString(answer.content).code == 16
    answer = api.reader.post("/v1/traces", json={})
    assert (answer.status_code, answer.json()["code"]) == (403, 7)
    for path in ("/v1/tasks", "/v1/routes"):
        assert api.clients["ingester"].get(path).status_code == 403


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["traceId", "spanId", "stringValue", "kvlistValue", "values", "key"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(
        st.sampled_from(
            ["traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "endTimeUnixNano",
             "attributes", "events", "links", "kind"]
        ),
        json_values,
        max_size=4,
    ),
    st.sampled_from([lambda b: b, gzip.compress]),
)  # fmt: skip
def test_no_span_breaks_the_server(
    api: Api, changes: dict[str, Any], pack: Callable[[bytes], bytes]
) -> None:
    body = json.dumps(request(a_span(1, **changes), a_span(2))).encode()
    encoding = {} if pack(b"x") == b"x" else GZIP
    answer = post(api, pack(body), JSON, **encoding)
    assert answer.status_code in (200, 400)
    assert answer.headers["content-type"] == JSON
    api.settle()  # what was stored can be computed, too
    assert api.reader.get("/v1/tasks").status_code == 200
    assert api.reader.get(f"/v1/tasks/{'ab' * 16}").status_code in (200, 404)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_server(api: Api, body: bytes) -> None:
    assert post(api, body).status_code in (200, 400)
    answer = api.clients["ingester"].post("/v1/traces/import", content=body)
    assert answer.status_code in (200, 400)


def test_importing_a_file_is_idempotent_and_shares_its_ids_with_the_exporters(api: Api) -> None:
    send = api.clients["ingester"].post
    answer = send("/v1/traces/import", content=ESSAY).json()
    assert (answer["source_format"], answer["new_spans"], answer["rejected_spans"]) == (
        "otlp",
        4,
        0,
    )
    again = send(
        "/v1/traces/import", content=gzip.compress(ESSAY), headers={"Content-Encoding": "gzip"}
    )
    assert again.json() == {**answer, "new_spans": 0, "known_spans": 4}
    assert post(api, ESSAY, JSON).json() == {}
    assert stored(api) == 4
    refused = send("/v1/traces/import", content=b"rubbish")
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert (
        send("/v1/traces/import", content=b"x", headers={"Content-Encoding": "br"}).status_code
        == 422
    )
    huge = send("/v1/traces/import", content=b" " * (IngestLimits.body_bytes + 1))
    assert (huge.status_code, huge.json()["title"]) == (413, "Too large")


def test_other_formats_keep_their_own_ids(api: Api) -> None:
    export = {
        "trace": {"id": "run/7 ü", "timestamp": "2026-01-01T00:00:00Z"},
        "observations": [
            {
                "id": f"o{i}",
                "traceId": "run/7 ü",
                "type": "GENERATION",
                "name": "llm",
                "startTime": f"2026-01-01T00:00:0{i}.000Z",
                "endTime": f"2026-01-01T00:00:0{i + 1}.000Z",
                "completionStartTime": f"2026-01-01T00:00:0{i}.200Z",
            }
            for i in range(3)
        ],
    }
    body = json.dumps(export).encode()
    answer = api.clients["ingester"].post("/v1/traces/import", content=body).json()
    assert (answer["source_format"], answer["new_spans"]) == ("langfuse", 3)
    (task_id,) = answer["tasks"]
    record = api.reader.get(f"/v1/tasks/{task_id}").json()
    assert (record["calls"], record["unmatched_calls"], record["grade"]) == (3, 3, "B")
    assert record["wall_s"] == 3.0


def test_spans_are_counted_in_the_metrics(api: Api) -> None:
    post(api, protobuf(3))
    post(api, protobuf(4))
    text = api.anonymous.get("/metrics").text
    assert 'gatekeeper_spans_total{fate="new"} 4.0' in text
    assert 'gatekeeper_spans_total{fate="known"} 3.0' in text


def test_a_body_of_very_many_gzip_members_is_refused() -> None:
    members = gzip.compress(b"{}") * 1024
    assert len(ingest.unpacked(members, "gzip")) == 2048
    with pytest.raises(TooLarge, match="members"):
        ingest.unpacked(members + gzip.compress(b""), "gzip")


CANARY = "my neighbour's medical record"
_NESTED = {"resourceSpans": [{"scopeSpans": [{"spans": [CANARY]}]}]}
_LEAKS: tuple[object, ...] = (
    CANARY,
    [{"prompt": CANARY}],
    {"resourceSpans": CANARY},
    {"resourceSpans": [CANARY]},
    {"resourceSpans": [{"resource": CANARY}]},
    {"resourceSpans": [{"resource": {"attributes": CANARY}}]},
    {"resourceSpans": [{"scopeSpans": CANARY}]},
    _NESTED,
    *(
        request(a_span(1, **{field: CANARY}))
        for field in (
            *("traceId", "spanId", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano"),
            *("attributes", "events", "links"),
        )
    ),
    request(a_span(1, attributes=[{"key": CANARY, "value": {"intValue": CANARY}}])),
    request(a_span(1, events=[{"name": CANARY, "timeUnixNano": CANARY}])),
    request(a_span(1, links=[{"traceId": CANARY}])),
)


@pytest.mark.parametrize("sent", _LEAKS, ids=range(len(_LEAKS)))
@pytest.mark.parametrize("beside", [False, True])
def test_no_refusal_repeats_what_was_sent(api: Api, sent: Any, beside: bool) -> None:  # noqa: FBT001 - a parameter
    """Exporters log the answer, and a body may hold prompts."""
    if beside and isinstance(sent, dict) and sent is not _NESTED:
        sent = {"resourceSpans": [*request(a_span(9))["resourceSpans"], *_listed(sent)]}
    answer = post(api, json.dumps(sent).encode(), "application/json")
    assert answer.status_code in {200, 400}
    said = answer.json()
    message = said.get("message") or said["partialSuccess"]["errorMessage"]
    assert "neighbour" not in answer.text
    assert "resourceSpans" in message or "body" in message
    assert ";" in message  # what to do about it


def _listed(sent: dict[str, Any]) -> list[Any]:
    groups = sent["resourceSpans"]
    return groups if isinstance(groups, list) else [groups]


@pytest.mark.parametrize("ending", [b"\xff", b"x", b""])
def test_text_that_is_no_json_is_not_repeated(api: Api, ending: bytes) -> None:
    answer = post(api, b'{"a": "' + CANARY.encode() + ending, "application/json")
    assert answer.status_code == 400
    assert "neighbour" not in answer.text
    assert "0xff" not in answer.text
    assert "body: is not" in answer.json()["message"]


def test_an_import_does_not_repeat_it_either(api: Api) -> None:
    body = json.dumps(request(a_span(1, traceId=CANARY))).encode()
    answer = api.clients["ingester"].post("/v1/traces/import", content=body)
    assert answer.status_code == 400
    assert "neighbour" not in answer.text
    assert answer.json()["field"].endswith("traceId")
