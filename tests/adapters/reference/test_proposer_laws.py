"""What every kind of proposer keeps: the text of ordinary decoding, in any company, and exactness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive, ragged
from engine_faults import FAULTS
from proposer_cases import CASES, Case, open_case, write_files
from strict_bank import strict_log10_e

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOT = SamplingSettings(temperature=1.0)
GREEDY_SETTINGS = {
    "plain": GREEDY,
    "penalties": SamplingSettings(
        repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
    ),
    "bias+forbidden": SamplingSettings(logit_bias=((6, 4.0), (8, -4.0)), forbidden_tokens=(4, 10)),
}
SAMPLED_SETTINGS = {
    "filters": SamplingSettings(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02),
    "narrow": SamplingSettings(temperature=0.7, top_k=2),
    "penalties": SamplingSettings(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, logit_bias=((3, 2.0),)
    ),
}
END = (2, 6, 31, 40, 55)
STRICT = [name for name, case in CASES.items() if case.faults]
DENSE = [name for name, case in CASES.items() if case.dense]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    root, written = tmp_path_factory.mktemp("laws"), {}

    def make(case: Case, **options: Any) -> Any:
        if case.files not in written:
            written[case.files] = write_files(case.files, root)
        return open_case(case, written[case.files], **options)

    return make


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_every_batch_size_equals_ordinary_decoding(case: Case, build: Any) -> None:
    engine = build(case)
    assert engine.info.details["proposer"] == case.kind
    plain = drive(engine, ragged(8, gamma=0, tokens=12)).tokens
    accepted: list[int] = []
    deepest = 0
    for batch in range(1, 9):
        record = drive(engine, ragged(batch, gamma=1 + (batch - 1) % 4, tokens=12))
        assert record.tokens == {f"r{i}": plain[f"r{i}"] for i in range(batch)}
        accepted += [r.accepted for r in record.rounds]
        deepest = max(deepest, *(r.drafted for r in record.rounds))
    assert deepest == case.depth
    assert set(accepted) >= {0, 1, 2}  # refused at once, half way, and accepted deep


@pytest.mark.parametrize("setting", GREEDY_SETTINGS)
def test_processors_and_end_tokens_do_not_change_what_is_emitted(
    setting: str, case: Case, build: Any
) -> None:
    """Nor does caching the prompt in pieces."""
    settings = {"sampling": GREEDY_SETTINGS[setting], "end_tokens": END, "min_tokens": 9}
    whole, pieces = build(case), build(case, prefill_chunk=16)
    plain = drive(whole, ragged(4, gamma=0, tokens=14, **settings))
    for engine, gamma in ((whole, 6), (pieces, 1), (pieces, 3)):
        record = drive(engine, ragged(4, gamma=gamma, tokens=14, **settings))
        assert (record.tokens, record.reasons) == (plain.tokens, plain.reasons)
        assert any(r.accepted for r in record.rounds)
    for tokens in plain.tokens.values():
        assert not set(tokens) & set(GREEDY_SETTINGS[setting].forbidden_tokens)
        assert not set(tokens[:9]) & set(END)


def test_each_request_has_its_own_window_and_ordinary_ones_share_the_step(
    case: Case, build: Any
) -> None:
    engine = build(case)
    plain = drive(engine, ragged(8, gamma=0)).tokens
    gammas = (0, 4, 1, 0, 7, 2, 0, 3)
    mixed = [replace(r, gamma=g) for r, g in zip(ragged(8, gamma=0), gammas, strict=True)]
    record = drive(engine, mixed)
    assert record.tokens == plain
    assert max(r.batch for r in record.rounds) == 8
    for i, gamma in enumerate(gammas):
        drafted = max(r.drafted for r in record.rounds if r.request_id == f"r{i}")
        # trees and heads have a depth of their own, a chain goes on as long as it may
        assert drafted == (gamma if case.chain else min(gamma, case.depth))


def test_the_context_edge_shortens_windows(case: Case, build: Any) -> None:
    engine = build(case, max_context=40, max_batch=2)
    texts = []
    for gamma in (0, 1, 3, 8):
        requests = [
            DecodeRequest(name, tuple(range(10, 36)), 100, gamma=gamma, evidence=True)
            for name in ("edge", "twin")
        ]
        record = drive(engine, requests)
        assert record.reasons == {"edge": "context", "twin": "context"}
        texts += list(record.tokens.values())
    assert all(text == texts[0] for text in texts)
    assert len(texts[0]) == 14


def test_a_cancelled_request_leaves_nothing_to_the_next_owner_of_its_slot(
    case: Case, build: Any
) -> None:
    first, second, third = ragged(6, gamma=4)[3:]
    alone = drive(build(case, max_batch=1), [third])
    engine = build(case, max_batch=1)
    held = engine._proposer.held()
    for request in (first, second):
        engine.submit(request)
    for _ in range(4):
        engine.step()
    engine.cancel(first.request_id)
    engine.cancel(second.request_id)
    record = drive(engine, [third])
    assert record.tokens == alone.tokens
    assert [r.accepted for r in record.rounds] == [r.accepted for r in alone.rounds]
    assert engine._proposer.held() == held


@pytest.mark.parametrize("setting", SAMPLED_SETTINGS)
def test_a_request_gives_the_same_tokens_alone_and_in_any_batch(
    setting: str, case: Case, build: Any
) -> None:
    engine = build(case)
    requests = ragged(8, gamma=3, tokens=6, sampling=SAMPLED_SETTINGS[setting])
    together = drive(engine, requests).tokens
    for request in requests[1::3]:
        assert drive(engine, [request]).tokens[request.request_id] == together[request.request_id]


@pytest.mark.parametrize("setting", SAMPLED_SETTINGS)
@pytest.mark.parametrize("name", DENSE)
def test_evidence_has_a_dense_row_wherever_there_was_a_draft_and_at_the_bonus(
    name: str, setting: str, build: Any
) -> None:
    engine = build(CASES[name])
    settings = {"sampling": SAMPLED_SETTINGS[setting], "end_tokens": (2,), "min_tokens": 4}
    record = drive(engine, ragged(5, gamma=3, tokens=9, evidence=True, **settings))
    assert drive(engine, ragged(5, gamma=3, tokens=9, **settings)).tokens == record.tokens
    at_once = {r.request_id for r in record.rounds if r.index == 0 and r.drafted}
    kinds: set[int] = set()
    for emission in record.emissions:
        known = ~np.isnan(emission.q).any(axis=1)
        if emission.round == 0 and emission.request_id not in at_once:
            assert not known.any()  # the token after the prompt, which nothing was drafted for
            continue
        np.testing.assert_allclose(emission.q.sum(axis=1), 1.0, atol=1e-5)
        for row, draft in zip(emission.q, emission.draft, strict=True):
            assert draft == -1 or row[draft] > 0
        kinds |= set(emission.kind)
    assert kinds == {0, 1, 2}


@pytest.mark.parametrize("name", STRICT)
def test_sampled_text_passes_the_strict_test_and_a_fault_does_not(name: str, build: Any) -> None:
    batches = [
        [
            DecodeRequest(
                f"s{i}", (3, 5 + i // 2 % 7, 1), 20, HOT, 900 + i, gamma=gamma, evidence=True
            )
            for i in range(8 * batch, 8 * batch + 8)
        ]
        for batch, gamma in enumerate((1, 2, 3))
    ]
    case = CASES[name]
    assert strict_log10_e(build(case), batches) < 3
    for fault in case.faults:
        assert strict_log10_e(build(case, switches=FAULTS[fault]), batches) > 3, fault
