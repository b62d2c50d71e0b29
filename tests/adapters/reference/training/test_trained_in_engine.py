"""A trained network and the engine's own reading of its folder are the same function."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive
from tiny_models import write_tiny_llama

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.convert import describe  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.drafter import Lender, head_rows  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.eagle_net import load_eagle  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.loader import Options, load_engine  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.medusa_heads import load_medusa  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.model import (  # noqa: E402 - as above
    LlamaConfig,
    LlamaDecoder,
    load_llama,
)
from gatekeeper_adapters.engines.reference.packing import Segment, pack  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training import KINDS  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.folder import (  # noqa: E402 - as above
    INT8,
    as_read,
    drafter_config,
    stored_tensors,
    write_folder,
)
from gatekeeper_adapters.engines.reference.training.networks import build  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.training.texts import Text  # noqa: E402 - as above

from gatekeeper.core.decoding import DecodeRequest  # noqa: E402 - as above

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.arange(0, 97, 2)
FIRST, COUNT = 5, 14
NEURONS = 40
"""Of a draft_lm's MLPs, whose target has 48."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("engine") / "target", num_hidden_layers=3)


@pytest.fixture(scope="module")
def trained(target: Path) -> dict[str, tuple[Any, Path]]:
    """Of each kind a network with disturbed weights, as stored, and its folder."""
    from safetensors.torch import load_file

    document = json.loads((target / "config.json").read_text())
    config = LlamaConfig.read(document)
    assert config is not None
    tensors = load_file(target / "model.safetensors")
    made = {}
    for kind in KINDS:
        network = build(kind, config, tensors, layers=(0, 2), heads=3, neurons=NEURONS)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        if kind == "medusa":
            network.sizes.copy_(torch.linspace(0.5, 3.0, 32))
        stored = stored_tensors(network, IDS, int8=kind in INT8)
        size = 3 if kind == "medusa" else 2
        tokenizer = describe("file:target", target)["tokenizer"]
        folder = target.parent / kind
        made_as = {"tokenizer": tokenizer, "size": size, "neurons": NEURONS}
        write_folder(folder, drafter_config(kind, document, IDS, **made_as), stored)
        network.adopt(as_read(stored))
        made[kind] = (network, folder)
    return made


@pytest.fixture(scope="module")
def text() -> Text:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(97, (COUNT,), generator=generator)
    states = torch.randn(COUNT - 1, 32, generator=generator)
    return Text("x", tokens, states, FIRST, greedy=True, held_out=True)


@pytest.fixture(scope="module")
def head(target: Path) -> Any:
    return head_rows(target, IDS, dtype=torch.float32, device="cpu")[1]


def test_draft_lm(
    target: Path, trained: dict[str, tuple[Any, Path]], text: Text, head: Any
) -> None:
    network, folder = trained["draft_lm"]
    weights = load_llama(folder, dtype=torch.float32, device="cpu", lender=Lender(target, 97))
    assert weights is not None
    decoder = LlamaDecoder(weights, slots=1, positions=32)
    tokens = text.tokens[:-1].tolist()
    with torch.inference_mode():
        logits = decoder.forward(pack([Segment(0, 0, tokens, len(tokens) - FIRST)], decoder.cache))
        (states,) = network(text, 1)
        torch.testing.assert_close(states @ head.T, logits, rtol=1e-4, atol=1e-4)


def test_medusa(target: Path, trained: dict[str, tuple[Any, Path]], text: Text, head: Any) -> None:
    network, folder = trained["medusa"]
    heads = load_medusa(folder, Lender(target, 97), dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        logits = heads.logits(text.states, 3)  # row p, head k: token p + 2 + k
        for k, states in enumerate(network(text, 3)):
            rows = text.rows(k + 1)
            expected = logits[rows.start - k - 1 : rows.stop - k - 1, k]
            torch.testing.assert_close(states @ head.T, expected, rtol=1e-4, atol=1e-4)


def test_eagle_at_every_depth(
    target: Path, trained: dict[str, tuple[Any, Path]], text: Text, head: Any
) -> None:
    network, folder = trained["eagle"]
    with torch.inference_mode():
        found = [states @ head.T for states in network(text, 3)]
    net = load_eagle(
        folder, Lender(target, 97), dtype=torch.float32, device="cpu", slots=1, positions=32
    )
    tokens = text.tokens.tolist()
    for start in (FIRST, FIRST + 3):  # the window drafted after token `start` was committed
        with torch.inference_mode():
            batch = net.pack([Segment(0, 0, tokens[1 : start + 1], 1)])
            logits, guess = net.forward(batch, text.states[:start])
            for depth in (1, 2, 3):
                row = start + depth - 1
                expected = found[depth - 1][row - text.rows(depth).start]
                torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)
                batch = net.pack([Segment(0, row, [tokens[row + 1]], 1)])
                logits, guess = net.forward(batch, guess)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_opens_it_and_its_text_stays_the_targets(
    kind: str, target: Path, trained: dict[str, tuple[Any, Path]]
) -> None:
    engine = load_engine(
        target,
        {"kind": kind, "parameters": {}},
        trained[kind][1],
        version="test",
        options=Options(max_batch=2, max_context=64),
    )
    requests = [DecodeRequest(f"{gamma}", (3, 4, 5), 20, gamma=gamma) for gamma in (0, 3)]
    record = drive(engine, requests)
    assert record.tokens["0"] == record.tokens["3"]
    assert any(entry.drafted for entry in record.rounds)
