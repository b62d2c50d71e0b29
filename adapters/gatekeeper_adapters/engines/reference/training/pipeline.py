"""From a target to a drafter's folder: sample, choose a vocabulary, distil, judge, write."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from gatekeeper import workloads
from gatekeeper.errors import Conflict, Incompatible
from gatekeeper_adapters.engines.reference.convert import describe
from gatekeeper_adapters.engines.reference.drafter import head_rows
from gatekeeper_adapters.engines.reference.loader import Options, Switches, load_engine
from gatekeeper_adapters.engines.reference.model import LlamaConfig
from gatekeeper_adapters.engines.reference.sources import file_digest
from gatekeeper_adapters.engines.reference.training.checkpoint import Checkpoint
from gatekeeper_adapters.engines.reference.training.data import (
    Recipe,
    Recorder,
    sample,
    workload_prompts,
)
from gatekeeper_adapters.engines.reference.training.distill import (
    Material,
    Settings,
    distill,
    steps_for,
)
from gatekeeper_adapters.engines.reference.training.evaluate import (
    Acceptance,
    acceptance,
    bigram_acceptance,
)
from gatekeeper_adapters.engines.reference.training.folder import (
    INT8,
    as_read,
    drafter_config,
    stored_tensors,
    write_folder,
)
from gatekeeper_adapters.engines.reference.training.networks import build
from gatekeeper_adapters.engines.reference.training.texts import read_texts
from gatekeeper_adapters.engines.reference.training.vocabulary import draft_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.training.checkpoint import Run
    from gatekeeper_adapters.engines.reference.training.networks import Network

__all__ = ["Order", "Outcome", "train_drafter"]

DEPTH = 4
"""Depths judged on held-out text."""


@dataclass(frozen=True)
class Order:
    """What is to be trained.

    ``steps`` fixes the effort, else CPU ``minutes`` do. ``layers`` are the target's that a draft_lm
    takes (default: the first two) and, the last of them, an eagle begins with (default: the last);
    ``neurons`` are what a draft_lm keeps of each MLP (default: all), ``heads`` are medusa's.
    ``rows`` is the size of the draft vocabulary.
    """

    kind: str
    source: str
    minutes: float = 12.0
    steps: int | None = None
    seed: int = 0
    rows: int = 8192
    layers: tuple[int, ...] | None = None
    neurons: int | None = None
    heads: int = 4
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True)
class Outcome:
    """The folder written, and how its drafts and a bigram's fare on held-out templates."""

    folder: Path
    drafter: Acceptance
    bigram: Acceptance
    run: Run


def train_drafter(
    order: Order,
    target: Path,
    out: Path,
    *,
    note: Callable[[str], None],
    clock: Callable[[], float],
) -> Outcome:
    """Train one drafter for the prepared folder ``target`` into the folder ``out``.

    Sampled text is kept beside ``out`` and shared by every drafter of the same recipe; a checkpoint
    ``OUT.checkpoint`` lies there until the folder is written.

    Raises:
        Conflict: ``out`` exists, or the checkpoint is another run's.
        Incompatible: the target is not of the Llama family, or lacks a layer.
        Interrupted: SIGINT; the same command goes on.
    """
    if out.exists():
        raise Conflict(
            "exists", field="out", value=str(out), remedy="name a new folder, or remove it"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    document = json.loads((target / "config.json").read_text())
    config = LlamaConfig.read(document)
    if config is None:
        raise Incompatible(
            "is not a Llama-family model",
            field="target",
            value=str(document.get("architectures")),
            remedy="train for a target of the Llama family",
        )
    known = describe(order.source, target)
    data = _texts_path(order, known, out.parent)
    if data.is_file():
        note(f"reading {data.name}")
    else:
        _sample(order.recipe, target, data, note=note, clock=clock)
    texts = read_texts(data)
    train = [text for text in texts if not text.held_out]
    held = [text for text in texts if text.held_out and text.greedy]
    ids = draft_vocabulary(train, config.vocab_size, order.rows)
    _, rows = head_rows(target, ids, dtype=torch.float32, device="cpu")
    # a greedy text is its prompt's first: there the prompt is read text nothing else was learned from
    learned = [text.whole() if text.greedy else text for text in train]
    material = Material(learned, held, rows, ids)
    layers = order.layers or _usual_layers(order.kind, config.layers)
    network = _begin(order, config, target, layers)
    data_digest = file_digest(data)
    mark = json.dumps([asdict(order), data_digest, known["files"]], sort_keys=True)
    checkpoint = Checkpoint(out.with_name(f"{out.name}.checkpoint"), mark)
    settings = Settings(steps=order.steps or 0, seed=order.seed)
    if order.steps is None:
        steps = checkpoint.steps() or steps_for(
            network, material, settings, seconds=60 * order.minutes, clock=clock
        )
        settings = replace(settings, steps=steps)
    run = distill(network, material, settings, checkpoint, note=note, clock=clock)
    written = sum(len(text.tokens) - text.first for text in train)
    made = _Made(order, document, known, material, layers, written, run)
    outcome, config_document, tensors = _judge(made, network, config.vocab_size, out)
    provenance = _provenance(made, outcome, data_digest, settings, network)
    write_folder(out, {**config_document, "provenance": provenance}, tensors)
    checkpoint.path.unlink(missing_ok=True)
    return outcome


@dataclass(frozen=True)
class _Made:
    """What was ordered and what came of it."""

    order: Order
    target: Mapping[str, Any]
    known: Mapping[str, Any]
    material: Material
    layers: tuple[int, ...]
    written: int
    run: Run

    @property
    def size(self) -> int:
        return self.order.heads if self.order.kind == "medusa" else len(self.layers)


def _usual_layers(kind: str, count: int) -> tuple[int, ...]:
    """A draft_lm's layers read what they were made to read only where none is left out before them."""
    return tuple(range(count))[:2] if kind == "draft_lm" else (count - 1,)


def _texts_path(order: Order, known: Mapping[str, Any], folder: Path) -> Path:
    """The file of sampled texts, whose name tells target, recipe and prompts."""
    slices = {name: workloads.digest(name) for name in workloads.SLICES}
    identity = json.dumps([known["files"], asdict(order.recipe), slices], sort_keys=True)
    return folder / f"texts-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.safetensors"


def _sample(
    recipe: Recipe,
    target: Path,
    path: Path,
    *,
    note: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    recorder = Recorder()
    engine = load_engine(
        target,
        {"kind": "ngram"},
        version="training",
        dtype="bfloat16",
        options=Options(
            max_batch=recipe.batch,
            max_context=recipe.longest_prompt + recipe.longest + 1,
            switches=Switches(wrap=lambda _: recorder),
        ),
    )
    try:
        prompts = workload_prompts(engine, recipe)
        sample(engine, recorder, prompts, recipe, path, note=note, clock=clock)
    finally:
        engine.close()


def _begin(order: Order, config: LlamaConfig, target: Path, layers: tuple[int, ...]) -> Network:
    wanted = ("model.embed_tokens.weight", "model.norm.weight")
    prefixes = tuple(f"model.layers.{layer}." for layer in layers)
    tensors: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                if name in wanted or name.startswith(prefixes):
                    tensors[name] = file.get_tensor(name)
    return build(
        order.kind, config, tensors, layers=layers, heads=order.heads, neurons=order.neurons
    )


def _judge(
    made: _Made, network: Network, vocab_size: int, out: Path
) -> tuple[Outcome, dict[str, Any], dict[str, Tensor]]:
    """Judge the weights as they are stored, not as they were trained."""
    material, kind = made.material, made.order.kind
    tensors = stored_tensors(network, material.ids, int8=kind in INT8)
    network.adopt(as_read(tensors))
    found = acceptance(network, material.held_out, material.head, material.ids, depth=DEPTH)
    bigram = bigram_acceptance(
        material.train, material.held_out, vocab_size=vocab_size, depth=DEPTH
    )
    config = drafter_config(
        kind,
        made.target,
        material.ids,
        tokenizer=made.known["tokenizer"],
        size=made.size,
        neurons=made.order.neurons,
    )
    return Outcome(out, found, bigram, made.run), config, tensors


def _provenance(
    made: _Made, outcome: Outcome, data_digest: str, settings: Settings, network: Network
) -> dict[str, Any]:
    order, material = made.order, made.material
    begun = {"draft_lm": list(made.layers), "eagle": list(made.layers[-1:])}.get(order.kind, [])
    return {
        "target": {"source": order.source, "files": made.known["files"]},
        "data": {
            "sha256": data_digest,
            "recipe": asdict(order.recipe),
            "slices": {name: workloads.digest(name) for name in workloads.SLICES},
            "training_tokens": made.written,
            "training_places": sum(len(text.rows(1)) for text in material.train),
            "held_out_prompts": sorted({text.prompt for text in material.held_out}),
        },
        "begun_from_layers": begun,
        "settings": asdict(settings),
        "lesson": asdict(network.lesson),
        "cpu_seconds": round(outcome.run.seconds, 1),
        "curve": [asdict(point) for point in outcome.run.curve],
        "held_out": {
            "windows": list(outcome.drafter.reached),
            "conditional_acceptance": list(outcome.drafter.conditional),
            "bigram_windows": list(outcome.bigram.reached),
            "bigram_conditional_acceptance": list(outcome.bigram.conditional),
        },
        "code": {
            "gatekeeper": metadata.version("gatekeeper"),
            "torch": torch.__version__.partition("+")[0],
        },
    }
