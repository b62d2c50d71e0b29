"""What the service estimates decode with: the rate of the route that rules give a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from span_builders import TRACE_ID, span

from gatekeeper.actions.task_figures import compute
from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import RoutedRules, Routing

MS = 10**6
ROUTING = Routing(
    tuple(RoutedRules(name, (Rule(name, attributes=(("desk", name),)),)) for name in ("a", "b"))
)


def call(desk: Any, n: Any, length_ms: Any, **more: Any) -> Any:
    start = n * 1000 * MS
    known = {"gen_ai__usage__output_tokens": 10, "gen_ai__request__model": "small"}
    end = start + length_ms * MS
    return span(f"{desk}{n}", start, end, kind="model", desk=desk, **known, **more)


def test_each_route_is_estimated_from_its_own_calls() -> None:
    shown = [call("a", n, 200, ttft_ms=100) for n in range(3)]
    shown += [call("b", n, 600, ttft_ms=100) for n in range(3, 6)]
    found = [*shown, call("a", 7, 900), call("b", 8, 900)]
    seen: Any = SimpleNamespace(id=TRACE_ID, source_format="test", notes=())
    computed, problem = compute(seen, found, ROUTING)
    assert problem is None
    assert computed is not None
    decode = {
        work.span.span_id: sum(p.end_ns - p.start_ns for p in work.phases if p.kind == "decode")
        for work in computed.profile.task.works
    }
    assert (decode["a7"], decode["b8"]) == (100 * MS, 500 * MS)
    assert {one.route for one in computed.calls} == {"a", "b"}
