from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

from span_builders import TRACE_ID, span

from gatekeeper.actions import task_spans, tasks
from gatekeeper.actions.ingest import Intake, _store
from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import RoutedRules, Routing, TaskRules
from gatekeeper.store import spans as store
from gatekeeper.store.schema_traces import task as table

if TYPE_CHECKING:
    import pytest

    from gatekeeper.store.database import Database

TEXT = "a customer asks about an order " * 200


def stored(db: Database, count: int, **more: Any) -> None:
    """One task: calls in turn with tools, each with a text of its own."""
    made = [span("root", 10**18, 10**18 + count * 1000)]
    for i in range(1, count):
        kind = {"kind": "tool", "gen_ai__tool__call__id": f"call_{i}"} if i % 2 else {}
        chat = {"kind": "model", "gen_ai__usage__output_tokens": 9} if not kind else {}
        asks = f"{i} {TEXT} call_{i + 1}"
        start = 10**18 + i * 1000
        one = span(f"s{i}", start, start + 900, parent="root", app__state=asks, **kind, **chat)
        made.append(one)
    _store(Intake(db), made, source_format="otlp")


def due(db: Database) -> None:
    with db.write() as session:
        session.execute(table.update().values(due_at=0, touched_at=0))


def read(db: Database, routing: Routing) -> dict[str, Any]:
    with db.read() as session:
        found = task_spans.read_spans(session, TRACE_ID, routing, limit=100)
    return {one.span_id: one for one in found}


def test_long_texts_give_way_to_the_ids_they_name_and_rules_see_them_whole(db: Database) -> None:
    stored(db, 6)
    found = read(db, Routing())
    assert [found[f"s{i}"].attributes["app.state"] for i in (2, 4)] == ["call_3", "call_5"]
    ruled = Routing((RoutedRules("desk", (Rule("desk", attributes=(("app.state", "*order*"),)),)),))
    sessions = Routing((RoutedRules("desk", (), TaskRules(session_attribute="app.state")),))
    for routing in (ruled, sessions):
        assert TEXT in read(db, routing)["s2"].attributes["app.state"]


def test_small_documents_are_read_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    of_task = store.of_task

    def counted(*arguments: Any, **more: Any) -> Any:
        times.append(1)
        return of_task(*arguments, **more)

    monkeypatch.setattr(store, "of_task", counted)
    _store(Intake(db), [span("a", 10**18, 10**18 + 9, state="x" * 99)], source_format="otlp")
    assert len(read(db, Routing())) == len(times) == 1


def test_a_task_of_large_spans_never_has_all_their_texts_in_memory(db: Database) -> None:
    def peak(count: int) -> int:
        stored(db, count)
        due(db)
        gc.collect()
        tracemalloc.start()
        tracemalloc.reset_peak()
        assert tasks.settle_due(db) == 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        with db.write() as session:
            session.execute(table.delete())
        return most

    peak(10)  # loads what is loaded once
    count = 600
    assert peak(count) < count * len(TEXT)
