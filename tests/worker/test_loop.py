"""The worker's loop against an API made of answers: fences, retries, errors, idling."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from shipped_policies import shipped_policy

from gatekeeper.errors import Conflict, MissingExtra, Unauthorized, Unavailable
from gatekeeper.gates.equivalence import TABLES
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.lease import EXIT_LOST
from gatekeeper.worker.loop import Worker, WorkerOptions


def policy() -> Any:
    document = shipped_policy("demo")
    document["equivalence"] |= {"tokens_per_request": 8}
    document["equivalence"]["greedy"]["prompts"] = 1
    document["equivalence"]["sampled"] |= {"min_tokens": 16, "max_tokens": 32}
    document["serving"]["max_prompt_tokens"] = 150
    return document


def run_document(**changes: Any) -> Any:
    artifact = {
        "gamma": 2,
        "acceptance": {"method": "standard", "contract": "exact"},
        "proposer": {"kind": "ngram"},
        "sampling": [{"temperature": 1.0}],
        "engine": {"name": "fake", "device": "cpu"},
    }
    return {
        "id": "run-1",
        "gate": "equivalence",
        "route": "r",
        "slice": "prose",
        "artifact": {"digest": "d" * 64, "document": artifact},
        "policy": {"name": "demo", "digest": "p" * 64, "document": policy()},
        "parameters": {},
        "attempt": 1,
        "fence": 7,
        "lease_until": "2030-01-01T00:00:00Z",
        "cancel_requested": False,
        "sampling": [{"temperature": 1.0}],
        "slo": None,
        **changes,
    }


class Server:
    """Answers by path; ``script[path]`` is a list of answers, the last one stays."""

    def __init__(self, *runs: Any, **script: Any) -> None:
        self.runs = list(runs)
        self.script = script
        self.seen = []
        self.beaten = threading.Event()

    def __call__(self, request: Any) -> Any:
        name = request.url.path.rsplit("/", 1)[-1]
        if "/evidence/" in request.url.path:
            name = "evidence"
        self.seen.append((name, request))
        answers = self.script.get(name)
        if answers:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if name == "heartbeat":
                self.beaten.set()
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                return answer
        if name == "claim":
            if not self.runs:
                return httpx.Response(204)
            return httpx.Response(200, json={"run": self.runs.pop(0)})
        if name == "heartbeat":
            return httpx.Response(200, json={"lease_until": "", "cancel_requested": False})
        if name == "evidence":
            return httpx.Response(201, json={"sha256": request.headers["x-content-sha256"]})
        return httpx.Response(200, json={})

    def sent(self, name: str) -> Any:
        return [json.loads(r.content) for n, r in self.seen if n == name]

    def count(self, name: str) -> Any:
        return sum(n == name for n, _ in self.seen)


def problem(status: Any, **fields: Any) -> Any:
    return httpx.Response(status, json={"title": "Problem", "detail": "said so", **fields})


class Slept(Exception):
    pass


def worker(
    server: Server, provider: Any = None, *, lost: Any = None, patience: Any = 50, **options: Any
) -> Any:
    slept = []

    def sleep(seconds: Any) -> None:
        slept.append(seconds)
        if len(slept) > patience:
            raise Slept

    clock_lock = threading.Lock()
    ticks = [0.0]

    def clock() -> Any:
        with clock_lock:
            ticks[0] += 0.01
            return ticks[0] + sum(slept)

    client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(server))
    built = Worker(
        WorkerApi(client, "w"),
        {"fake": provider or FakeProvider(max_context=4096, order=2)},
        WorkerOptions(cache=Path(), devices=[{"kind": "cpu", "count": 1}], **options),
        clock=clock,
        sleep=sleep,
        say=lambda line: None,
        lost=lost or (lambda reason: None),
    )
    return built, slept


def test_a_run_is_claimed_measured_uploaded_and_finished_in_that_order() -> None:
    server = Server(run_document())
    assert worker(server, once=True)[0].run() == 0
    names = [n for n, _ in server.seen if n != "heartbeat"]
    assert names == ["claim", *["evidence"] * len(TABLES), "finish"]
    (claim,) = server.sent("claim")
    assert claim["engines"] == [{"name": "fake", "version": "1"}]
    (finish,) = server.sent("finish")
    assert finish["fence"] == 7
    assert set(finish["evidence"]) == set(TABLES)
    assert finish["result"]["gate"] == "equivalence"
    assert finish["info"]["vocab_size"] == 32
    rates = finish["info"]["details"]["rates"]
    assert rates["decode_tokens_per_s"] > 0
    assert rates["read_tokens_per_s"] > rates["score_tokens_per_s"] > 0
    for name, request in server.seen:
        if name == "evidence":
            assert request.url.params["fence"] == "7"


@pytest.mark.parametrize("where", ["evidence", "finish"])
def test_a_fenced_out_worker_writes_no_more_and_leaves(where: Any) -> None:
    server = Server(run_document(), **{where: [problem(409)]})
    built, _ = worker(server, once=False)
    assert built.run() == EXIT_LOST
    assert server.count(where) == 1
    assert server.count("fail") == 0
    assert server.count("claim") == 1


class Slow(FakeProvider):
    """An engine whose first step waits for the heartbeat to have been answered."""

    def __init__(self, server: Server) -> None:
        super().__init__(max_context=4096)
        self._server = server

    def open(self, *args: Any, **kwargs: Any) -> Any:
        engine = super().open(*args, **kwargs)
        step = engine.step

        def slow() -> Any:
            self._server.beaten.wait(20)
            return step()

        engine.step = slow
        return engine


def test_losing_the_lease_in_the_middle_stops_the_measurement() -> None:
    reasons = []
    server = Server(run_document(), heartbeat=[problem(409, field="fence")])
    built, _ = worker(server, Slow(server), lost=reasons.append, lease_s=0.2, once=True)
    assert built.run() == EXIT_LOST
    assert len(reasons) == 1
    assert server.count("finish") == server.count("evidence") == server.count("fail") == 0


@pytest.mark.parametrize("last", ["finish", "fail"])
def test_a_beat_that_is_fenced_by_our_own_last_write_is_no_loss(last: Any) -> None:
    reasons = []
    server = Server(run_document(), heartbeat=[problem(409, field="fence")])
    server.beaten.set()

    def answer(request: Any) -> Any:
        name = request.url.path.rsplit("/", 1)[-1]
        if name == last:  # committed; the answer takes until a beat was refused
            server.beaten.clear()
            assert server.beaten.wait(20)
        elif name == "heartbeat" and server.beaten.is_set():
            return httpx.Response(200, json={"lease_until": "", "cancel_requested": False})
        return server(request)

    provider = Broken(RuntimeError("no memory")) if last == "fail" else None
    built, _ = worker(answer, provider, lost=reasons.append, lease_s=0.2, once=True)
    assert built.run() == (1 if last == "fail" else 0)
    assert not reasons
    assert server.count(last) == 1


def test_a_lease_that_cannot_be_renewed_is_a_lost_one() -> None:
    reasons = []
    server = Server(run_document(), heartbeat=[httpx.ConnectError("cut off")])
    built, _ = worker(server, Slow(server), lost=reasons.append, lease_s=0.05, once=True)
    built.run()
    assert reasons
    assert "could not be renewed" in reasons[0]


def test_a_short_outage_is_survived() -> None:
    server = Server(
        run_document(),
        evidence=[httpx.ConnectError("gone"), problem(503), None],
        finish=[httpx.ReadTimeout("slow"), None],
    )
    built, slept = worker(server, once=True)
    assert built.run() == 0
    assert server.count("evidence") == len(TABLES) + 2
    assert server.count("finish") == 2
    assert len(slept) == 3


def test_a_long_outage_ends_the_worker_with_the_error() -> None:
    server = Server(
        run_document(), finish=[httpx.ConnectError("gone")], fail=[httpx.ConnectError("x")]
    )
    with pytest.raises(Unavailable):
        worker(server, once=True)[0].run()


def test_a_cancelled_run_is_handed_in_as_cancelled() -> None:
    server = Server(run_document(cancel_requested=True))
    assert worker(server, once=True)[0].run() == 0
    (finish,) = server.sent("finish")
    assert finish["result"]["outcome"] == "CANCELLED"
    assert finish["evidence"] == {}


class Broken(FakeProvider):
    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error

    def open(self, *args: Any, **kwargs: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (RuntimeError("CUDA out of memory"), False),
        (OSError("disk"), True),
        (Unavailable("busy"), True),
        (MissingExtra("no torch"), False),
    ],
)
def test_engine_errors_are_handed_back_with_their_message(error: Any, retry: Any) -> None:
    server = Server(run_document())
    assert worker(server, Broken(error), once=True)[0].run() == 1
    (failed,) = server.sent("fail")
    assert str(error) in failed["error"]
    assert (failed["retry"], failed["fence"]) == (retry, 7)
    assert server.count("finish") == 0


def test_a_refused_result_becomes_an_error_of_the_run() -> None:
    server = Server(run_document(), finish=[problem(422, field="claims")])
    assert worker(server, once=True)[0].run() == 1
    (failed,) = server.sent("fail")
    assert "claims" in failed["error"]
    assert failed["retry"] is False


def test_one_engine_serves_runs_of_the_same_artifact() -> None:
    provider = FakeProvider(max_context=4096, order=2)
    other = run_document(id="run-3")
    other["artifact"] = {**other["artifact"], "digest": "e" * 64}
    server = Server(run_document(), run_document(id="run-2"), other)
    built, _ = worker(server, provider, idle_exit_s=1.0)
    assert built.run() == 0
    assert server.count("finish") == 3
    assert len(provider.opened) == 2


def test_an_idle_worker_polls_then_leaves() -> None:
    built, slept = worker(Server(), poll_s=3.0, idle_exit_s=10.0)
    assert built.run() == 0
    assert slept == [3.0] * 4


def test_a_server_that_restarts_is_waited_for_but_a_wrong_address_is_not() -> None:
    server = Server(claim=[None, httpx.ConnectError("restart"), None])
    assert worker(server, poll_s=1.0, idle_exit_s=4.0)[0].run() == 0
    with pytest.raises(Unavailable):
        worker(Server(claim=[httpx.ConnectError("refused")]))[0].run()


@pytest.mark.parametrize(("status", "kind"), [(409, Conflict), (401, Unauthorized)])
def test_a_refused_claim_is_the_callers_error(status: Any, kind: Any) -> None:
    with pytest.raises(kind):
        worker(Server(claim=[problem(status)]), run_id="run-1", once=True)[0].run()


def test_a_worker_without_any_engine_says_how_to_get_one() -> None:
    class Missing(FakeProvider):
        def version(self) -> None:
            raise MissingExtra("is not installed", remedy="pip install gatekeeper[torch]")

    with pytest.raises(MissingExtra, match="pip install"):
        worker(Server(), Missing())[0].run()


def test_a_run_of_another_release_is_refused_not_guessed() -> None:
    document = run_document()
    del document["policy"]
    with pytest.raises(Exception, match="policy"):
        worker(Server(document), once=True)[0].run()
