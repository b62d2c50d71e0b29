"""Names, totals and their differences: nothing that is missing or no number is ever a zero."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import watch_samples as text
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.core.watch_metrics import (
    ENGINES,
    Sample,
    Scrape,
    Traffic,
    between,
    recognise,
    scrape,
)

COUNTS = ("rounds", "drafted", "accepted")


def totals(rounds: int, drafted: int, accepted: int) -> Scrape:
    return Scrape("vllm", dict(zip(COUNTS, (rounds, drafted, accepted), strict=True)))


@pytest.mark.parametrize(
    ("engine", "written", "waiting", "memory"),
    [
        ("vllm", text.vllm(waiting=2), 2, 0.31),
        ("llamacpp", text.llamacpp(), 2, None),
        ("sglang", text.sglang(), 1, 0.4),
    ],
)
def test_each_engine_is_known_by_its_names(
    engine: str, written: str, waiting: int, memory: float | None
) -> None:
    samples = text.read(written)
    assert recognise(samples) == engine
    seen = scrape(engine, samples)
    assert seen.problems == ()
    assert (seen.waiting, seen.memory_utilisation) == (waiting, memory)
    if engine != "sglang":
        assert seen.counters == {"rounds": 100, "drafted": 400, "accepted": 240}


def test_metrics_of_nobody_are_recognised_as_nobodys() -> None:
    assert recognise(text.read("python_gc_objects_collected_total 3\n")) is None


def test_engines_in_one_server_add_up_and_other_models_are_left_out() -> None:
    two = text.read(text.vllm()) + text.read(text.vllm(model="other", memory=0.9))
    both = scrape("vllm", two)
    assert both.counters["drafted"] == 800
    assert both.memory_utilisation == 0.9  # the fuller one
    assert scrape("vllm", two, model="m").counters["drafted"] == 400


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_misnamed_metric_is_missing_and_no_zero(engine: str) -> None:
    """Shows 8: "misnamed metric passes"."""
    written = {
        "vllm": text.vllm(),
        "llamacpp": text.llamacpp(),
        "sglang": text.sglang(),
        "reference": text.llamacpp()
        .replace("llamacpp:", "gatekeeper:")
        .replace("requests_processing", "num_requests_running")
        .replace("requests_deferred", "num_requests_waiting"),
    }[engine]
    names = ENGINES[engine]
    read = [*names.counters.values(), names.memory, names.waiting, names.accepted_length]
    sound = scrape(engine, text.read(written))
    assert between(sound, sound).rounds == 0
    for name in filter(None, read):
        seen = scrape(engine, text.read(written.replace(name, f"{name}x")))
        assert seen.problems == (f"{name} is missing",)
        if name in names.counters.values():
            assert between(sound, seen) == between(seen, sound) == Traffic()


@pytest.mark.parametrize("bad", ["NaN", "-1", "+Inf", "1e300"])
def test_what_is_no_count_is_a_problem(bad: str) -> None:
    """Shows 8: "NaN passes"."""
    for name in ("drafts", "drafted", "accepted", "memory", "waiting"):
        seen = scrape("vllm", text.read(text.vllm(**{name: bad})))
        assert len(seen.problems) == 1, name
        if name in {"drafts", "drafted", "accepted"}:
            assert between(totals(1, 1, 1), seen) == Traffic()
    assert scrape("vllm", text.read(text.vllm(memory="NaN"))).memory_utilisation is None


def test_sglangs_rounds_follow_from_tokens_and_tokens_a_round() -> None:
    before = scrape("sglang", text.read(text.sglang()))
    after = scrape("sglang", text.read(text.sglang(generated=2000)))
    assert between(before, after) == Traffic(rounds=400, drafted=None, accepted=600)
    assert between(after, after) == Traffic(0, 0, 0)
    idle = scrape("sglang", text.read(text.sglang(generated=3000, length=0.0)))
    assert "does not speculate" in between(after, idle).problems[0]
    twice = text.read(text.sglang()) + text.read(text.sglang())
    assert "2 series" in scrape("sglang", twice).problems[0]


def test_a_total_that_goes_back_is_a_restart() -> None:
    assert between(totals(10, 40, 20), totals(11, 44, 3)) == Traffic(restarted=True)


def test_more_accepted_than_drafted_cannot_be() -> None:
    seen = between(totals(0, 0, 0), totals(10, 40, 41))
    assert seen.drafted is None
    assert "cannot be" in seen.problems[0]


_total = st.integers(0, 2**40)


@settings(max_examples=50)
@given(st.lists(st.tuples(_total, _total, _total), min_size=2, max_size=6))
def test_no_difference_is_negative(rows: list[tuple[int, int, int]]) -> None:
    scrapes = [totals(*row) for row in rows]
    for before, after in pairwise(scrapes):
        seen = between(before, after)
        known = [x for x in (seen.rounds, seen.drafted, seen.accepted) if x is not None]
        assert all(x >= 0 for x in known)
        if known:
            assert seen.accepted <= seen.drafted  # type: ignore[operator]
        back = any(after.counters[k] < before.counters[k] for k in COUNTS)
        assert seen.restarted is back


@given(st.floats())
def test_any_float_is_a_sound_count_or_a_problem(value: float) -> None:
    names = ENGINES["vllm"].counters
    written = [Sample(name, {}, value) for name in names.values()]
    seen = scrape("vllm", written)
    sound = math.isfinite(value) and 0 <= value <= 2**53
    assert bool(seen.counters) is sound
    assert sum("spec_decode" in problem for problem in seen.problems) == (0 if sound else 3)
