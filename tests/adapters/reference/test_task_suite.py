"""The task suite on SmolLM2-135M-Instruct: hard enough to fail at times, easy enough to succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.load import transcripts
from gatekeeper.workloads import tasks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.model
EVERY = 2


def test_each_kind_succeeds_between_a_fifth_and_nine_tenths(smollm2: Path) -> None:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    engine = load_engine(
        smollm2, {"kind": "ngram"}, version="test", options=Options(max_batch=8, max_context=256)
    )
    suite = {task.id: task for task in tasks.suite()[::EVERY]}
    ends = engine.info.end_tokens
    requests = [
        DecodeRequest(
            task.id,
            engine.tokenize(task.text),
            16,
            SamplingSettings(temperature=0.5),
            seed,
            end_tokens=ends,
        )
        for seed, task in enumerate(suite.values())
    ]
    won: dict[str, list[bool]] = {kind: [] for kind in tasks.KINDS}
    for transcript in transcripts(engine, requests, in_flight=8):
        task = suite[transcript.request.request_id]
        text = engine.detokenize([t for t in transcript.tokens if t not in ends])
        won[task.kind].append(task.verify(text))
    rates = {kind: sum(answers) / len(answers) for kind, answers in won.items()}
    assert all(0.2 <= rate <= 0.9 for rate in rates.values()), rates
    longest = max(len(engine.tokenize(task.answer)) for task in tasks.suite())
    assert longest < 16
