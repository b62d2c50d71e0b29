"""The kinds of proposer that need files or layers of their own, each on a tiny target it suits.

What every kind must keep is tested once over all of them (test_proposer_laws.py); what is special
to a kind stays in the file of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from engine_driver import drive
from tiny_drafters import TRIMMED, damp, sharpen, write_tiny_eagle, write_tiny_medusa
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CASES", "Case", "Files", "open_case", "write_files"]

HOT = SamplingSettings(temperature=1.0)
Files = dict[str, "tuple[Path, Path | None]"]


@dataclass(frozen=True)
class Case:
    """A proposer: its kind and shape, the deepest draft at gamma 4, the faults it must show."""

    kind: str
    files: str
    depth: int
    faults: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    dense: bool = False
    """Whether evidence has a row of q at each position of a drafted round, its bonus included."""

    @property
    def chain(self) -> bool:
        """Whether one draft follows another as long as the window lets it."""
        return self.kind == "self_speculation" or (self.kind == "eagle" and not self.parameters)


CASES = {
    "skip": Case(
        "self_speculation",
        "skip",
        4,
        ("residual_not_subtracted",),
        {"skip_layers": [1, 2]},
        dense=True,
    ),
    "exit": Case("self_speculation", "exit", 4, ("bonus_from_q",), {"exit_after": 3}, dense=True),
    "medusa chain": Case("medusa", "medusa", 3, ()),
    "medusa counts": Case(
        "medusa", "medusa", 3, ("correction_from_q", "bonus_from_q"), {"tree": [3, 2, 1]}
    ),
    "medusa paths": Case(
        "medusa",
        "medusa",
        2,
        (),
        {"heads": 2, "tree": [[0], [2], [5], [0, 0], [0, 3], [2, 1]]},
    ),
    "eagle chain": Case("eagle", "eagle", 4, ("residual_not_subtracted",), dense=True),
    "eagle tree": Case("eagle", "eagle", 3, ("bonus_from_q",), {"tree": [3, 2, 1]}, dense=True),
    "eagle paths": Case(
        "eagle",
        "eagle",
        4,
        (),
        {"tree": [[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0], [0, 1, 0, 0]]},
        dense=True,
    ),
    "eagle2": Case(
        "eagle2",
        "eagle2",
        4,
        ("residual_not_subtracted",),
        {"depth": 4, "top_k": 3, "nodes": 9},
    ),
}


def open_case(case: Case, files: tuple[Path, Path | None], **options: Any) -> Any:
    """An engine of 8 slots that drafts as the case says; ``options`` are the loader's."""
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    target, draft = files
    return load_engine(
        target,
        {"kind": case.kind, "parameters": options.pop("parameters", case.parameters)},
        draft,
        version="test",
        dtype=options.pop("dtype", "float32"),
        options=Options(**{"max_batch": 8, "max_context": 256, **options}),
    )


def write_files(name: str, root: Path) -> tuple[Path, Path | None]:
    """A target of which the drafter is often right but not always, and the drafter's own files."""
    return WRITERS[name](root / name)


def _self(layers: tuple[int, ...], root: Path) -> tuple[Path, None]:
    return damp(write_tiny_llama(root, num_hidden_layers=4, seed=4), 0.5, layers), None


def _medusa(root: Path) -> tuple[Path, Path]:
    target = damp(write_tiny_llama(root / "target", seed=4), 0.3)
    heads = write_tiny_medusa(root / "heads", target, ids=TRIMMED)
    _teach(target, heads)
    return target, heads


def _eagle(root: Path, *, sure: float = 1.0) -> tuple[Path, Path]:
    target = damp(write_tiny_llama(root / "target", tie_word_embeddings=False, seed=3), 0.1)
    sharpen(target, sure)
    return target, write_tiny_eagle(root / "draft", target, ids=TRIMMED, own=0.1)


WRITERS: dict[str, Callable[[Path], tuple[Path, Path | None]]] = {
    "skip": partial(_self, (1, 2)),
    "exit": partial(_self, (3,)),
    "medusa": _medusa,
    "eagle": _eagle,
    "eagle2": partial(_eagle, sure=3.0),
}


def _teach(target: Path, heads: Path, count: int = 3) -> None:
    """Fit the heads to the target's own text, so that some of their candidates are accepted."""
    import torch
    from gatekeeper_adapters.engines.reference.drafter import read_tensors
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine
    from gatekeeper_adapters.engines.reference.packing import Segment, pack
    from safetensors.torch import save_file

    engine = load_engine(target, {"kind": "ngram"}, version="test", options=Options(max_batch=8))
    prompts = [
        DecodeRequest(f"t{i}", (i, 3 * i % 97), 60, HOT if i % 2 else GREEDY, seed=i)
        for i in range(16)
    ]
    tokens = drive(engine, prompts).tokens
    inputs, outputs = [], []
    for request in prompts:
        text = [*request.prompt, *tokens[request.request_id]]
        with torch.inference_mode():
            batch = pack([Segment(0, 0, text, 0)], engine._decoder.cache)
            states = engine._decoder.forward_with_states(batch)[1]
        inputs.append(states[: -count - 1].clone())
        outputs.append(
            torch.tensor([text[2 + k : len(text) - count + 1 + k] for k in range(count)])
        )
    stored = read_tensors(heads)
    rows = engine._decoder.weights.embed[stored["d2t"]]
    place = torch.full((97,), -100)
    place[stored["d2t"]] = torch.arange(len(rows))
    h, wanted = torch.cat(inputs), place[torch.cat(outputs, dim=1)]
    w = torch.stack([stored[f"heads.{k}.weight"] for k in range(count)]).requires_grad_()
    b = torch.stack([stored[f"heads.{k}.bias"] for k in range(count)]).requires_grad_()
    optimiser = torch.optim.Adam([w, b], lr=0.03)
    for _ in range(60):
        seen = h + torch.nn.functional.silu(torch.einsum("koh,nh->kno", w, h) + b[:, None])
        loss = torch.nn.functional.cross_entropy((seen @ rows.T).flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for k in range(count):
        stored[f"heads.{k}.weight"] = w[k].detach().contiguous()
        stored[f"heads.{k}.bias"] = b[k].detach().contiguous()
    save_file(stored, heads / "model.safetensors", metadata={"format": "pt"})
