from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import chisquare

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings
from gatekeeper.errors import InputError
from gatekeeper.load import transcripts
from gatekeeper.protocols import Engine
from gatekeeper.testing import Costs, FakeEngine, FakeProvider, Fault, VirtualClock

if TYPE_CHECKING:
    from pathlib import Path

HOT = SamplingSettings(temperature=1.0)


def request(
    name: str, *, gamma: int = 0, sampling: SamplingSettings = HOT, seed: int = 0, **more: Any
) -> Any:
    return DecodeRequest(name, (1, 2, 3), 24, sampling, seed=seed, gamma=gamma, **more)


def decode(engine: FakeEngine, requests: Any) -> Any:
    return {t.request.request_id: t for t in transcripts(engine, requests, in_flight=8)}


def first_tokens(
    engine: FakeEngine, gamma: int, n: int, k: int = 0, sampling: SamplingSettings = HOT
) -> Any:
    """The k-th emitted token of n requests with different seeds."""
    requests = [
        DecodeRequest(str(i), (1, 2, 3), 1 + max(k, gamma), sampling, seed=i, gamma=gamma)
        for i in range(n)
    ]
    return [t.tokens[k] for t in decode(engine, requests).values()]


def test_is_an_engine() -> None:
    assert isinstance(FakeEngine(), Engine)


def test_greedy_speculation_gives_the_ordinary_text_at_any_batch() -> None:
    for order in (1, 2):
        ordinary = decode(FakeEngine(order=order, max_batch=1), [request("a", sampling=GREEDY)])
        speculative = decode(
            FakeEngine(order=order, max_batch=3),
            [request(n, gamma=4, sampling=GREEDY) for n in "abcde"],
        )
        assert {t.tokens for t in speculative.values()} == {ordinary["a"].tokens}


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    alone = decode(FakeEngine(), [request("a", gamma=3, seed=7)])
    crowd = decode(
        FakeEngine(), [request("a", gamma=3, seed=7)] + [request(f"{i}", seed=i) for i in range(9)]
    )
    assert alone["a"].tokens == crowd["a"].tokens


@pytest.mark.parametrize(
    "sampling",
    [
        HOT,
        SamplingSettings(temperature=0.7, top_p=0.9, top_k=6),
        SamplingSettings(temperature=1.3, min_p=0.05, repetition_penalty=1.3),
        SamplingSettings(temperature=1.0, logit_bias=((4, 2.0),), forbidden_tokens=(0, 5)),
    ],
    ids=lambda s: s.label,
)
def test_speculative_tokens_follow_the_target(sampling: SamplingSettings) -> None:
    engine = FakeEngine(vocab_size=8, agreement=0.3)
    n = 1000
    seen = np.bincount(first_tokens(engine, 3, n, sampling=sampling), minlength=8)
    p = engine.score((1, 2, 3), (0,), sampling).p[0].astype(float)
    assert seen[p == 0].sum() == 0
    keep = p * n >= 10
    observed = np.append(seen[keep], seen[~keep].sum())
    expected = np.append(p[keep], p[~keep].sum()) * n
    live = expected > 0
    assert chisquare(observed[live], expected[live] * n / expected[live].sum()).pvalue > 1e-4


@pytest.mark.parametrize("fault", ["residual_not_subtracted", "correction_from_q"])
def test_a_fault_shifts_the_distribution(fault: Fault) -> None:
    engine = FakeEngine(vocab_size=8, agreement=0.3, fault=fault)
    seen = np.bincount(first_tokens(engine, 3, 1000), minlength=8)
    p = engine.score((1, 2, 3), (0,), HOT).p[0].astype(float)
    assert chisquare(seen, p / p.sum() * seen.sum()).pvalue < 1e-6


def test_evidence_has_q_at_every_position_the_bonus_included() -> None:
    engine = FakeEngine(agreement=1.0)
    (transcript,) = decode(engine, [request("a", gamma=3, evidence=True)]).values()
    first = transcript.emissions[0]
    assert first.kind == (0, 0, 0, 2)  # a proposal equal to the target is always accepted
    assert np.allclose(first.q.sum(axis=1), 1.0, atol=1e-5)
    scored = engine.score((1, 2, 3), first.tokens, HOT)
    assert np.allclose(first.q, scored.p, atol=1e-6)
    (ordinary,) = decode(FakeEngine(), [request("b", evidence=True)]).values()
    assert np.isnan(ordinary.emissions[0].q).all()


def test_counts_of_a_round_agree_with_its_emission() -> None:
    engine = FakeEngine(agreement=0.4)
    for transcript in decode(engine, [request(str(i), gamma=4, seed=i) for i in range(6)]).values():
        for emission, entry in zip(transcript.emissions, transcript.rounds, strict=True):
            assert entry.committed == len(emission.tokens)
            assert entry.accepted == emission.kind.count(0)
            assert (entry.rejection_position is None) == (emission.kind[-1] != 1)


def test_end_tokens_stop_and_min_tokens_forbids_them() -> None:
    engine = FakeEngine(vocab_size=4)
    stops = [request(str(i), gamma=3, seed=i, end_tokens=(0, 1), min_tokens=5) for i in range(20)]
    for transcript in decode(engine, stops).values():
        assert len(transcript.tokens) > 5 or transcript.reason == "length"
        assert not {0, 1} & set(transcript.tokens[:5])
        assert (transcript.tokens[-1] in {0, 1}) == (transcript.reason == "stop")
        assert not {0, 1} & set(transcript.tokens[:-1])


def test_score_forbids_end_tokens_before_the_minimum() -> None:
    scored = FakeEngine(vocab_size=4).score((1,), (2, 2), HOT, stop=(0,), min_tokens=1)
    assert scored.p[0, 0] == 0
    assert scored.p[1, 0] > 0


def test_context_edge_ends_a_request() -> None:
    engine = FakeEngine(max_context=10)
    (transcript,) = decode(engine, [request("a", gamma=4)]).values()
    assert (len(transcript.tokens), transcript.reason) == (7, "context")


def test_cancel_frees_the_slot() -> None:
    engine = FakeEngine(max_batch=1)
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    engine.cancel("a")
    engine.cancel("nobody")
    result = engine.step()
    assert [(f.request_id, f.reason) for f in result.finished] == [("a", "cancelled")]
    assert {e.request_id for e in result.emitted} == {"b"}


def test_time_is_spent_and_shared() -> None:
    clock = VirtualClock()
    costs = Costs(verify_s=0.02, draft_token_s=0.001)
    engine = FakeEngine(costs=costs, spend=clock.advance)
    for name in "abcd":
        engine.submit(request(name, gamma=2))
    rounds = engine.step().rounds
    assert clock() == pytest.approx(0.022)
    assert sum(r.draft_s + r.verify_s for r in rounds) == pytest.approx(0.022)


@pytest.mark.parametrize(
    ("prompt", "name"), [((), "prompt"), ((99,), "prompt"), ((1,) * 600, "prompt")]
)
def test_bad_prompts_are_refused(prompt: Any, name: str) -> None:
    with pytest.raises(InputError) as caught:
        FakeEngine().submit(DecodeRequest("a", prompt, 4))
    assert caught.value.field == name


def test_provider_opens_what_it_was_built_with(tmp_path: Path) -> None:
    provider = FakeProvider(vocab_size=16)
    engine = provider.open({}, cache=tmp_path, max_batch=5, device="cpu")
    assert (engine.info.vocab_size, engine.info.max_batch) == (16, 5)
    assert provider.opened == [engine]
