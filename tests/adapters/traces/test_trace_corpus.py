"""The real traces, file by file, against what is committed of them in tests/corpus.toml.

Run with GATEKEEPER_UPDATE_CORPUS=1 to write tests/corpus.toml anew; reasons why a CRISP file
expects something else are kept.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import pytest
import trace_corpus

from gatekeeper.core.critical_path import critical_path, makespan, saving, stretch
from gatekeeper.core.event_graph import build_graph
from gatekeeper.core.tasks import build_task
from gatekeeper.core.trace_documents import decode

pytestmark = pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)

EVERY = trace_corpus.every_file()
READABLE = trace_corpus.files(readable=True)
SECOND = 10**9


def only(folder: str, start: str) -> Any:
    (path,) = (trace_corpus.ROOT / folder).glob(f"{start}*")
    (one,) = trace_corpus.profiles(path)
    return one


def write_manifest() -> None:
    known = trace_corpus.manifest()
    entries = {}
    for path in EVERY:
        entry = trace_corpus.observe(path)
        if entry.get("crisp") == "differs":
            entry["crisp"] = known.get(trace_corpus.name(path), {}).get("crisp", "differs")
        entries[trace_corpus.name(path)] = entry
    trace_corpus.MANIFEST.write_text(trace_corpus.render(entries))
    trace_corpus.manifest.cache_clear()


def test_the_manifest_names_every_file_and_profiles_most() -> None:
    if os.environ.get("GATEKEEPER_UPDATE_CORPUS"):
        write_manifest()
    assert sorted(trace_corpus.manifest()) == sorted(map(trace_corpus.name, EVERY))
    assert len(EVERY) == 67
    assert len(trace_corpus.files(readable=True)) >= 55


@pytest.mark.parametrize("path", EVERY, ids=trace_corpus.name)
def test_profiling_gives_what_the_manifest_states(path: Any) -> None:
    found = trace_corpus.observe(path)
    stated = trace_corpus.manifest()[trace_corpus.name(path)]
    if found.get("crisp") == "differs":
        # The reason is written by hand: it must be there, the figures must be as found.
        assert len(stated["crisp"]) > len("differs")
        found["crisp"] = stated["crisp"]
    assert found == stated


@pytest.mark.parametrize("path", READABLE, ids=trace_corpus.name)
def test_every_profiled_task_reconciles_exactly(path: Any) -> None:
    for one in trace_corpus.profiles(path):
        assert one.reconciled
        assert one.residual_ns == 0
        assert sum(one.critical_path_ns.values()) == one.task.wall_ns
        if one.saving.value is None:
            assert one.evidence_grade == "D"
        else:
            assert one.saving.low <= one.saving.value <= one.saving.high


@pytest.mark.parametrize("path", READABLE, ids=trace_corpus.name)
@pytest.mark.parametrize("ordered", [True, False])
def test_resimulation_reproduces_the_observed_makespan(path: Any, ordered: Any) -> None:
    for trace in trace_corpus.traces(path):
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


@pytest.mark.parametrize("path", EVERY, ids=trace_corpus.name)
def test_one_format_alone_accepts_a_file(path: Any) -> None:
    """So that the order in which formats are asked decides nothing."""
    document = decode(path.read_bytes())
    accepted = [one.name for one in trace_corpus.formats() if one.accepts(document)]
    format_name = trace_corpus.manifest()[trace_corpus.name(path)].get("format")
    assert accepted == ([] if format_name is None else [format_name])


def test_touching_siblings_keep_their_model_time_on_the_path() -> None:
    koog = trace_corpus._task(only("langfuse", "koog"))
    assert koog["wall_ns"] == 5.843 * SECOND
    assert koog["model_ns"] == 4.782 * SECOND


def test_export_flushed_at_the_end_is_reconciled_but_not_priced() -> None:
    beeai = only("langfuse", "beeai")
    assert beeai.reconciled
    assert not beeai.trusted
    assert beeai.saving.value is None
    assert any("38.5 s of model spans in a 17.2 s wall" in note for note in beeai.repairs)


def test_tool_run_inside_the_stream_moves_with_the_decode_that_called_it() -> None:
    support = only("agent-prism", "langfuse-3")
    assert support.evidence_grade == "B"
    # Half of what was decoded before the tool was called, and half of the second call.
    assert 7.7e9 < support.saving.value < 7.8e9


@pytest.mark.parametrize(
    ("log", "said"),
    [("custom", "human wait of up to 0.508 s"), ("builtin", "human wait of 0.000 s")],
)
def test_logs_of_managed_agents_tell_human_wait_in_seconds(log: Any, said: Any) -> None:
    # Neither log holds a confirmation: in one the client answers, in the other nobody is asked.
    one = only("anthropic-managed-agents", f"anthropic_managed_{log}")
    assert any(note.startswith(said) for note in one.repairs)


@pytest.mark.parametrize(
    "path", [p for p in EVERY if p.parent.name == "crisp"], ids=lambda p: p.stem
)
def test_crisp_files_agree_or_the_difference_is_explained(path: Any) -> None:
    assert trace_corpus.crisp_expects(path)
    stated = trace_corpus.manifest()[trace_corpus.name(path)]["crisp"]
    found = [trace_corpus.exclusive_us(one) for one in trace_corpus.profiles(path)]
    assert (found == trace_corpus.crisp_expects(path)) == (stated == "agrees")
