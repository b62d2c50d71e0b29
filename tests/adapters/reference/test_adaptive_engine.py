from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_driver import drive
from strict_bank import strict_log10_e
from tiny_drafters import damp, load_six_kinds
from tiny_models import write_tiny_llama

from gatekeeper.core.adaptive_window import AdaptiveWindows, WindowRules
from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.core.step_times import CostPrior, StepTimes
from gatekeeper.core.window import StepCosts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

KINDS = ("ngram", "draft_lm", "self_speculation", "medusa", "eagle", "eagle2")
HOT = SamplingSettings(temperature=1.0)
LONGEST = 6


class Known(StepTimes):
    """A draft token costs ``draft`` ordinary steps, a verified one .05; nothing is measured."""

    def __init__(self, draft: float) -> None:
        super().__init__(CostPrior(enough=0))
        gammas = range(1, LONGEST + 1)
        self._given = StepCosts(
            1.0, {g: draft * g for g in gammas}, {g: 1 + 0.05 * g for g in gammas}
        )

    def ordinary_due(self, batch: int) -> bool:
        return False

    def costs(self, batch: int, longest: int, proposer: str | None = None) -> StepCosts:
        return self._given


class Dice:
    """A controller that chooses anything."""

    standing = 0

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, batch: int, room: int, free: float = 1.0) -> int:
        return min(self._rng.choice([0, 0, 1, 2, 4, 6]), max(0, room))

    def observe(self, asked: int, accepted: int) -> None:
        assert 0 <= accepted <= asked


class Told:
    """A proposer that knows the text, and says something else where it is told to."""

    name = "told"
    names = ("told",)
    reads_states = False

    def __init__(self, text: list[int], right: Any) -> None:
        self._text = text
        self._right = right
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return (lambda: (0, 0)) if name == "held" else lambda *_: None

    def propose(self, windows: Any) -> Any:
        from gatekeeper_adapters.engines.reference.tree import CandidateTree

        self.calls += 1
        out = []
        for sequence, gamma in windows:
            place = sequence.produced
            tokens = self._text[place : place + gamma]
            if not self._right(place):
                tokens = [(token + 1) % 97 for token in tokens]
            out.append(CandidateTree.chain(tokens))
        return out


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("adaptive")
    target = damp(write_tiny_llama(root / "target"), 0.5)
    return load_six_kinds(root, target, draft_ids=range(80))


@pytest.fixture
def paced(engine: Any, monkeypatch: Any) -> Any:
    """The engine with windows by given costs and rules."""
    from gatekeeper_adapters.engines.reference.pacing import Pacing

    def build(draft: float = 0.05, **rules: Any) -> Any:
        windows = AdaptiveWindows(WindowRules(**rules), Known(draft))
        monkeypatch.setattr(engine._admission, "pacing", Pacing(windows))
        return engine

    return build


def requests(count: int, **changes: Any) -> list[DecodeRequest]:
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, 97, 3 + 7 * i).tolist()) for i in range(count)]
    base = {"gamma": LONGEST, "adaptive": True, **changes}
    return [DecodeRequest(f"r{i}", p, 20 + i, **base) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_the_same_whatever_the_controller_does(
    kind: str, engine: Any, monkeypatch: Any
) -> None:
    expected = drive(engine, requests(8, gamma=0)).tokens
    rng = random.Random(3)
    pacing = engine._admission.pacing
    monkeypatch.setattr(pacing, "begin", lambda request: Dice(rng) if request.adaptive else None)
    asked = requests(8, proposer=kind)
    for batch in (asked[:1], asked[1:4], asked):
        done = drive(engine, batch)
        for request_id, tokens in done.tokens.items():
            assert tokens == expected[request_id]
        assert len({entry.gamma for entry in done.rounds}) > 2


def test_where_drafts_do_not_pay_the_proposer_is_left_alone(paced: Any) -> None:
    engine = paced(draft=2.0, wait=40)
    told = Told([], lambda _: True)
    kept, engine._proposer = engine._proposer, told
    try:
        done = drive(engine, requests(4))
    finally:
        engine._proposer = kept
    assert told.calls == 0
    assert {entry.gamma for entry in done.rounds} == {0}
    assert all(entry.drafted == 0 and entry.committed == 1 for entry in done.rounds)


def test_speculation_ends_and_returns_with_acceptance(paced: Any) -> None:
    engine = paced(draft=0.1, memory=8.0, pool_memory=16.0, weight=2.0, longest_wait=16)
    prompt = (3, 1, 4, 1, 5)
    text = drive(engine, [DecodeRequest("t", prompt, 240)]).tokens["t"]
    told = Told(text, lambda place: not 60 <= place < 150)
    kept, engine._proposer = engine._proposer, told
    try:
        done = drive(engine, [DecodeRequest("t", prompt, 240, gamma=LONGEST, adaptive=True)])
    finally:
        engine._proposer = kept
    assert done.tokens["t"] == text
    by_phase: dict[str, list[int]] = {"good": [], "bad": [], "back": []}
    for entry in done.rounds:
        place = entry.context - len(prompt)
        phase = "good" if place < 60 else "bad" if place < 150 else "back"
        by_phase[phase].append(entry.gamma)
    assert max(by_phase["good"]) == LONGEST
    bypassed = [gamma == 0 for gamma in by_phase["bad"]]
    assert sum(bypassed) > 0.6 * len(bypassed)
    # a window of 0 asked for nothing: every call was a round with one
    assert told.calls == sum(entry.gamma > 0 for entry in done.rounds)
    assert by_phase["back"][-8:].count(0) <= 1
    assert max(by_phase["back"]) >= 4


def test_rounds_record_the_window_asked_for_and_fixed_windows_stay_as_they_were(
    paced: Any,
) -> None:
    engine = paced()
    fixed = [
        replace(r, request_id=f"f{r.request_id}", adaptive=False, gamma=3) for r in requests(3)
    ]
    done = drive(engine, [*requests(3), *fixed])
    for entry in done.rounds:
        if entry.request_id.startswith("f"):
            assert entry.gamma == 3
        else:
            left = 20 + int(entry.request_id[1:]) - (entry.context - len(_prompt(entry.request_id)))
            assert entry.drafted <= entry.gamma <= min(LONGEST, left - 1)
    assert {entry.gamma for entry in done.rounds if entry.request_id == "r0"} != {3}


def _prompt(request_id: str) -> tuple[int, ...]:
    return requests(3)[int(request_id[1:])].prompt


@pytest.mark.parametrize("kind", ["draft_lm", "eagle"])
def test_sampled_text_under_adaptive_windows_is_exact(kind: str, paced: Any) -> None:
    # fast and restless: windows change as often as they can
    engine = paced(draft=0.1, memory=3.0, pool_memory=6.0, margin=0.0, patience=1, wait=1)
    prompts = [(1, 5, 9, 30), (1, 5, 9, 30), (40, 4, 4, 21), (7, 7)]
    batches = [
        [
            DecodeRequest(
                f"b{batch}-{i}",
                prompt,
                24,
                HOT,
                seed=10 * batch + i,
                gamma=LONGEST,
                proposer=kind,
                evidence=True,
                adaptive=True,
            )
            for i, prompt in enumerate(prompts)
        ]
        for batch in range(6)
    ]
    seen: set[int] = set()
    step = engine.step

    def watched() -> Any:
        result = step()
        seen.update(entry.gamma for entry in result.rounds)
        return result

    spied = SimpleNamespace(
        info=engine.info, submit=engine.submit, step=watched, score=engine.score
    )
    assert strict_log10_e(spied, batches) < 3
    assert len(seen) > 2


def test_times_are_learned_from_steps_that_only_decode(engine: Any, monkeypatch: Any) -> None:
    from gatekeeper_adapters.engines.reference.pacing import Pacing

    windows = AdaptiveWindows(times=StepTimes(CostPrior(enough=2)))
    learned: list[Any] = []
    observe = windows.times.observe

    def spy(*arguments: Any) -> None:
        learned.append(arguments)
        observe(*arguments)

    monkeypatch.setattr(windows.times, "observe", spy)
    monkeypatch.setattr(engine._admission, "pacing", Pacing(windows))
    done = drive(engine, requests(1, proposer="draft_lm"))
    steps = [entry.gamma for entry in done.rounds]
    # the first round cached the prompt; the next ones tell what an ordinary step costs
    assert [asked for asked, *_ in learned] == [[gamma] for gamma in steps[1:]]
    assert steps[:2] == [0, 0]
    drafted = [
        (before, after, draft_s)
        for (before, after), (_, _, draft_s, _) in zip(pairwise(steps), learned, strict=True)
        if after
    ]
    assert drafted
    # after a round without a draft the next one reads what it missed
    assert all((draft_s is None) == (before == 0) for before, _, draft_s in drafted)
    assert all(rest > 0 for _, rest, _, _ in learned)
    learned.clear()
    drive(engine, requests(2, adaptive=False))
    assert learned == []


def test_choosing_costs_a_small_part_of_a_step(paced: Any) -> None:
    import time

    windows = paced()._admission.pacing.begin(requests(1)[0])
    start = time.process_time()
    for _ in range(500):
        windows.observe(windows.choose(8, 100) or 1, 1)
    assert (time.process_time() - start) / 500 < 1e-3
