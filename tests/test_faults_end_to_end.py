"""Planted faults through the whole product: real server, worker loop, torch engine, tiny model.

The policy is one and the same in every test; only the engine's switches differ.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shipped_policies import shipped_policy

pytest.importorskip("torch")

from engine_faults import FAULTS, sleepy
from gatekeeper_adapters.engines.reference.loader import Options, Switches
from gatekeeper_adapters.engines.reference.provider import ReferenceProvider
from tiny_models import write_tiny_llama

from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.loop import Worker, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from live import LiveServer

pytestmark = [pytest.mark.torch, pytest.mark.parametrize("db", ["sqlite"], indirect=True)]
EXACT = Switches()
PROPOSER_FIELDS = ("source", "files", "tokenizer", "vocab_size", "token_map")


class PacedEngine:
    """An engine whose step takes 10 ms more, as on a device that reads large weights.

    A tiny model's own step is mostly Python, whose time on a busy machine says nothing.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self) -> Any:
        time.sleep(0.01)
        return self._inner.step()


class PacedProvider(ReferenceProvider):
    """The reference engine at that pace."""

    def open(self, artifact: Mapping[str, Any], **options: Any) -> Any:
        return PacedEngine(super().open(artifact, **options))


def write_character_tokenizer(folder: Path, vocab: int) -> None:
    """One id per printable character, so that the shipped suites keep their shape."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    ids = {chr(32 + i): i for i in range(vocab)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=" "))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny(folder: Path, seed: int, **changes: Any) -> Path:
    write_tiny_llama(folder, vocab=95, seed=seed, max_position_embeddings=2048, **changes)
    write_character_tokenizer(folder, 95)
    return folder


def policy() -> dict[str, Any]:
    document: dict[str, Any] = shipped_policy("demo")
    document["name"] = "tiny"
    document |= {"mandatory_gates": ["equivalence", "serving"], "minimum_value": None}
    document["equivalence"]["sampled"] |= {"min_tokens": 600, "max_tokens": 4000}
    document["equivalence"]["tolerance"] |= {"window": 0.15, "bonus": 0.2}
    document["serving"] |= {"max_prompt_tokens": 400, "tokens_per_request": 24}
    document["serving"]["limits"] |= {"max_ttft_ratio": 3.0, "max_slowdown_ratio": 4.0}
    return document


def artifact(provider: ReferenceProvider, folder: Path, draft: Path | None) -> dict[str, Any]:
    def section(path: Path) -> dict[str, Any]:
        return dict(provider.manifest(f"file:{path}", cache=folder))

    target = section(folder)
    del target["folder"], target["token_map"]
    proposer: dict[str, Any] = {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}}
    if draft is not None:
        found = section(draft)
        proposer = {"kind": "draft_lm", "parameters": {}}
        proposer |= {key: found[key] for key in PROPOSER_FIELDS}
    return {
        "schema": 1,
        "target": target,
        "proposer": proposer,
        "gamma": 4,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}] if draft is None else [{"temperature": 1.0}],
        "engine": {
            "name": "reference",
            "version": provider.version(),
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }


def decide(
    server: LiveServer,
    folder: Path,
    switches: Switches,
    draft: Path | None = None,
    gates: tuple[str, ...] = ("equivalence", "serving"),
) -> Mapping[str, Any]:
    """Gate one route with an engine of these switches, and return its lease."""
    provider = PacedProvider(options=Options(max_context=2048, switches=switches))
    document = artifact(provider, folder, draft)
    with server.client("admin") as admin:
        admin.put("/v1/policies/tiny", json=policy()).raise_for_status()
        digest = admin.post("/v1/artifacts", json=document).raise_for_status().json()["digest"]
        route = {"slice": "prose", "artifact": digest, "policy": "tiny"}
        admin.put("/v1/routes/tools", json=route).raise_for_status()
        for gate in gates:
            body = {"route": "tools", "gate": gate}
            admin.post("/v1/gate-runs", json=body).raise_for_status()
    lines: list[str] = []
    for _ in gates:
        with server.client("worker") as client:
            status = Worker(
                WorkerApi(client, "in-process"),
                {"reference": provider},
                WorkerOptions(
                    cache=folder.parent,
                    devices=[{"kind": "cpu", "count": 1, "memory_bytes": 1}],
                    once=True,
                ),
                clock=time.monotonic,
                sleep=time.sleep,
                say=lines.append,
                lost=lines.append,
            ).run()
        assert status == 0, lines
    with server.client("reader") as reader:
        lease: Mapping[str, Any] = reader.get("/v1/routes/tools/decision").raise_for_status().json()
    return lease


def test_a_drafter_that_sleeps_50_ms_turns_the_enable_of_an_exact_lookup_into_a_bypass(
    live_server: LiveServer, tmp_path: Path
) -> None:
    target = tiny(tmp_path / "target", 0)
    lease = decide(live_server, target, EXACT)
    assert (lease["action"], lease["reason"]) == ("enable", "gates_passed"), lease
    assert lease["gamma"] in {2, 4}
    # the pair is the same, and so is its text: only serving is measured again
    lease = decide(live_server, target, sleepy(0.05), gates=("serving",))
    assert (lease["action"], lease["reason"]) == ("bypass", "serving_failed"), lease


@pytest.mark.parametrize(
    ("fault", "reason"), [(None, None), ("residual_not_subtracted", "equivalence_failed")]
)
def test_a_broken_residual_on_a_sampled_route_fails_equivalence(
    live_server: LiveServer, tmp_path: Path, fault: str | None, reason: str | None
) -> None:
    switches = EXACT if fault is None else FAULTS[fault]
    draft = tiny(tmp_path / "draft", 0, num_hidden_layers=1)
    target = tiny(tmp_path / "target", 0)
    lease = decide(live_server, target, switches, draft, gates=("equivalence",))
    if fault is None:
        outcomes = {gate["gate"]: gate["outcome"] for gate in lease["gates"]}
        assert outcomes["equivalence"] == "PASS", lease
    else:
        assert (lease["action"], lease["reason"]) == ("bypass", reason), lease
