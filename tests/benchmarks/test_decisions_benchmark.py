"""The benchmark of decisions in small: its counts hold anywhere, its times are not looked at."""

from __future__ import annotations

from benchmark_scripts import script


def test_polling_costs_a_query_a_second_and_no_build() -> None:
    decisions = script("decisions")
    figures = decisions.measure(routes=20, clients=300, rounds=1, evaluations=3)
    assert figures.polls == 300
    assert figures.queries <= figures.seconds + 1
    assert figures.builds == 0
    assert 0 < figures.client_us < figures.ofrep_provider_us
    slow = decisions.replace(figures, client_us=9.0, ratio=10.0, queries=999, builds=2)
    assert len(slow.missed()) == 4
