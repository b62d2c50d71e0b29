"""What an artifact's engine will hold on this machine, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from gatekeeper.core.predicted_memory import Capacity, predict_memory
from gatekeeper_adapters.engines.reference.devices import are_one
from gatekeeper_adapters.engines.reference.linear import layout
from gatekeeper_adapters.engines.reference.model import LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gatekeeper_adapters.engines.reference.loader import Options

__all__ = ["expect_memory"]

ARCHITECTURES = {
    "draft_lm": ["LlamaForCausalLM"],
    "medusa": ["GatekeeperMedusa"],
    "eagle": ["GatekeeperEagle"],
    "eagle2": ["GatekeeperEagle"],
}
"""What a drafter's configuration says it is."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def expect_memory(
    artifact: Mapping[str, Any], target: Path, draft: Path | None, options: Options
) -> dict[str, Any]:
    """``predicted_memory``: the ledger of ``predict_memory`` as JSON, from the prepared folders.

    Empty where the configurations do not tell: a target outside the Llama family runs its own code,
    and what this engine refuses is refused when loading, with a better message.
    """
    engine, proposer = artifact["engine"], artifact["proposer"]
    config = _json(target / "config.json")
    shape = LlamaConfig.read(config)
    corpus = _json(draft / "index.json") if draft is not None and _is_corpus(draft) else None
    drafter = _json(draft / "config.json") if draft is not None and corpus is None else None
    given = None if drafter is None else list(drafter.get("architectures", ()))[:1]
    fits = given == ARCHITECTURES.get(proposer["kind"])
    if shape is None or not fits or engine["dtype"] not in DTYPES:
        return {}
    device = engine["device"]
    expected = predict_memory(
        config,
        proposer,
        drafter,
        dtype=engine["dtype"],
        capacity=Capacity(
            slots=options.max_batch,
            positions=min(options.max_context, shape.max_positions),
            gamma=int(artifact.get("gamma") or 0),
        ),
        layout=layout(getattr(torch, engine["dtype"]), _known(device), invariant=options.invariant),
        lends=are_one(device, engine.get("draft_device") or device),
        sampled=any(setting.get("temperature") for setting in artifact.get("sampling", ())),
        corpus_bytes=0 if corpus is None else int(corpus["bytes"]),
    )
    return {"predicted_memory": expected.to_dict()}


def _is_corpus(folder: Path) -> bool:
    return (folder / "index.json").is_file()


def _known(device: str) -> str:
    """A GPU that is not there is refused when loading, with a better message."""
    return device if device == "cpu" or torch.cuda.is_available() else "cpu"


def _json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document
