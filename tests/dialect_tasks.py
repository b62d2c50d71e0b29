"""Spans of some dialect as OTLP, and the task that profiling makes of them."""

from __future__ import annotations

from typing import Any

import otlp_documents as otlp
from gatekeeper_adapters.traces.otlp import FORMAT

from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.trace_documents import read_traces

MS = otlp.MS


def profiled(*spans: Any, contain: Any = otlp.as_json, **options: Any) -> Any:
    (trace,) = read_traces(contain(spans), [FORMAT])
    found = profile_task(trace, **options)
    assert found.reconciled
    assert sum(found.critical_path_ns.values()) == found.task.wall_ns
    return found


def path(found: Any) -> Any:
    """Milliseconds on the critical path by kind, without the zeros."""
    return {kind: ns / MS for kind, ns in found.critical_path_ns.items() if ns}


def calls(found: Any) -> Any:
    return [call for _, call in found.task.calls]


def only_call(found: Any) -> Any:
    (call,) = calls(found)
    return call
