from __future__ import annotations

from typing import Any

from span_builders import span, trace

from gatekeeper.core.task_profile import profile_task


def call(span_id: Any, start: Any, end: Any, **more: Any) -> Any:
    return span(span_id, start, end, kind="decode", **more)


def test_recorded_wait_is_taken_out_exactly() -> None:
    found = profile_task(
        trace(call("a", 0, 100), span("ask", 100, 700, kind="human_wait"), call("b", 700, 800))
    )
    without = found.without_waiting
    assert without is not None
    assert (without.basis, without.wall_ns, without.saving_ns) == ("measured", 200, 100)
    assert found.saving.value == 100  # with the wait: the same seconds of a longer wall


def test_wait_beside_a_call_hid_what_the_call_saves() -> None:
    found = profile_task(
        trace(
            span("root", 0, 600),
            call("a", 0, 500, parent="root"),
            span("ask", 0, 600, parent="root", kind="human_wait"),
        )
    )
    assert found.saving.value == 0
    assert found.without_waiting is not None
    assert found.without_waiting.saving_ns == 250
    assert found.without_waiting.wall_ns == 500


def test_tools_of_a_source_that_never_tells_bound_the_wait() -> None:
    found = profile_task(trace(call("a", 0, 100), span("t", 100, 700, kind="tool")))
    without = found.without_waiting
    assert without is not None
    assert (without.basis, without.wall_ns, without.saving_ns) == ("bound", 100, 50)


def test_tools_of_a_source_that_tells_are_tools() -> None:
    found = profile_task(
        trace(
            call("a", 0, 100),
            span("ask", 100, 300, kind="human_wait"),
            span("t", 300, 700, kind="tool"),
        )
    )
    without = found.without_waiting
    assert without is not None
    assert (without.basis, without.wall_ns) == ("measured", 500)


def test_marked_span_may_hide_a_person_and_unmarked_ones_then_do_not() -> None:
    found = profile_task(
        trace(
            call("a", 0, 100),
            span("t", 100, 300, kind="tool"),
            span("pause", 300, 700, gatekeeper__human_wait="possible"),
        )
    )
    without = found.without_waiting
    assert without is not None
    assert (without.basis, without.wall_ns) == ("bound", 300)


def test_own_time_of_a_tool_goes_and_the_call_inside_it_stays() -> None:
    found = profile_task(trace(span("t", 0, 100, kind="tool"), call("a", 20, 60, parent="t")))
    without = found.without_waiting
    assert without is not None
    assert (without.wall_ns, without.saving_ns) == (40, 20)


def test_own_time_of_a_wait_goes_with_it() -> None:
    found = profile_task(
        trace(span("ask", 0, 100, kind="human_wait"), call("a", 20, 60, parent="ask"))
    )
    without = found.without_waiting
    assert without is not None
    assert (without.basis, without.wall_ns) == ("measured", 40)


def test_task_that_cannot_have_waited_has_no_second_price() -> None:
    assert profile_task(trace(call("a", 0, 100))).without_waiting is None


def test_task_that_is_not_priced_has_a_wall_and_no_saving() -> None:
    found = profile_task(trace(span("m", 0, 100, kind="model"), span("t", 100, 700, kind="tool")))
    without = found.without_waiting
    assert without is not None
    assert (found.saving.value, without.saving_ns, without.wall_ns) == (None, None, 100)


def test_detail_of_a_tool_is_no_tool_of_its_own() -> None:
    found = profile_task(
        trace(
            span("t", 0, 100, kind="tool", gatekeeper__human_wait="possible"),
            span("http", 10, 90, parent="t"),
            span("u", 100, 200, kind="tool"),
        )
    )
    without = found.without_waiting
    assert without is not None
    assert without.wall_ns == 100
