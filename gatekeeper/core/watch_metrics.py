"""What an engine's metrics tell a watch: one table of names, and the difference of two scrapes.

vLLM's, llama.cpp's and our own names were seen on running servers; SGLang's come from its source. It
counts no drafts: ``spec_accept_length`` is a gauge of its last batches (bonus token included) and
``generation_tokens_total`` counts, which together give rounds. Its ``spec_accept_rate`` is not read,
since releases disagree whether the bonus token counts in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gatekeeper.core.watch_counts import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "ENGINES",
    "MetricNames",
    "Sample",
    "Scrape",
    "Traffic",
    "between",
    "recognise",
    "scrape",
]


@dataclass(frozen=True)
class MetricNames:
    """Names of one engine's series; None where it has no such series."""

    prefix: str
    counters: Mapping[str, str]
    accepted_length: str | None = None
    memory: str | None = None
    running: str | None = None
    waiting: str | None = None


def _drafts(prefix: str) -> dict[str, str]:
    return {
        "rounds": f"{prefix}spec_decode_num_drafts_total",
        "drafted": f"{prefix}spec_decode_num_draft_tokens_total",
        "accepted": f"{prefix}spec_decode_num_accepted_tokens_total",
    }


ENGINES: Mapping[str, MetricNames] = {
    "vllm": MetricNames(
        "vllm:",
        _drafts("vllm:"),
        memory="vllm:kv_cache_usage_perc",
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
    ),
    "llamacpp": MetricNames(
        "llamacpp:",
        _drafts("llamacpp:"),
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
    ),
    "sglang": MetricNames(
        "sglang:",
        {"generated": "sglang:generation_tokens_total"},
        accepted_length="sglang:spec_accept_length",
        memory="sglang:token_usage",
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
    ),
    "reference": MetricNames(
        "gatekeeper:",
        _drafts("gatekeeper:"),
        running="gatekeeper:num_requests_running",
        waiting="gatekeeper:num_requests_waiting",
    ),
}


@dataclass(frozen=True)
class Sample:
    """One value of a series, as the engine wrote it."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """What one look at ``/metrics`` told; None and absent keys are not known.

    ``counters`` are totals since the engine's start. ``problems`` name series that this engine
    should have and that are missing or no numbers: none of them is ever taken for a zero.
    """

    engine: str
    counters: Mapping[str, int] = field(default_factory=dict)
    accepted_length: float | None = None
    memory_utilisation: float | None = None
    running: int | None = None
    waiting: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Rounds and draft tokens between two scrapes; None is not known.

    ``drafted`` alone is None where the engine counts no drafted tokens.
    """

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    restarted: bool = False
    problems: tuple[str, ...] = ()


def recognise(samples: Iterable[Sample]) -> str | None:
    """The engine whose series these are; None where they are nobody's we know."""
    names = {sample.name for sample in samples}
    for engine, known in ENGINES.items():
        if any(name.startswith(known.prefix) for name in names):
            return engine
    return None


def scrape(engine: str, samples: Sequence[Sample], *, model: str | None = None) -> Scrape:
    """Read one engine's samples; with ``model``, series of other models are left out."""
    names = ENGINES[engine]
    reader = _Reader(
        [s for s in samples if model is None or s.labels.get("model_name", model) == model]
    )
    counters = {key: reader.total(name) for key, name in names.counters.items()}
    memory = reader.gauge(names.memory, most=1.0, together=max)
    return Scrape(
        engine,
        {key: value for key, value in counters.items() if value is not None},
        accepted_length=reader.single(names.accepted_length),
        memory_utilisation=memory,
        running=_whole(reader.gauge(names.running)),
        waiting=_whole(reader.gauge(names.waiting)),
        problems=tuple(reader.problems),
    )


def between(before: Scrape, after: Scrape) -> Traffic:
    """Difference of two scrapes of one engine, the later second.

    A total that went back is a restart: what happened since the first scrape is then not known.
    """
    totals = list(ENGINES[after.engine].counters)
    if before.engine != after.engine or any(key not in after.counters for key in totals):
        return Traffic()
    if any(key not in before.counters for key in totals):
        return Traffic()
    moved = {key: after.counters[key] - before.counters[key] for key in totals}
    if min(moved.values()) < 0:
        return Traffic(restarted=True)
    if "generated" in moved:
        return _from_length(moved["generated"], after.accepted_length)
    if moved["accepted"] > moved["drafted"] or moved["rounds"] > moved["drafted"]:
        said = (
            f"{moved['accepted']} tokens accepted of {moved['drafted']} drafted in "
            f"{moved['rounds']} rounds cannot be"
        )
        return Traffic(problems=(said,))
    return Traffic(moved["rounds"], moved["drafted"], moved["accepted"])


def _from_length(generated: int, length: float | None) -> Traffic:
    """Rounds from tokens and tokens a round; what was drafted in them stays unknown."""
    if generated == 0:
        return Traffic(0, 0, 0)
    if length is None:
        return Traffic()
    if length < 1:
        # SGLang shows 0 where it does not speculate
        return Traffic(problems=(f"a round commits {length:g} tokens: it does not speculate",))
    rounds = round(generated / length)
    return Traffic(rounds, None, max(0, generated - rounds))


@dataclass
class _Reader:
    samples: Sequence[Sample]
    problems: list[str] = field(default_factory=list)

    def total(self, name: str) -> int | None:
        """Sum of a counter's series, as several engines in one server have them."""
        found = self._sound(name, most=float(LARGEST))
        return None if found is None else int(sum(found))

    def gauge(
        self,
        name: str | None,
        *,
        most: float = float(LARGEST),
        together: Callable[[list[float]], float] = sum,
    ) -> float | None:
        """A gauge's series taken together."""
        if name is None:
            return None
        found = self._sound(name, most=most)
        return None if found is None else float(together(found))

    def single(self, name: str | None) -> float | None:
        """A gauge that has one series: a mean of several would need their weights."""
        if name is None:
            return None
        found = self._sound(name, most=float(LARGEST))
        if found is not None and len(found) > 1:
            self.problems.append(f"{name} has {len(found)} series: watch one engine at a time")
            return None
        return None if found is None else found[0]

    def _sound(self, name: str, *, most: float) -> list[float] | None:
        values = [sample.value for sample in self.samples if sample.name == name]
        if not values:
            self.problems.append(f"{name} is missing")
            return None
        for value in values:
            if not (math.isfinite(value) and 0 <= value <= most):
                self.problems.append(f"{name} is {value:g}")
                return None
        return values


def _whole(value: float | None) -> int | None:
    return None if value is None else math.ceil(value)
