"""Whatever joins, leaves and shares a batch, each request gets the tokens it would get alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count as counting
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_drafters import damp, write_tiny_eagle, write_tiny_medusa
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("ngram", "draft_lm", "self_speculation", "medusa", "eagle", "eagle2")
RULES = (GREEDY, SamplingSettings(presence_penalty=0.5))  # the second keeps texts from looping
LONGEST = 14


@dataclass(frozen=True)
class Wish:
    """A request as drawn; ``stop_at`` is a place in its text whose words become a stop text."""

    family: int
    shared: int
    tail: int
    kind: str
    gamma: int = 4
    most: int = LONGEST
    rules: int = 1
    stop_at: int | None = None
    end_at: int | None = None
    least: int = 0
    logprobs: int | None = None
    evidence: bool = False
    adaptive: bool = False

    @property
    def prompt(self) -> tuple[int, ...]:
        """One of two long beginnings, cut somewhere, and one of a few ends."""
        start = np.random.default_rng(self.family).integers(3, 97, 70).tolist()
        return (*start[: self.shared], *range(20 + self.tail, 23 + 2 * self.tail))


WISHES = st.builds(
    Wish,
    family=st.integers(0, 1),
    shared=st.sampled_from([70, 50, 33, 10, 0]),
    tail=st.integers(0, 2),
    kind=st.sampled_from(KINDS),
    gamma=st.sampled_from([4, 2, 6, 1, 0]),
    most=st.sampled_from([LONGEST, 9, 5, 1]),
    rules=st.integers(0, len(RULES) - 1),
    stop_at=st.sampled_from([None, None, 2, 7, 10]),
    end_at=st.sampled_from([None, None, 4, 9]),
    least=st.sampled_from([0, 0, 6]),
    logprobs=st.sampled_from([None, None, 2]),
    evidence=st.booleans(),
    adaptive=st.sampled_from([False, False, True]),
)
ACTIONS = st.lists(
    WISHES
    | WISHES
    | st.integers(1, 3)  # steps
    | st.tuples(st.just("cancel"), st.integers(0, 8)),
    min_size=8,
    max_size=16,
)


EVERY_KIND = [Wish(i % 2, 50 - 17 * (i % 3), i % 3, kind) for i, kind in enumerate(KINDS)]
"""Six requests that draft as much as they may."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    root = tmp_path_factory.mktemp("mixed")
    # the head is not the embedding: texts wander; little of layer 1: drafts without it are often right
    target = write_tiny_llama(root / "target", tie_word_embeddings=False)
    damp(damp(target, 0.6, layers=(0,)), 0.2, layers=(1,))
    others = [
        ({"kind": "draft_lm"}, cut_layers(target, [0], range(60), root / "draft")),
        ({"kind": "self_speculation", "parameters": {"skip_layers": [1]}}, None),
        (
            {"kind": "medusa", "parameters": {"tree": [3, 2, 1]}},
            write_tiny_medusa(root / "medusa", target),
        ),
        (
            {"kind": "eagle", "parameters": {"tree": [2, 2, 1, 1]}},
            write_tiny_eagle(root / "eagle", target),
        ),
        (
            {"kind": "eagle2", "parameters": {"depth": 4, "top_k": 3, "nodes": 8}},
            write_tiny_eagle(root / "eagle2", target, ids=range(70), seed=2),
        ),
    ]

    def build(several: bool, **options: Any) -> Any:  # noqa: FBT001 - which of two
        return load_engine(
            target,
            {"kind": "ngram"},
            others=others if several else (),
            version="test",
            options=Options(**{"max_batch": 3, "max_context": 84, **options}),
        )

    plain = build(several=True)
    draft, block = plain._proposer.beside_target(), 6144  # bytes; with the states of 16 positions
    return {
        "alone": Oracle(build(several=False, max_batch=1, max_context=128)),
        "plain": plain,
        "pieces": build(several=True, prefill_chunk=16, max_batch=4),
        "prefixes": build(several=True, prefix_cache_bytes=draft + 99 * block, prefill_chunk=32),
        "tight": build(several=True, prefix_cache_bytes=draft + 5 * block),
    }


def words(tokens: Sequence[int]) -> str:
    return " ".join(f"t{token}" for token in tokens)


def ended(
    text: Sequence[int], request: DecodeRequest, limit: int
) -> tuple[list[int], str, str | None]:
    """Where a greedy text without stops ends once it has them, from the definitions."""
    for count in range(1, len(text) + 1):
        if text[count - 1] in request.end_tokens:
            return list(text[:count]), "stop", None
        now, before = words(text[:count]), words(text[: count - 1])
        new = [s for s in request.stop if now.find(s, max(0, len(before) - len(s) + 1)) >= 0]
        if new and count > request.min_tokens:
            return list(text[:count]), "stop", new[0]
        if count == request.max_tokens:
            return list(text[:count]), "length", None
        if len(request.prompt) + count == limit:
            return list(text[:count]), "context", None
    raise AssertionError((text, request))


class Oracle:
    """Ordinary decoding, one request at a time, on an engine that never sees a batch."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._decode = cache(self._run)

    def request(self, name: str, wish: Wish) -> DecodeRequest:
        plain = DecodeRequest(name, wish.prompt, wish.most, RULES[wish.rules])
        free = self._decode(plain.prompt, wish.rules, (), 0)
        end = () if wish.end_at is None else (free[wish.end_at],)
        held = self.text(plain.prompt, wish, end)
        at = wish.stop_at
        stop = () if at is None else (words(held[at : at + 2])[1:-1],)
        return replace(
            plain,
            gamma=wish.gamma,
            proposer=wish.kind,
            end_tokens=end,
            min_tokens=wish.least,
            stop=stop,
            logprobs=wish.logprobs,
            evidence=wish.evidence,
            adaptive=wish.adaptive,
        )

    def text(self, prompt: tuple[int, ...], wish: Wish, end: tuple[int, ...]) -> tuple[int, ...]:
        """The text that goes on after every stop."""
        holds = end if wish.least else ()
        return self._decode(prompt, wish.rules, holds, wish.least if holds else 0)

    def answer(
        self, request: DecodeRequest, wish: Wish, limit: int
    ) -> tuple[list[int], str, str | None]:
        return ended(self.text(request.prompt, wish, request.end_tokens), request, limit)

    def _run(
        self, prompt: tuple[int, ...], rules: int, end: tuple[int, ...], least: int
    ) -> tuple[int, ...]:
        """A text to its full length: ``end`` tokens are held back before ``least``, then go on."""
        tokens: list[int] = []
        while len(tokens) < LONGEST:
            banned = end if len(tokens) < least else ()
            base = RULES[rules]
            self._engine.submit(
                DecodeRequest(
                    "alone",
                    (*prompt, *tokens),
                    least - len(tokens) if banned else LONGEST - len(tokens),
                    replace(base, forbidden_tokens=banned),
                )
            )
            while True:
                result = self._engine.step()
                tokens += [token for emission in result.emitted for token in emission.tokens]
                if result.finished:
                    break
        return tuple(tokens)


def leftovers(value: Any, names: set[str], depth: int = 4) -> list[str]:
    """Where an object still holds something under a request's id."""
    if isinstance(value, dict):
        found = [name for name in value if name in names]
        return found + [n for inner in value.values() for n in leftovers(inner, names, depth - 1)]
    if isinstance(value, (list, set, tuple)):
        return [name for name in value if isinstance(name, str) and name in names]
    if depth and type(value).__module__.startswith("gatekeeper_adapters"):
        return leftovers(getattr(value, "__dict__", {}), names, depth - 1)
    return []


class Play:
    """One engine under a script; every promise is checked as soon as it can be."""

    def __init__(self, engine: Any, oracle: Oracle, seen: Counter[tuple[str, str]]) -> None:
        self.engine, self.oracle, self.seen = engine, oracle, seen
        self.slots = engine.info.max_batch
        self.asked: dict[str, tuple[Wish, DecodeRequest]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.over: dict[str, Any] = {}
        self.held = engine._proposer.held()

    def act(self, action: Any) -> None:
        if isinstance(action, Wish):
            name = f"r{len(self.asked)}"
            request = self.oracle.request(name, action)
            self.asked[name] = (action, request)
            self.tokens[name] = []
            self.engine.submit(request)
        elif isinstance(action, int):
            for _ in range(action):
                self.step()
        else:
            name = f"r{action[1]}"
            live = name in self.asked and name not in self.over
            self.engine.cancel(name)
            assert name not in self.engine._scheduler
            if live:
                self.seen["all", "cancelled"] += 1
        self.check_slots()

    def step(self) -> None:
        result = self.engine.step()
        for emission in result.emitted:
            assert emission.request_id not in self.over
            wish, request = self.asked[emission.request_id]
            self.tokens[emission.request_id] += emission.tokens
            assert (emission.q is not None) == request.evidence
            if wish.logprobs is None:
                assert emission.logprobs is None
            else:
                assert len(emission.logprobs) == len(emission.tokens)
        for entry in result.rounds:
            self.seen[self.asked[entry.request_id][0].kind, "accepted"] += entry.accepted
            self.seen[self.asked[entry.request_id][0].kind, "drafted"] += entry.drafted
        for end in result.finished:
            assert end.request_id not in self.over
            self.over[end.request_id] = end
            self.seen["all", "text" if end.stop else end.reason] += 1
        self.check_slots()

    def clear(self) -> None:
        """After a failure the next script finds the engine empty too."""
        for name in self.asked:
            self.engine.cancel(name)
        self.engine.step()

    def check_slots(self) -> None:
        queue = self.engine._scheduler
        used = [sequence.slot for sequence in queue.active.values()]
        assert sorted([*used, *queue._free]) == list(range(self.slots))
        if self.engine.prefixes:
            prefixes = self.engine.prefixes
            blocks = prefixes._blocks
            assert set(blocks) == set(prefixes._recent._sizes)
            self.seen["all", "copied"] = max(self.seen["all", "copied"], prefixes.counts.tokens)
            self.seen["all", "evicted"] = max(
                self.seen["all", "evicted"], prefixes.counts.evictions
            )

    def finish(self) -> None:
        for _ in range(500):
            if self.over.keys() == self.asked.keys():
                break
            self.step()
        for name, (wish, request) in self.asked.items():
            text, reason, stop = self.oracle.answer(request, wish, self.engine.info.max_context)
            end = self.over[name]
            if end.reason == "cancelled":
                assert self.tokens[name] == text[: len(self.tokens[name])]
            else:
                assert (self.tokens[name], end.reason, end.stop) == (text, reason, stop), request
        queue = self.engine._scheduler
        assert not queue.active
        assert not queue._waiting
        assert leftovers(self.engine.__dict__, set(self.asked)) == []
        assert self.engine._proposer.held() == self.held
        result = self.engine.step()
        assert (result.emitted, result.rounds, result.finished) == ((), (), ())


def test_each_request_gets_what_it_would_get_alone(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gatekeeper_adapters.engines.reference.timing import Stopwatch

    # adaptive windows follow measured times: a clock that only counts makes scripts repeatable
    monkeypatch.setattr(Stopwatch, "clock", partial(next, counting()))
    seen: Counter[tuple[str, str]] = Counter()

    @settings(
        derandomize=True,
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.sampled_from(["plain", "pieces", "prefixes", "tight"]), ACTIONS)
    @example("plain", EVERY_KIND)
    @example("tight", [*EVERY_KIND, *EVERY_KIND])
    @example("prefixes", [*EVERY_KIND, 40, *EVERY_KIND, 2, ("cancel", 7), ("cancel", 11)])
    def scripts(name: str, script: list[Any]) -> None:
        play = Play(engines[name], engines["alone"], seen)
        try:
            for action in script:
                play.act(action)
            play.finish()
        finally:
            play.clear()

    scripts()
    # what the scripts never reached they could not have tested
    for kind in KINDS:
        assert seen[kind, "drafted"] > seen[kind, "accepted"] > 0, (kind, seen)
    for what in ("cancelled", "stop", "text", "length", "context", "copied", "evicted"):
        assert seen["all", what] > 0, (what, seen)
