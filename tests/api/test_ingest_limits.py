"""Back-pressure: what comes on top is refused at once and told when to come again."""

from __future__ import annotations

import asyncio
import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.testclient import TestClient

from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.actions.ingest_settings import IngestLimits, IngestSettings
from gatekeeper.actions.redaction import AttributeRule
from gatekeeper.api import traces
from gatekeeper.api.admission import Admission
from gatekeeper.api.app import create_app
from gatekeeper.errors import Busy, InputError, Unavailable
from gatekeeper.store import spans

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.api.services import Services
    from gatekeeper.store.database import Database

Api = Any  # the fixture's class lives in conftest
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def protobuf(count: int = 1) -> bytes:
    message = ExportTraceServiceRequest()
    inner = message.resource_spans.add().scope_spans.add().spans
    for n in range(1, count + 1):
        inner.add(trace_id=b"x" * 16, span_id=n.to_bytes(8), name="s", start_time_unix_nano=10**18)
    return message.SerializeToString()


def server(api: Api, **limits: Any) -> tuple[TestClient, Services]:
    """The same database behind limits of its own."""
    chosen = IngestSettings(limits=IngestLimits(**limits))
    services = replace(api.services, ingest=chosen)
    _, secret = create_token(services.db, SYSTEM, name="i", role="ingester", ttl_s=None)
    headers = {"Authorization": f"Bearer {secret}"}
    return TestClient(create_app(services), headers=headers), services


def refused(answer: Any, status: int, code: int) -> None:
    assert answer.status_code == status
    assert answer.headers["retry-after"] == "7"
    assert Status.FromString(answer.content).code == code


def test_more_requests_than_allowed_get_429_before_their_bodies_are_read(api: Api) -> None:
    client, services = server(api, requests=2, retry_after_s=7)
    with services.admission.place(), services.admission.place():
        refused(client.post("/v1/traces", content=protobuf(), headers=PROTOBUF), 429, 8)
        answer = client.post("/v1/traces/import", content=b"x")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["title"] == "Too many requests"
    for _ in range(5):  # and every place is given back
        assert client.post("/v1/traces", content=protobuf(), headers=PROTOBUF).status_code == 200
    for _ in range(5):
        broken = client.post("/v1/traces", content=b"\xff", headers=PROTOBUF)
        assert broken.status_code == 400
    assert client.post("/v1/traces", content=protobuf(), headers=PROTOBUF).status_code == 200


def test_bodies_together_hold_no_more_than_allowed(api: Api) -> None:
    size = len(protobuf(20))
    client, services = server(api, body_bytes=size, held_bytes=size, retry_after_s=7)
    with services.admission.place() as other:
        other.grow(to=1)
        refused(client.post("/v1/traces", content=protobuf(20), headers=PROTOBUF), 429, 8)
        assert client.post("/v1/traces", content=protobuf(), headers=PROTOBUF).status_code == 200
    for _ in range(3):
        assert client.post("/v1/traces", content=protobuf(20), headers=PROTOBUF).status_code == 200


def test_a_body_is_too_large_by_its_declared_and_by_its_true_length(api: Api) -> None:
    client, _ = server(api, body_bytes=100, held_bytes=100, unpacked_bytes=200)
    body = protobuf(10)
    assert len(body) > 200

    def pieces() -> Any:
        for at in range(0, len(body), 20):
            yield body[at : at + 20]

    chunked = client.post("/v1/traces", content=pieces(), headers=PROTOBUF)
    assert (chunked.status_code, Status.FromString(chunked.content).code) == (413, 8)
    declared = client.post("/v1/traces", content=body, headers=PROTOBUF)
    assert declared.status_code == 413
    packed = {**PROTOBUF, "Content-Encoding": "gzip"}
    small = gzip.compress(b"\0" * 201)
    assert len(small) < 100
    assert client.post("/v1/traces", content=small, headers=packed).status_code == 413


def test_a_body_that_trickles_in_gives_its_place_back() -> None:
    class Slow:
        headers: dict[str, str] = {}  # noqa: RUF012 - a fake

        async def stream(self) -> Any:
            yield b"x"
            await asyncio.sleep(30)

    admission = Admission(IngestLimits(requests=1, held_bytes=100, body_bytes=100))

    async def receive() -> None:
        with admission.place() as place:
            await traces._body(Slow(), place, seconds=0.05)  # type: ignore[arg-type]

    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        asyncio.run(receive())
    with admission.place() as place:
        place.grow(100)


def test_whoever_waits_too_long_for_a_turn_gets_503(api: Api) -> None:
    client, services = server(api, threads=1, patience_s=0.05, retry_after_s=7)
    busy, free = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        free.wait(30)

    held = threading.Thread(target=lambda: asyncio.run(services.admission.turn(hold)))
    held.start()
    try:
        assert busy.wait(10)
        refused(client.post("/v1/traces", content=protobuf(), headers=PROTOBUF), 503, 14)
        # Nobody else waits behind spans.
        assert client.get("/healthz").status_code == 200
    finally:
        free.set()
        held.join()
    assert client.post("/v1/traces", content=protobuf(), headers=PROTOBUF).status_code == 200


def test_a_database_that_stays_locked_gets_503_and_nothing_is_stored(api: Api) -> None:
    client, services = server(api, patience_s=0.2, retry_after_s=7)
    locked, free = threading.Event(), threading.Event()

    def hold() -> None:
        with services.db.write() as session:
            spans.insert(session, [spans.SpanRow("x" * 16, "y", "x", "0" * 64, "{}")])
            session.exec_driver_sql(
                "SELECT 1" if services.db.sqlite else "LOCK TABLE spans IN EXCLUSIVE MODE"
            )
            locked.set()
            free.wait(30)

    held = threading.Thread(target=hold)
    held.start()
    try:
        assert locked.wait(10)
        refused(client.post("/v1/traces", content=protobuf(), headers=PROTOBUF), 503, 14)
    finally:
        free.set()
        held.join()
    assert client.post("/v1/traces", content=protobuf(), headers=PROTOBUF).status_code == 200


def test_decoding_holds_no_more_unpacked_bytes_than_one_request_may_have() -> None:
    admission = Admission(IngestLimits(unpacked_bytes=100, threads=4))
    inside = 0
    most = 0
    lock = threading.Lock()

    def decode() -> None:
        nonlocal inside, most
        with admission.decoding(40):
            with lock:
                inside += 1
                most = max(most, inside)
            threading.Event().wait(0.02)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2
    with admission.decoding(1000):  # one alone always fits
        pass


def test_work_that_has_begun_is_waited_for_however_long(api: Api) -> None:
    admission = Admission(IngestLimits(patience_s=0.01))

    def slow() -> str:
        threading.Event().wait(0.1)
        return "stored"

    # in a thread: a browser test before it leaves a running loop in this one
    with ThreadPoolExecutor(1) as apart:
        assert apart.submit(asyncio.run, admission.turn(slow)).result() == "stored"


def test_the_errors_say_what_to_do() -> None:
    admission = Admission(IngestLimits(requests=1))
    with admission.place(), pytest.raises(Busy, match="Retry-After"), admission.place():
        pass
    assert issubclass(Busy, Unavailable)


def test_the_document_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "ingest.yaml"
    file.write_text(
        "limits: {requests: 3, patience_s: 1.5}\n"
        "redaction:\n"
        "  content: keep\n"
        "  attributes: [{attribute: 'user.*', action: hash}]\n"
    )
    found = IngestSettings.load(file)
    assert (found.limits.requests, found.limits.patience_s) == (3, 1.5)
    assert found.limits.body_bytes == IngestLimits.body_bytes
    assert found.redaction.content == "keep"
    assert found.redaction.attributes == (AttributeRule("user.*", "hash"),)
    assert IngestSettings.load(None) == IngestSettings()
    for text, match in (
        ("limit: {}", "limit"),
        ("limits: {requests: 0}", "limits.requests=0"),
        ("limits: {requests: x}", "limits.requests"),
        ("limits: {body_bytes: 9, held_bytes: 8}", "held_bytes"),
        ("redaction: {content: maybe}", "content=maybe"),
        ("redaction: {attributes: [{attribute: a, action: lose}]}", "action=lose"),
        ("- 1", "mapping"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=match):
            IngestSettings.load(file)
    with pytest.raises(InputError, match="--ingest"):
        IngestSettings.load(tmp_path / "none.yaml")


def test_writers_wait_their_turn_only_so_long(db: Database) -> None:
    if not db.sqlite:
        pytest.skip("PostgreSQL has no single writer")
    busy, free = threading.Event(), threading.Event()

    def hold() -> None:
        with db.write():
            busy.set()
            free.wait(30)

    held = threading.Thread(target=hold)
    held.start()
    try:
        assert busy.wait(10)
        with pytest.raises(Unavailable, match="busy"), db.write(patience_s=0.05):
            pass
    finally:
        free.set()
        held.join()
    with db.write(patience_s=0.05):
        pass
