"""The demo's agent on a synthetic engine whose times are known, its spans really exported."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gatekeeper import plugins
from gatekeeper.cli.demo.agent_report import lines
from gatekeeper.cli.demo.agent_run import ARMS, AgentResult, evaluate, run_agent
from gatekeeper.cli.demo.agent_spans import Spans, http_exporter
from gatekeeper.cli.demo.agent_task import Agent, task_works
from gatekeeper.cli.demo.agent_tools import Archive, Threads
from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.equations import verify
from gatekeeper.core.task_prediction import Speedup
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.errors import EvidenceError, Unavailable
from gatekeeper.testing import Costs, FakeEngine, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gatekeeper.core.traces import Trace

TOKENS = 25
GAMMA = 3
STEP_S = 0.05
EXACT = (Speedup(1, 4.0, 4.0, 4.0), Speedup(2, 4.0, 4.0, 4.0))
"""All drafts are accepted: 24 steps after the first become 6, so decode is 4 times as fast."""

TASKS = 3


@dataclass
class Collector:
    """Answers OTLP exports with ``status`` and keeps what came."""

    url: str
    status: int = 200
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            collector.headers.append({k.lower(): v for k, v in self.headers.items()})
            assert self.path == "/v1/traces"
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield collector
        server.shutdown()
        thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


class VirtualBackground:
    """Jobs that end when the virtual clock says so, however fast they really ran."""

    def __init__(self, clock: VirtualClock, now_ns: Callable[[], int]) -> None:
        self.clock = clock
        self.now_ns = now_ns

    def start(self, job: Any) -> Any:
        waited: list[float] = []
        began = self.clock.now
        value = job(waited.append)
        ends = began + sum(waited)

        class Done:
            def result(_self) -> Any:  # noqa: N805 - the outer self is wanted
                if self.clock.now < ends:
                    self.clock.advance(ends - self.clock.now)
                return value, round(ends * 1e9) + START_NS

        return Done()


START_NS = 1_800_000_000_000_000_000


@dataclass(frozen=True)
class Ran:
    result: AgentResult
    traces: dict[str, Trace]
    runs: dict[Any, Any]
    archive: Archive


def walk(
    collector: Collector,
    folder: Path,
    *,
    speedups: Sequence[Speedup] = EXACT,
    tool_s: Sequence[float] = (0.2,),
    jitter: float = 0.0,
    gammas: Sequence[tuple[int, int]] = ((1, GAMMA), (2, GAMMA)),
    tasks: int = TASKS,
    seed: int = 7,
    notes: list[tuple[int, str]] | None = None,
) -> Ran:
    clock = VirtualClock()

    def now_ns() -> int:
        return round(clock.now * 1e9) + START_NS

    engine = FakeEngine(
        agreement=1.0,
        max_context=2048,
        costs=Costs(prefill_token_s=1e-4, verify_s=STEP_S, jitter=jitter),
        spend=clock.advance,
    )
    spans = Spans(http_exporter(collector.url, "secret"), service="test")
    archive = Archive(folder / "agent.sqlite")
    agent = Agent(
        engine=engine,
        spans=spans,
        background=VirtualBackground(clock, now_ns),
        archive=archive,
        now_ns=now_ns,
        route="tool-calls",
        model="fake",
        run="test",
        sampling=(GREEDY,),
        max_tokens=TOKENS,
    )
    try:
        works = task_works(engine.tokenize, tasks, tool_s=tool_s, seed=seed)
        agent.warm_up((GAMMA, 0))
        note = (lambda done, line: notes.append((done, line))) if notes is not None else None
        runs = run_agent(
            agent,
            works,
            gammas=dict(gammas),
            seed=seed,
            **({} if note is None else {"note": note}),
        )
        found = read_traces(spans.document(), [plugins.load("gatekeeper.traces", "otlp")])
    finally:
        spans.close()
    traces = {trace.trace_id: trace for trace in found}
    return Ran(
        evaluate(traces, runs, speedups, route="tool-calls", run="test"), traces, runs, archive
    )


def test_what_the_ordinary_trace_predicts_is_what_speculation_saves(
    collector: Collector, tmp_path: Path
) -> None:
    for row in walk(collector, tmp_path).result.rows:
        assert row["problem"] is None
        assert row["predicted_s"]["value"] == pytest.approx(3 * 24 * STEP_S * 3 / 4, abs=1e-6)
        assert row["observed_s"] == pytest.approx(row["predicted_s"]["value"], abs=1e-6)
        assert row["residual_s"] == {"baseline": 0.0, "candidate": 0.0}


def test_a_branch_that_waits_for_a_slow_tool_saves_nothing(
    collector: Collector, tmp_path: Path
) -> None:
    result = walk(collector, tmp_path, tool_s=(0.2, 30.0)).result
    text = "\n".join(lines({**result.to_dict(), "speedup": [vars(one) for one in EXACT]}))
    assert "In task 2 the parallel calls wait for a slower tool" in text
    assert "saves 0.00 s there" in text
    for row in result.rows:
        slow = row["tool_s"] == 30.0
        assert row["branch_predicted_s"] == pytest.approx(0.0 if slow else 0.9, abs=1e-6)
        calls = 2 if slow else 3
        assert row["predicted_s"]["value"] == pytest.approx(calls * 0.9, abs=1e-6)
        assert row["observed_s"] == pytest.approx(row["predicted_s"]["value"], abs=1e-6)


def test_with_noise_the_observed_mean_lies_in_the_widened_interval(
    collector: Collector, tmp_path: Path
) -> None:
    speedups = [Speedup(1, 3.8, 4.0, 4.2), Speedup(2, 3.8, 4.0, 4.2)]
    ran = walk(collector, tmp_path, speedups=speedups, tool_s=(0.2, 4.0), jitter=0.2, tasks=6)
    found = ran.result
    assert found.comparison is not None
    assert found.comparison.agrees is True
    assert found.comparison.widening is not None
    assert found.comparison.predicted_low < found.comparison.predicted
    assert found.comparison.predicted < found.comparison.predicted_high
    assert 0 < found.comparison.widening < 0.3
    assert found.decode_ratio == pytest.approx(4.0, rel=0.1)
    assert all(one.agrees for one in verify(found.claims))
    assert len(found.claims) == 10
    assert found.ceiling_s is not None
    assert found.wall_s is not None
    assert 0 < found.comparison.predicted < found.ceiling_s < found.wall_s


def test_a_speed_up_that_was_not_there_is_told_apart(collector: Collector, tmp_path: Path) -> None:
    found = walk(
        collector,
        tmp_path,
        speedups=[Speedup(1, 1.1, 1.2, 1.3), Speedup(2, 1.1, 1.2, 1.3)],
        tool_s=(0.2, 4.0),
        jitter=0.2,
        tasks=6,
    ).result
    assert found.comparison is not None
    assert found.comparison.agrees is False
    document = {**found.to_dict(), "speedup": [vars(Speedup(1, 1.1, 1.2, 1.3))]}
    text = "\n".join(lines(document))
    assert "OUTSIDE" in text
    assert "itself was 4.0" in text or "itself was 3.9" in text


def test_two_tasks_are_no_evidence_of_the_noise(collector: Collector, tmp_path: Path) -> None:
    found = walk(collector, tmp_path, tasks=2, jitter=0.2).result
    document = {**found.to_dict(), "speedup": [vars(one) for one in EXACT]}
    assert document["agrees"] is None
    assert document["observed_s"]["low"] is None
    assert "cannot be said" in "\n".join(lines(document))


def test_the_reports_own_saving_is_told_apart_from_the_prediction() -> None:
    interval = {"value": -1.084, "low": -1.5, "high": 0.5}
    document = {
        "predicted_s": interval,
        "observed_s": interval,
        "confidence": 0.95,
        "widening_s": 0.1,
        "agrees": True,
        "decode_ratio": 1.3,
        "baseline_wall_s": 9.0,
        "ceiling_s": 4.0,
        "tasks": [],
        "problems": [],
        "speedup": [{"value": 1.5, "low": 1.4, "high": 1.6, "concurrency": 1}],
    }
    value = {
        "saved_s": {"value": 0.676, "low": 0.1, "high": 0.9},
        "speedup": {"ratio": 1.2, "low": 1.1, "high": 1.3, "concurrency": 2},
        "tasks": 6,
    }
    alone, beside = "\n".join(lines(document)), "\n".join(lines(document, value))
    assert "−1.08 s (−1.50 to 0.50)" in alone
    assert "critical path" not in alone
    assert 'The route\'s report has 676 ms as "Saved on the critical path"' in beside
    assert "every call gains 1.20×, as measured at concurrency 2, the worst that passed" in beside
    assert lines(document, {**value, "saved_s": None}) == lines(document)


def test_calls_that_decode_together_gain_the_ratio_of_their_own_concurrency(
    collector: Collector, tmp_path: Path
) -> None:
    lower = Speedup(2, 2.0, 2.0, 2.0)
    for at_two, saved in (([lower], 0.6), ([], 0.0)):  # not measured: not faster
        found = walk(collector, tmp_path, speedups=[EXACT[0], *at_two], tasks=1)
        (row,) = found.result.rows
        assert row["branch_predicted_s"] == pytest.approx(saved, abs=1e-6)
        assert row["predicted_s"]["value"] == pytest.approx(2 * 0.9 + saved, abs=1e-6)


def test_where_no_window_passed_the_candidate_decodes_ordinarily(
    collector: Collector, tmp_path: Path
) -> None:
    ran = walk(collector, tmp_path, gammas=[(1, GAMMA)], speedups=[EXACT[0]], tasks=1)
    (row,) = ran.result.rows
    assert row["rounds"]["candidate"] == 2 * TOKENS + 2 * 7
    assert row["observed_s"] == pytest.approx(row["predicted_s"]["value"], abs=1e-6)
    (candidate,) = [t for t in ran.traces.values() if t.trace_id == row["traces"]["candidate"]]
    named = ["gatekeeper.route" in s.attributes for s in candidate.spans]
    assert not any(named)  # the candidate's arm as a whole stays unpriced


def test_spans_carry_what_the_service_needs(collector: Collector, tmp_path: Path) -> None:
    ran = walk(collector, tmp_path, tasks=2)
    assert {headers["authorization"] for headers in collector.headers} == {"Bearer secret"}
    assert len(collector.requests) == 4  # one after each task run, none during it
    assert len({span.span_id for span in collector.spans}) == len(collector.spans) == 4 * 8
    for trace in ran.traces.values():
        calls = [s for s in trace.spans if s.attributes.get("gen_ai.operation.name") == "chat"]
        assert [c.attributes["gatekeeper.concurrency"] for c in calls] == [1, 2, 2, 1]
        assert {c.attributes["gen_ai.usage.output_tokens"] for c in calls} == {TOKENS}
        sessions = {s.attributes["session.id"] for s in trace.spans}
        assert len(sessions) == 1
        assert sessions == {s.attributes["gen_ai.conversation.id"] for s in trace.spans}
        (arm,) = {s.attributes["gatekeeper.arm"] for s in trace.spans}
        gammas = {c.attributes["gatekeeper.gamma"] for c in calls}
        assert gammas == {0 if arm == "baseline" else GAMMA}
        # Only what decoded ordinarily may be priced.
        named = "gatekeeper.route" if arm == "baseline" else "gatekeeper.candidate_of"
        assert {c.attributes[named] for c in calls} == {"tool-calls"}
        assert all(("gatekeeper.route" in c.attributes) == (arm == "baseline") for c in calls)


def test_both_arms_do_the_same_work_in_random_order(collector: Collector, tmp_path: Path) -> None:
    notes: list[tuple[int, str]] = []
    ran = walk(collector, tmp_path, seed=3, notes=notes)
    for row in ran.result.rows:
        assert row["same_text"]
        assert row["tokens"] == {"baseline": 4 * TOKENS, "candidate": 4 * TOKENS}
        assert row["rounds"] == {"baseline": 4 * TOKENS, "candidate": 4 * 7}
    kept = ran.archive.results()
    assert sorted((task, arm) for task, arm, _, _ in kept) == [
        (task, arm) for task in range(TASKS) for arm in ARMS
    ]
    first = [next(arm for number, arm, _, _ in kept if number == task) for task in range(TASKS)]
    assert set(first) == set(ARMS)
    assert [done for done, _ in notes] == list(range(1, 2 * TASKS + 1))


def test_spans_that_nobody_took_end_the_run(collector: Collector, tmp_path: Path) -> None:
    collector.status = 401
    with pytest.raises(Unavailable, match=r"did not take 8 spans.*doctor"):
        walk(collector, tmp_path, tasks=1)


def test_a_task_without_its_trace_is_no_evidence(collector: Collector, tmp_path: Path) -> None:
    ran = walk(collector, tmp_path, tasks=1)
    with pytest.raises(EvidenceError, match="was not exported"):
        evaluate({}, ran.runs, EXACT, route="r", run="x")


def test_a_trace_without_decode_times_is_left_out_and_said(
    collector: Collector, tmp_path: Path
) -> None:
    from dataclasses import replace

    ran = walk(collector, tmp_path, tasks=1)
    blind = {
        trace_id: replace(
            trace,
            spans=tuple(
                replace(
                    span,
                    attributes={
                        k: v
                        for k, v in span.attributes.items()
                        if k != "gen_ai.response.time_to_first_chunk"
                    },
                )
                for span in trace.spans
            ),
        )
        for trace_id, trace in ran.traces.items()
    }
    found = evaluate(blind, ran.runs, EXACT, route="r", run="x")
    assert found.comparison is None
    assert "grade C" in found.problems[0]
    assert lines({**found.to_dict(), "speedup": []})[0] == "No task could be compared:"


def test_half_a_task_is_never_sent(collector: Collector) -> None:
    spans = Spans(http_exporter(collector.url, "t"), service="test")
    root = spans.start("root", START_NS, {})
    spans.start("child", START_NS, {}, parent=root).end(START_NS + 5)
    spans.close()
    assert collector.spans == []
    assert spans.acknowledged == 0


def test_closing_wakes_a_tool_that_waits() -> None:
    background = Threads(lambda: 5)
    pending = background.start(lambda wait: wait(3600))
    background.close()
    assert pending.result() == (None, 5)
