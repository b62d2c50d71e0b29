from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from span_builders import span, trace

from gatekeeper.core.critical_path import makespan
from gatekeeper.core.span_clocks import MOST_CLOCKS, RESOLUTION_NS, Aligned, align, clock_of
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.traces import SpanEvent, canonical_key
from gatekeeper.reports.profile_words import evidence_sentences, excluded

MS = 10**6
HOSTS = ("app", "gpu", "tools", "proxy")


def on(host: str | None, span_id: str, start: float, end: float | None, **more: Any) -> Any:
    """A span of one machine; times in milliseconds."""
    named = {} if host is None else {"resource__host__name": host}
    stop = None if end is None else round(end * MS)
    return span(span_id, round(start * MS), stop, **named, **more)


def aligned(*spans: Any) -> Aligned:
    return align(sorted(spans, key=canonical_key))


def by_id(found: Aligned) -> dict[str, Any]:
    return {one.span_id: one for one in found.spans}


def test_clock_is_the_machines_else_the_services() -> None:
    assert clock_of(on("gpu-1", "a", 0, 1, resource__host__id="7f")) == "host 7f"
    assert clock_of(on("gpu-1", "a", 0, 1)) == "host gpu-1"
    assert clock_of(replace(on(None, "a", 0, 1), service="chat")) == "service chat"
    assert clock_of(on(None, "a", 0, 1)) is None


def test_child_that_starts_before_its_cause_is_moved_into_the_middle_of_it() -> None:
    # The server's clock is 500 ms behind; a request and an answer of 10 ms each.
    found = aligned(
        on("app", "call", 0, 220), on("gpu", "serve", -490, -290, parent="call", kind="decode")
    )
    moved = by_id(found)["serve"]
    assert (moved.start_ns, moved.end_ns) == (10 * MS, 210 * MS)
    assert found.repairs == ("clock of host gpu is behind: its 1 span moved by +500.000 ms",)
    assert found.problem is None


@pytest.mark.parametrize("waits", ["kinds", "model"])
def test_answer_that_ends_after_the_call_that_waited_for_it_is_moved_back(waits: str) -> None:
    kinds: Any = ({"span__kind": "client"}, {"span__kind": "server"})
    above, below = kinds if waits == "kinds" else ({"kind": "model"}, {"kind": "decode"})
    found = aligned(
        on("app", "call", 0, 220, **above), on("gpu", "serve", 510, 710, parent="call", **below)
    )
    assert by_id(found)["serve"].start_ns == 10 * MS
    assert found.repairs == ("clock of host gpu is ahead: its 1 span moved by -500.000 ms",)


@pytest.mark.parametrize(
    ("above", "below"),
    [({}, {}), ({"kind": "model"}, {"kind": "tool"}), ({"span__kind": "client"}, {})],
)
def test_work_that_nobody_waits_for_may_outlive_its_cause(above: Any, below: Any) -> None:
    spans = (on("app", "ask", 0, 220, **above), on("jobs", "job", 100, 300, parent="ask", **below))
    assert aligned(*spans) == Aligned(sorted(spans, key=canonical_key))


def test_a_millisecond_is_no_sign_and_neither_is_one_machine_or_an_unknown_one() -> None:
    early = RESOLUTION_NS / MS
    for child, parent in (("gpu", "app"), ("app", "app"), (None, "app"), ("gpu", None)):
        start = -early if (child, parent) == ("gpu", "app") else -500
        spans = (on(parent, "a", 0, 200), on(child, "b", start, 100, parent="a"))
        assert aligned(*spans).repairs == ()


def test_all_of_a_clock_moves_with_its_events_and_first_tokens() -> None:
    serve = on("gpu", "serve", -490, -290, parent="call", langfuse__completion_start_ns=-400 * MS)
    serve = replace(serve, events=(SpanEvent("first", -400 * MS),))
    other = on("gpu", "other", 1000, 1100)
    found = by_id(aligned(on("app", "call", 0, 220), serve, other))
    assert found["serve"].events[0].time_ns == 100 * MS
    assert found["serve"].attributes["langfuse.completion_start_ns"] == 100 * MS
    assert found["other"].start_ns == 1500 * MS
    assert found["call"].start_ns == 0


def test_several_calls_narrow_the_difference_down() -> None:
    # True difference 500 ms; the second request was fast, the third answer was.
    found = aligned(
        on("app", "one", 0, 300, span__kind="client"),
        on("gpu", "1", -400, -300, parent="one", span__kind="server"),
        on("app", "two", 1000, 1300, span__kind="client"),
        on("gpu", "2", 502, 600, parent="two", span__kind="server"),
        on("app", "three", 2000, 2300, span__kind="client"),
        on("gpu", "3", 1600, 1798, parent="three", span__kind="server"),
    )
    assert by_id(found)["1"].start_ns == pytest.approx(100 * MS, abs=3 * MS)


def test_clock_behind_another_is_found_through_it() -> None:
    # The proxy is right, the server that it called is not, and calls back to a third.
    found = aligned(
        on("app", "call", 0, 1000),
        on("proxy", "forward", 100, 900, parent="call"),
        on("gpu", "serve", -4800, -4200, parent="forward"),
        on("tools", "log", -4700, -4600, parent="serve"),
    )
    moved = by_id(found)
    assert moved["forward"].start_ns == 100 * MS
    assert moved["serve"].start_ns == 200 * MS
    assert moved["log"].start_ns == 300 * MS
    assert len(found.repairs) == 2


def test_decode_of_a_server_whose_clock_is_ahead_is_on_the_path_again() -> None:
    def task(ahead: float) -> Any:
        return profile_task(
            trace(
                on("app", "agent", 0, 1000),
                on("app", "chat", 0, 500, parent="agent", kind="model"),
                on(
                    "gpu",
                    "serve",
                    20 + ahead,
                    480 + ahead,
                    parent="chat",
                    kind="model",
                    langfuse__completion_start_ns=round((80 + ahead) * MS),
                ),
                on("app", "tool", 500, 1000, parent="agent", kind="tool"),
            )
        )

    right, wrong = task(0), task(300)
    assert right.saving.value == 200 * MS
    assert wrong.saving == right.saving
    assert wrong.critical_path_ns == right.critical_path_ns
    assert wrong.reconciled
    assert wrong.repairs == ("clock of host gpu is ahead: its 1 span moved by -300.000 ms",)


def test_clocks_that_no_shift_makes_agree_leave_the_task_unpriced_and_counted() -> None:
    spans = (
        on("app", "agent", 0, 9000),
        on("app", "one", 0, 1000, parent="agent", span__kind="client"),
        on("gpu", "1", -500, 0, parent="one", kind="decode", span__kind="server"),
        on("app", "two", 5000, 6000, parent="agent", span__kind="client"),
        on("gpu", "2", 6500, 7000, parent="two", kind="decode", span__kind="server"),
    )
    found = aligned(*spans)
    assert list(found.spans) == sorted(spans, key=canonical_key)
    assert found.repairs == ()
    profiled = profile_task(trace(*spans))
    assert (profiled.saving.value, profiled.evidence_grade, profiled.trusted) == (None, "D", False)
    assert any("no shift of whole clocks fits all spans" in note for note in profiled.repairs)
    assert excluded([profiled]) == {"untrusted timings": 1}
    assert "synchronise the clocks" in str(evidence_sentences(profiled)[1])


def test_more_clocks_than_are_set_right_are_left_alone_and_unpriced() -> None:
    spans = [
        on(f"h{i}", f"s{i}", -100 * i, 1000 - 100 * i, parent=f"s{i - 1}" if i else None)
        for i in range(MOST_CLOCKS + 2)
    ]
    found = aligned(*spans)
    assert found.repairs == ()
    assert f"more than {MOST_CLOCKS} clocks" in str(found.problem)
    assert aligned(*spans[: MOST_CLOCKS - 1]).problem is None


@st.composite
def distributed(draw: Any) -> tuple[list[Any], dict[str, int]]:
    """Nested calls between machines on true time, and what each machine's clock is off by."""
    spans = [on("app", "s0", 0, 10_000)]
    for i in range(1, draw(st.integers(2, 9))):
        parent = spans[draw(st.integers(0, i - 1))]
        length = parent.end_ns - parent.start_ns
        first, last = sorted(draw(st.tuples(st.integers(0, 100), st.integers(0, 100))))
        start, end = parent.start_ns + first * length // 100, parent.start_ns + last * length // 100
        host = draw(st.sampled_from(HOSTS))
        waits = draw(st.booleans())
        one = on(host, f"s{i}", 0, 0, parent=parent.span_id)
        more = {"span.kind": "server"} if waits else {}
        spans.append(
            replace(one, start_ns=start, end_ns=end, attributes={**one.attributes, **more})
        )
    spans = [
        one
        if "span.kind" in one.attributes
        else replace(one, attributes={**one.attributes, "span.kind": "client"})
        for one in spans
    ]
    off = st.sampled_from([0, 0, 3, 400, 25_000]) | st.integers(0, 20_000)
    offsets = {host: draw(off) * draw(st.sampled_from([-1, 1])) * MS for host in HOSTS[1:]}
    return spans, {**offsets, "app": 0}


def observed(spans: Any, offsets: Any) -> list[Any]:
    by = [offsets[one.attributes["resource.host.name"]] for one in spans]
    return [
        replace(one, start_ns=one.start_ns + d, end_ns=one.end_ns + d)
        for one, d in zip(spans, by, strict=True)
    ]


def possible(found: Aligned) -> bool:
    """Whether no child starts before its cause and no server outlasts the client that called it."""
    spans = by_id(found)
    for one in spans.values():
        parent = spans.get(one.parent_id or "")
        if parent is None or clock_of(parent) == clock_of(one):
            continue
        early = parent.start_ns - one.start_ns
        late = one.end_ns - parent.end_ns
        kinds = (parent.attributes["span.kind"], one.attributes["span.kind"])
        if early > RESOLUTION_NS or (kinds == ("client", "server") and late > RESOLUTION_NS):
            return False
    return True


@settings(max_examples=80, deadline=None)
@given(distributed())
def test_clocks_that_agree_are_never_touched(made: Any) -> None:
    spans = sorted(made[0], key=canonical_key)
    assert align(spans) == Aligned(spans)


@settings(max_examples=120, deadline=None)
@given(distributed())
def test_after_a_repair_everything_is_possible_and_lengths_are_kept(made: Any) -> None:
    found = aligned(*observed(*made))
    assert found.problem is None  # constant differences can always be set right
    assert possible(found)
    raw = {one.span_id: one for one in observed(*made)}
    moved: dict[str, set[int]] = {}
    for one in found.spans:
        before = raw[one.span_id]
        assert one.end_ns is not None
        assert one.end_ns - one.start_ns == before.end_ns - before.start_ns
        moved.setdefault(str(clock_of(one)), set()).add(one.start_ns - before.start_ns)
    assert all(len(shifts) == 1 for shifts in moved.values())
    assert moved["host app"] == {0}
    assert len(found.repairs) == sum(shifts != {0} for shifts in moved.values())
    assert aligned(*found.spans).repairs == ()


@settings(max_examples=80, deadline=None)
@given(distributed(), st.randoms(use_true_random=False), st.integers(0, 10**15))
def test_repair_depends_on_neither_order_nor_a_common_offset(
    made: Any, shuffler: Any, offset: int
) -> None:
    spans = observed(*made)
    first = profile_task(trace(*spans))
    later = [
        replace(one, start_ns=one.start_ns + offset, end_ns=one.end_ns + offset)
        for one in [*spans, *spans[:2]]
    ]
    shuffler.shuffle(later)
    second = profile_task(trace(*later))
    assert first.repairs == second.repairs
    assert first.graph == second.graph
    assert first.reconciled
    assert makespan(first.graph) == first.task.wall_ns


@settings(max_examples=80, deadline=None)
@given(distributed())
def test_shift_is_wrong_by_no_more_than_what_the_calls_leave_open(made: Any) -> None:
    spans, offsets = made
    seen = observed(spans, offsets)
    found = by_id(aligned(*seen))
    raw = {one.span_id: one for one in seen}
    true = {one.span_id: one for one in spans}
    for one in spans:
        parent = true.get(one.parent_id or "")
        if parent is None or clock_of(parent) != "host app" or clock_of(one) == "host app":
            continue
        assume(parent.attributes["span.kind"] == "client")
        if one.attributes["span.kind"] != "server":
            continue
        error = found[one.span_id].start_ns - raw[one.span_id].start_ns + offsets[clock_of(one)[5:]]
        slack = max(one.start_ns - parent.start_ns, parent.end_ns - one.end_ns)
        assert abs(error) <= slack + RESOLUTION_NS


@settings(max_examples=100, deadline=None)
@given(distributed(), st.integers(1, 8), st.integers(-20_000, 20_000))
def test_a_clock_that_was_set_meanwhile_is_set_right_or_refused_but_never_half(
    made: Any, index: int, step: int
) -> None:
    spans = observed(*made)
    at = index % len(spans)
    jumped = replace(
        spans[at], start_ns=spans[at].start_ns + step * MS, end_ns=spans[at].end_ns + step * MS
    )
    found = aligned(*spans[:at], jumped, *spans[at + 1 :])
    if found.problem is None:
        assert possible(found)
    else:
        assert not possible(found)
        assert found.repairs == ()
