from __future__ import annotations

import pytest

from gatekeeper.testing import VirtualClock
from gatekeeper.worker.progress import ANNOUNCE_S, Tracker


def test_time_left_follows_the_measured_rate_of_the_phase() -> None:
    clock = VirtualClock()
    tracker = Tracker(clock)
    assert tracker.latest is None
    tracker.report("sweep", 0, 10)
    assert tracker.latest.seconds_left is None
    clock.advance(8)
    tracker.report("sweep", 4, 10)
    assert tracker.latest.seconds_left == pytest.approx(12)
    tracker.report("confirm", 5, 10)  # resumed: what was done before says nothing of the rate
    assert tracker.latest.seconds_left is None
    clock.advance(3)
    tracker.report("confirm", 6, 10)
    assert tracker.latest.seconds_left == pytest.approx(12)
    assert "6/10, about 12 s left" in str(tracker.latest)


def test_a_short_phase_announces_its_ends() -> None:
    lines = []
    tracker = Tracker(VirtualClock(), lambda p: lines.append((p.phase, p.done)))
    for phase in ("a", "b"):
        for done in range(4):
            tracker.report(phase, done, 3)
    assert lines == [("a", 0), ("a", 3), ("b", 0), ("b", 3)]


def test_a_long_phase_says_where_it_stands_now_and_then() -> None:
    clock, lines = VirtualClock(), []
    tracker = Tracker(clock, lambda p: lines.append((p.done, p.seconds_left)))
    for done in range(1, 100):
        tracker.report("sampled", done, 1000)
        clock.advance(1)
    assert 5 <= len(lines) <= 100 / ANNOUNCE_S + 2
    assert lines[-1][1] == pytest.approx(1000 - lines[-1][0])
