from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import trace_corpus

from gatekeeper import plugins
from gatekeeper.core.critical_path import critical_path, makespan, saving, stretch
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.core.trace_documents import read_traces
from gatekeeper.errors import TraceError

pytestmark = pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)


def formats() -> Any:
    return list(plugins.load_all("gatekeeper.traces").values())


def name(path: Any) -> Any:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", trace_corpus.files(readable=True), ids=name)
@pytest.mark.parametrize("ordered", [True, False])
def test_resimulation_reproduces_the_observed_makespan(path: Any, ordered: Any) -> None:
    for trace in read_traces(path.read_bytes(), formats()):
        task = build_task(trace)
        graph = build_graph(task, happens_before=ordered)
        known = [t for s in trace.spans for t in (s.start_ns, s.end_ns) if t is not None]
        observed = max(known) - min(known)
        assert makespan(graph) == observed
        path_steps = critical_path(graph)
        assert sum(s.lag_ns + s.duration_ns for s in path_steps) == observed
        x = Fraction(1, 2)
        decode = sum(s.duration_ns for s in path_steps if graph.kind[s.node] == "decode")
        assert 0 <= saving(graph, stretch(graph, task, kinds={"decode": x})) <= (1 - x) * decode


@pytest.mark.parametrize("path", trace_corpus.files(readable=True), ids=name)
def test_every_file_of_a_known_format_is_profiled_and_reconciled(path: Any) -> None:
    for trace in read_traces(path.read_bytes(), formats()):
        profiled = profile_task(trace)
        assert profiled.reconciled
        assert profiled.residual_ns == 0
        assert sum(profiled.critical_path_ns.values()) == profiled.task.wall_ns
        if profiled.saving.value is None:
            assert profiled.evidence_grade == "D"
        else:
            assert profiled.saving.low <= profiled.saving.value <= profiled.saving.high


@pytest.mark.parametrize("path", trace_corpus.files(readable=False), ids=name)
def test_every_other_file_is_refused_with_its_reason(path: Any) -> None:
    with pytest.raises(TraceError, match=r"not a trace: .*formats that are read"):
        read_traces(path.read_bytes(), formats())


def test_export_flushed_at_the_end_is_reconciled_but_not_priced() -> None:
    (path,) = trace_corpus.ROOT.glob("langfuse/beeai*")
    (trace,) = read_traces(path.read_bytes(), formats())
    profiled = profile_task(trace)
    assert profiled.reconciled
    assert profiled.saving.value is None
    assert any("38.5 s of model spans in a 17.2 s wall" in note for note in profiled.repairs)


def test_tool_run_inside_the_stream_moves_with_the_decode_that_called_it() -> None:
    (path,) = trace_corpus.ROOT.glob("agent-prism/langfuse-3.json")
    (trace,) = read_traces(path.read_bytes(), formats())
    profiled = profile_task(trace)
    assert profiled.evidence_grade == "B"
    # Half of what was decoded before the tool was called, and half of the second call.
    assert 7.7e9 < profiled.saving.value < 7.8e9
