"""The server around the fake engine: what HTTP promises, whatever decodes behind it."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from engine_server import HTTP, gauge, service_around, serving, wait_until
from gatekeeper_adapters.engines.reference.server import app, bridge
from gatekeeper_adapters.engines.reference.server.metrics import ServerMetrics

from gatekeeper.testing import Costs, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW = Costs(verify_s=0.02)
CHAT = {"messages": [{"role": "user", "content": "hello"}], "seed": 3}
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def engine(*, slots: int = 2, slow: bool = False, **options: Any) -> FakeEngine:
    costs, spend = (SLOW, time.sleep) if slow else (None, None)
    return FakeEngine(max_batch=slots, costs=costs, spend=spend, **options)


@contextmanager
def served(fake: Any, **options: Any) -> Iterator[tuple[str, Any]]:
    service = service_around(fake, **options)
    with serving(service) as url:
        yield url, service


def chat(url: str, **change: Any) -> httpx.Response:
    return HTTP.post(f"{url}/v1/chat/completions", json={**CHAT, **change})


def text(url: str, **change: Any) -> httpx.Response:
    return HTTP.post(f"{url}/v1/completions", json={"prompt": "hello", **change})


def events(response: httpx.Response) -> list[Any]:
    """Every event of a stream; the last one has to be [DONE]."""
    *lines, last = [line for line in response.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(engine(slots=4), gamma=2) as (where, _):
        yield where


def refused(
    response: httpx.Response, status: int, param: str | None, *, ours: bool = True
) -> dict[str, Any]:
    """The error of an answer; the fake engine's own have no remedy."""
    error: dict[str, Any] = response.json()["error"]
    assert response.status_code == status, error
    assert error["param"] == param
    assert error["message"]
    assert bool(error["remedy"]) is ours
    assert error["type"]
    return error


@pytest.mark.parametrize("n", [1, 3])
def test_a_chat_stream_says_what_the_whole_answer_says(url: str, n: int) -> None:
    asked = {"max_tokens": 12, "n": n}
    whole = chat(url, **asked).json()
    assert whole["object"] == "chat.completion"
    stream = chat(url, **asked, stream=True, stream_options={"include_usage": True})
    assert stream.headers["content-type"] == "text/event-stream"
    *chunks, usage = events(stream)
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert all(c["usage"] is None for c in chunks)
    roles = [c["choices"][0] for c in chunks[:n]]
    assert [(r["index"], r["delta"]["role"]) for r in roles] == [(i, "assistant") for i in range(n)]
    for index, choice in enumerate(whole["choices"]):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert choice["index"] == index
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 12 * n
    (timed,) = [c["timings"] for c in chunks if "timings" in c]
    assert timed["predicted_n"] == 12 * n
    assert 0 <= timed["draft_n_accepted"] <= timed["draft_n"]


def test_steps_of_several_choices_come_in_order(url: str) -> None:
    chunks = events(chat(url, max_tokens=20, n=3, gamma=0, stream=True))
    order = [c["choices"][0]["index"] for c in chunks]
    assert order[3:] == [0, 1, 2] * 19 + [0, 0, 1, 1, 2, 2]  # the last step also ends each


def test_a_text_stream_says_what_the_whole_answer_says(url: str) -> None:
    whole = text(url, max_tokens=9, seed=5).json()
    chunks = events(text(url, max_tokens=9, seed=5, stream=True))
    assert {c["object"] for c in (*chunks, whole)} == {"text_completion"}
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    assert all("usage" not in c for c in chunks)
    again = text(url, prompt=[8, 5, 12, 12, 15], max_tokens=9, seed=5)  # the same as tokens
    assert again.json()["choices"][0]["text"] == whole["choices"][0]["text"]


def test_every_request_without_a_seed_draws_its_own(url: str) -> None:
    texts = {text(url, max_tokens=24).json()["choices"][0]["text"] for _ in range(4)}
    assert len(texts) == 4


def test_timings_and_usage_of_a_whole_answer(url: str) -> None:
    answer = text(url, max_tokens=10, seed=1, gamma=0).json()
    timed = answer["timings"]
    assert (timed["prompt_n"], timed["predicted_n"]) == (5, 10)
    assert (timed["draft_n"], timed["draft_n_accepted"]) == (0, 0)
    assert min(timed["queue_ms"], timed["prompt_ms"], timed["predicted_ms"]) >= 0
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}


def test_counters_add_up() -> None:
    with served(engine(), gamma=3) as (url, _):
        before = HTTP.get(f"{url}/metrics").text
        assert "gatekeeper:spec_decode_num_drafts_total 0.0" in before
        timed = [text(url, max_tokens=30, seed=seed).json()["timings"] for seed in range(3)]
        text(url, max_tokens=5, gamma=0)
        shown = HTTP.get(f"{url}/metrics").text
        accepted = sum(t["draft_n_accepted"] for t in timed)
        assert gauge(url, "spec_decode_num_draft_tokens_total") == sum(t["draft_n"] for t in timed)
        assert gauge(url, "spec_decode_num_accepted_tokens_total") == accepted > 0
        assert gauge(url, "generation_tokens_total") == 95
        assert gauge(url, "prompt_tokens_total") == 20
        positions = [
            float(line.rpartition(" ")[2])
            for line in shown.splitlines()
            if line.startswith("gatekeeper:spec_decode_num_accepted_tokens_per_pos_total{")
        ]
        assert sum(positions) == accepted
        assert positions == sorted(positions, reverse=True)
        assert positions[0] <= gauge(url, "spec_decode_num_drafts_total")
        for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
            assert gauge(url, f"{name}_seconds_count") == 4
        assert gauge(url, "request_success_total") == 4
        assert gauge(url, "num_requests_running") == gauge(url, "num_requests_waiting") == 0


def test_a_step_of_several_requests_is_counted_by_position() -> None:
    metrics = ServerMetrics()
    metrics.step([bridge.Progress("r", 0.0, drafted=3, accepted=k) for k in (3, 1, 0)])
    shown = metrics.render().decode()
    for position, count in enumerate((2.0, 1.0, 1.0)):
        assert f'per_pos_total{{position="{position}"}} {count}\n' in shown
    assert "num_drafts_total 3.0" in shown


def test_what_operators_and_clients_ask_first(url: str) -> None:
    assert HTTP.get(f"{url}/health").json() == {"status": "ok"}
    (model,) = HTTP.get(f"{url}/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("fake", 512)
    assert HTTP.get(f"{url}/v1/models/other").json()["id"] == "fake"
    refused(HTTP.get(f"{url}/v1/models/none"), 404, "model")
    assert HTTP.get(f"{url}/version").json() == {"version": "1"}
    tokens = HTTP.post(f"{url}/tokenize", json={"content": "ab"}).json()
    assert tokens == {"tokens": [1, 2], "count": 2, "max_model_len": 512}
    found = HTTP.post(f"{url}/detokenize", json={"tokens": [1, 2]}).json()
    assert found == {"content": "<1><2>", "prompt": "<1><2>"}


def test_errors_have_one_shape(url: str) -> None:
    refused(chat(url, temperatur=1), 400, "temperatur")
    refused(chat(url, model="gpt"), 404, "model")
    refused(chat(url, temperature=-1), 400, "temperature")
    refused(text(url, prompt=[1, 400]), 400, "prompt", ours=False)
    long = refused(text(url, prompt="a" * 512), 400, "prompt")
    assert "512" in long["message"]
    refused(text(url, prompt=""), 400, "prompt")
    refused(HTTP.get(f"{url}/v1/nothing"), 404, None)
    refused(HTTP.get(f"{url}/v1/completions"), 405, None)
    refused(HTTP.post(f"{url}/v1/completions", content=b"{"), 400, "content-type")
    headers = {"content-type": "application/json; charset=utf-8"}
    refused(HTTP.post(f"{url}/v1/completions", content=b"{", headers=headers), 400, "body")


def test_a_stream_that_is_refused_has_the_errors_own_status(url: str) -> None:
    refused(text(url, prompt=[1, 400], stream=True), 400, "prompt", ours=False)


def test_a_body_beyond_all_use_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_BYTES", 1000)
    refused(text(url, prompt="a" * 2000), 413, "body")


def forever(**change: Any) -> dict[str, Any]:
    return {"prompt": "hello", "max_tokens": 400, "stream": True, **change}


@contextmanager
def streaming(url: str, **change: Any) -> Iterator[Iterator[str]]:
    """Lines of a stream that has begun; leaving closes the connection."""
    body = forever(**change)
    with HTTP.stream("POST", f"{url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


def test_beyond_slots_and_queue_a_request_is_refused_until_one_leaves() -> None:
    with served(engine(slots=1, slow=True), waiting=1) as (url, _):
        with streaming(url):
            waiting = threading.Thread(target=text, args=(url,), kwargs={"max_tokens": 2})
            waiting.start()
            wait_until(lambda: gauge(url, "num_requests_waiting") == 1)
            assert gauge(url, "num_requests_running") == 1
            error = chat(url, max_tokens=2)
            refused(error, 429, "queue")
            assert int(error.headers["retry-after"]) > 0
            refused(text(url, max_tokens=2, n=3), 429, "queue")
        waiting.join(30)
        assert not waiting.is_alive()
        assert text(url, max_tokens=2).status_code == 200


def test_a_client_that_leaves_frees_its_slot_at_once() -> None:
    fake = engine(slots=1, slow=True)
    with served(fake) as (url, service):
        with streaming(url) as lines:
            next(lines)
        wait_until(lambda: not fake._active, seconds=2)
        assert service.bridge.running == service.bridge.waiting == 0
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{url}/v1/completions", json=forever(stream=False), timeout=0.3)
        wait_until(lambda: not fake._active, seconds=2)
        assert text(url, max_tokens=3).json()["usage"]["completion_tokens"] == 3
        wait_until(lambda: gauge(url, "request_broken_total") == 2)


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    fake = engine(slots=1, slow=True)
    with served(fake) as (url, service), streaming(url):
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{url}/v1/completions", json=forever(), timeout=0.2)
        wait_until(lambda: service.bridge.waiting == 0, seconds=2)
        assert service.bridge.running == 1


class Failing(FakeEngine):
    """Steps until it is told to fail, or to hang."""

    def __init__(self, *, after: int, **options: Any) -> None:
        super().__init__(**options)
        self.after = after
        self.hangs = threading.Event()
        self.released = threading.Event()

    def step(self) -> Any:
        self.after -= 1
        if self.after < 0 and self.hangs.is_set():
            self.released.wait(30)
        elif self.after < 0:
            raise RuntimeError("cuda is gone")
        return super().step()


@DIES
def test_a_failing_engine_fails_every_request_and_the_health() -> None:
    with served(Failing(after=5)) as (url, _):
        response = text(url, **forever())
        *_, error = [line for line in response.text.split("\n\n") if line]
        assert "RuntimeError" in json.loads(error.removeprefix("data: "))["error"]["message"]
        assert "[DONE]" not in response.text
        for answer in (chat(url), text(url, stream=True), HTTP.get(f"{url}/health")):
            refused(answer, 503, "engine")


@DIES
def test_a_failure_before_the_first_token_is_no_answer() -> None:
    with served(Failing(after=0)) as (url, _):
        refused(text(url, max_tokens=5), 503, "engine")
        refused(text(url, max_tokens=5, stream=True), 503, "engine")


def test_a_step_that_never_ends_fails_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "STALL_S", 0.2)
    fake = Failing(after=2)
    fake.hangs.set()
    with served(fake) as (url, _):
        refused(text(url, max_tokens=400), 503, "engine")
        assert "more than" in refused(HTTP.get(f"{url}/health"), 503, "engine")["message"]
        fake.released.set()


def test_a_stop_lets_answers_end() -> None:
    found: list[httpx.Response] = []
    with served(engine(slow=True)) as (url, service):
        ask = threading.Thread(target=lambda: found.append(text(url, **forever(max_tokens=30))))
        ask.start()
        wait_until(lambda: service.bridge.running == 1)
    ask.join(30)
    assert len(events(found[0])) == 31


def test_an_idle_server_stops_by_itself() -> None:
    stopped = threading.Event()
    with served(engine(), idle_exit_s=0.4, stop=stopped.set) as (url, _):
        deadline = time.monotonic() + 0.8
        while time.monotonic() < deadline:
            text(url, max_tokens=2)
        assert not stopped.is_set()
        assert stopped.wait(5)
