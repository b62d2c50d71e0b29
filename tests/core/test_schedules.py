from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from clock_changes import HOURS, ZONES, Window, windows
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core import schedules
from gatekeeper.core.schedules import Rule, Slot
from gatekeeper.errors import InputError


def local(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = schedules.slots(
        cron, ZoneInfo(zone), after=datetime.fromisoformat(after).replace(tzinfo=UTC).timestamp()
    )
    return [schedules.local_time(at, ZoneInfo(zone))[5:22] for at in islice(found, count)]


def test_twenty_zones_and_changes_both_ways() -> None:
    assert len(ZONES) >= 20
    assert len({w.zone.key for w in windows()}) == len(ZONES)
    assert sum(w.forward for w in windows()) >= 15
    assert sum(not w.forward for w in windows()) >= 15


@settings(max_examples=60, deadline=None)
@given(
    window=st.deferred(lambda: st.sampled_from(windows())),
    minutes=st.frozensets(st.sampled_from([0, 1, 15, 29, 30, 31, 44, 45, 59]), min_size=1),
    hours=st.frozensets(st.integers(0, 23), min_size=1) | st.just(frozenset(range(24))),
    start=st.integers(0, 2 * HOURS * 60),
)
def test_slots_are_what_the_clock_shows_minute_by_minute(
    window: Window, minutes: frozenset[int], hours: frozenset[int], start: int
) -> None:
    cron = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    after = window.begins + 60 * start + 17.5
    found = schedules.slots(cron, window.zone, after=after)
    expected = [at for at in window.served(minutes, hours) if at > after]
    assert list(takewhile(lambda at: at <= window.ends, found)) == expected


def test_a_time_left_out_is_served_when_the_clock_jumps() -> None:
    assert local("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == [
        "03-29T03:00:00+02",
        "03-30T02:30:00+02",
    ]
    assert local("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == [
        "03-29T03:00:00+02",  # both, once
        "03-30T02:00:00+02",
    ]
    assert local("0 9 * * *", "Pacific/Apia", "2011-12-30T00:00", 2) == [
        "12-31T00:00:00+14",  # the 30th was left out whole
        "12-31T09:00:00+14",
    ]


def test_a_time_shown_twice_is_served_the_first_time() -> None:
    assert local("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == [
        "10-25T02:30:00+02",
        "10-26T02:30:00+01",
    ]
    # also when asked between the two
    assert local("30 2 * * *", "Europe/Berlin", "2026-10-25T00:45", 1) == ["10-26T02:30:00+01"]


def test_days_of_the_month_and_of_the_week() -> None:
    assert local("0 6 * * mon-fri", "UTC", "2026-11-27T12:00", 2) == [
        "11-30T06:00:00+00",
        "12-01T06:00:00+00",
    ]
    assert local("0 6 L * *", "UTC", "2028-02-01T00:00", 1) == ["02-29T06:00:00+00"]
    assert local("0 6 1 * sun", "UTC", "2026-11-27T12:00", 2) == [
        "11-29T06:00:00+00",
        "12-01T06:00:00+00",
    ]


@settings(max_examples=20, deadline=None)
@given(
    window=st.deferred(lambda: st.sampled_from(windows())),
    step=st.sampled_from(["*/5 * * * *", "0 * * * *", "10,12 2-4 * * *"]),
    jitter_s=st.floats(0, 7200),
    key=st.text(max_size=5),
)
def test_jitter_is_bounded_repeatable_and_never_reorders(
    window: Window, step: str, jitter_s: float, key: str
) -> None:
    def table(key: str) -> list[Slot]:
        times = schedules.timetable(
            step, window.zone, after=window.begins, jitter_s=jitter_s, key=key
        )
        return list(islice(times, 30))

    found = table(key)
    assert found == table(key)
    for one, other in pairwise(found):
        assert one.at <= one.due_at <= min(one.at + jitter_s, other.at)
        assert one.due_at <= other.due_at
    if jitter_s > 1:
        assert [s.due_at for s in table(key + "x")] != [s.due_at for s in found]


def slots_at(*times: float) -> Any:
    return iter([Slot(at, at) for at in times])


def test_after_a_downtime_one_run_catches_up_and_the_rest_is_missed() -> None:
    assert schedules.due(slots_at(100, 200), now=99, most=9) == schedules.Due(
        (), None, "missed", 100
    )
    on_time = schedules.due(slots_at(100, 900), now=160, most=9)
    assert (on_time.missed, on_time.at, on_time.outcome, on_time.next_at) == (
        (),
        100,
        "fired",
        900,
    )
    late = schedules.due(slots_at(100, 200, 300, 900), now=361, most=9)
    assert (late.missed, late.at, late.outcome, late.next_at) == ((100, 200), 300, "caught_up", 900)
    last = schedules.due(slots_at(100), now=500, most=9)
    assert (last.at, last.outcome, last.next_at) == (100, "caught_up", None)


def test_more_than_a_batch_is_missed_in_batches_and_then_caught_up_with() -> None:
    first = schedules.due(slots_at(1, 2, 3, 4, 900), now=500, most=2)
    assert (first.missed, first.at, first.next_at) == ((1, 2), None, 3)
    second = schedules.due(slots_at(3, 4, 900), now=500, most=2)
    assert (second.missed, second.at, second.next_at) == ((3,), 4, 900)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",  # seconds are no field here
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 31 2 *",
        "* * * 13 *",
        "* * * * fry",
        "*/0 * * * *",
        "5-1 * * * *",
        "@daily",
        "²L * * * *",
        "* * * * mon#2/2",
        "0," * 120 + "0 * * * *",
    ],
)
def test_what_is_no_cron_expression_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="mon-fri") as refused:
        schedules.check_cron(text)
    assert refused.value.field == "cron"


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="0159*/-,L#WmonFEB ²x", max_size=24))
def test_any_text_is_an_expression_or_an_input_error(text: str) -> None:
    try:
        once = schedules.check_cron(text)
    except InputError:
        return
    assert schedules.check_cron(once) == once


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": None, "zone": None}, "cron"),
        ({"zone": None}, "zone"),  # never a zone of somebody's machine
        ({"cron": None, "before_expiry_s": 1.0}, "zone"),
        ({"jitter_s": -1.0}, "jitter_s"),
        ({"jitter_s": 1e300}, "jitter_s"),
        ({"cron": None, "zone": None, "on_new_version": True, "jitter_s": 1.0}, "jitter_s"),
        ({"before_expiry_s": 0.0}, "before_expiry_s"),
        ({"before_expiry_s": float("nan")}, "before_expiry_s"),
        ({"priority": 101}, "priority"),
        ({"gates": ()}, "gates"),
        ({"gates": ("speed",)}, "gates"),
        ({"gates": ("serving", "serving")}, "gates"),
    ],
)
def test_a_rule_that_cannot_be_meant_names_its_field(changes: dict[str, Any], field: str) -> None:
    document = {"route": "r", "cron": "0 3 * * *", "zone": "UTC", **changes}
    with pytest.raises(InputError) as refused:
        Rule(**document)
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_rule_is_kept_in_one_form() -> None:
    rule = Rule("r", cron=" 0  3 * * *", zone="UTC", gates=("serving", "equivalence"))
    assert (rule.cron, rule.gates) == ("0 3 * * *", ("equivalence", "serving"))
