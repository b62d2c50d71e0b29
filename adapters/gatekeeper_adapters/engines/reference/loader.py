"""Put an engine together from prepared folders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from gatekeeper.core import kept_layers
from gatekeeper.errors import Incompatible, Unavailable
from gatekeeper.protocols import EngineInfo
from gatekeeper_adapters.engines.reference.engine import Limits, ReferenceEngine
from gatekeeper_adapters.engines.reference.invariance import is_invariant
from gatekeeper_adapters.engines.reference.model import LlamaDecoder, load_llama
from gatekeeper_adapters.engines.reference.proposers.chain import HONEST, Drawing
from gatekeeper_adapters.engines.reference.proposers.draft_lm import DraftLmProposer
from gatekeeper_adapters.engines.reference.proposers.ngram import NgramProposer
from gatekeeper_adapters.engines.reference.proposers.self_speculation import (
    SelfSpeculationProposer,
)
from gatekeeper_adapters.engines.reference.scoring import DenseLlama, Scorer, TransformersModel
from gatekeeper_adapters.engines.reference.verify import EXACT, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scoring import DenseModel

__all__ = ["Options", "Switches", "load_engine", "replace_batch"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Switches:
    """Where tests plant faults. The provider in the entry point always runs with the defaults."""

    verifier: Verifier = EXACT
    drawing: Drawing = HONEST
    wrap: Callable[[Proposer], Proposer] = lambda proposer: proposer


@dataclass(frozen=True)
class Options:
    """How to run.

    ``invariant`` prefers kernels and attention blocks whose bits do not depend on what shares the
    step to the fastest ones; the start-up test then says whether this processor keeps the promise.
    """

    max_batch: int = 8
    max_context: int = 2048
    prefill_chunk: int = 128
    threads: int = 1
    invariant: bool = False
    switches: Switches = field(default_factory=Switches)


def replace_batch(options: Options, max_batch: int) -> Options:
    """The same options for another number of slots."""
    return replace(options, max_batch=max_batch)


def load_engine(
    target: Path,
    proposer: Mapping[str, Any],
    draft: Path | None = None,
    *,
    version: str,
    dtype: str = "float32",
    device: str = "cpu",
    options: Options | None = None,
) -> ReferenceEngine:
    """Load ``target`` with a proposer (``kind`` and ``parameters`` as in an artifact).

    Raises:
        Incompatible: unknown dtype, kind or parameter, or a draft that does not fit.
        InputError: a parameter of the wrong form.
        Unavailable: the device is absent.
    """
    chosen = options or Options()
    kind = _one_of("engine.dtype", dtype, DTYPES)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Unavailable(
            "is not there", field="device", value=device, remedy="run a worker on a GPU machine"
        )
    torch.set_num_threads(chosen.threads)
    decoder, dense, limit = _load_target(target, kind, device, chosen)
    found = _load_proposer(
        proposer,
        draft,
        dtype=kind,
        device=device,
        target=decoder,
        limit=limit,
        options=chosen,
    )
    invariant = is_invariant(decoder, slots=chosen.max_batch)
    info = EngineInfo(
        name="reference",
        version=version,
        device=device,
        dtype=dtype,
        vocab_size=decoder.vocab_size,
        max_context=limit,
        max_batch=chosen.max_batch,
        end_tokens=_end_tokens(target),
        identity_rule="bitwise" if invariant else "deficit",
        details={
            "proposer": found.name,
            "forward": type(decoder).__name__,
            "threads": chosen.threads,
            "prefill_chunk": chosen.prefill_chunk,
            "processor": torch.backends.cpu.get_cpu_capability(),
        },
    )
    return ReferenceEngine(
        decoder,
        chosen.switches.wrap(found),
        Scorer(dense),
        Tokenizer.from_file(str(target / "tokenizer.json")),
        info,
        limits=Limits(chosen.max_batch, limit, chosen.prefill_chunk),
        verifier=chosen.switches.verifier,
    )


def _load_target(
    folder: Path, dtype: torch.dtype, device: str, options: Options
) -> tuple[Decoder, DenseModel, int]:
    weights = load_llama(folder, dtype=dtype, device=device, invariant=options.invariant)
    if weights is not None:
        limit = min(options.max_context, weights.config.max_positions)
        decoder = LlamaDecoder(
            weights, slots=options.max_batch, positions=limit, aligned=options.invariant
        )
        return decoder, DenseLlama(weights), limit
    # transformers takes seconds to import: only where the own forward does not reach
    from gatekeeper_adapters.engines.reference.fallback import (  # noqa: PLC0415
        SlotDecoder,
        load_transformers,
        ordinary_copy,
    )

    model = load_transformers(folder, dtype=dtype, device=device)
    limit = min(options.max_context, int(model.config.max_position_embeddings))
    twin = ordinary_copy(model)
    slot = SlotDecoder(model, slots=options.max_batch, positions=limit)
    return slot, TransformersModel(twin), limit


def _load_proposer(
    section: Mapping[str, Any],
    folder: Path | None,
    *,
    dtype: torch.dtype,
    device: str,
    target: Decoder,
    limit: int,
    options: Options,
) -> Proposer:
    known = {name: name for name in ("ngram", "draft_lm", "self_speculation")}
    kind = _one_of("proposer.kind", section["kind"], known)
    parameters = dict(section.get("parameters") or {})
    if kind == "ngram":
        return _ngram(parameters)
    if kind == "self_speculation":
        _nothing_left(parameters, known=kept_layers.PARAMETERS)
        kept = kept_layers.kept_layers(parameters, target.layers)
        return SelfSpeculationProposer(target, kept=kept, drawing=options.switches.drawing)
    _nothing_left(parameters)
    if folder is None:
        raise Incompatible(
            "is missing", field="proposer.source", remedy="name the draft model's folder"
        )
    weights = load_llama(folder, dtype=dtype, device=device, invariant=options.invariant)
    if weights is None or weights.config.max_positions < limit:
        raise Incompatible(
            "is not a Llama-family model with at least the target's context",
            field="proposer.source",
            value=str(folder),
            remedy="use a draft of the Llama family, or a smaller max_context",
        )
    emits = weights.config.head_rows
    token_map = weights.token_map
    fits = (
        emits == target.vocab_size
        if token_map is None
        else (token_map.shape[0] == emits and int(token_map.max()) < target.vocab_size)
    )
    if not fits or weights.config.vocab_size != target.vocab_size:
        raise Incompatible(
            f"does not fit the target's {target.vocab_size} ids",
            field="proposer.vocab_size",
            value=emits,
            remedy="give a draft-to-target token map (tensor d2t), or a draft of the same vocabulary",
        )
    decoder = LlamaDecoder(
        weights, slots=options.max_batch, positions=limit, aligned=options.invariant
    )
    return DraftLmProposer(
        decoder,
        vocab_size=target.vocab_size,
        token_map=token_map,
        drawing=options.switches.drawing,
    )


def _ngram(parameters: Mapping[str, Any]) -> NgramProposer:
    defaults = {"min_match": 1, "max_match": 3}
    _nothing_left(parameters, known=tuple(defaults))
    sizes = {name: int(parameters.get(name, default)) for name, default in defaults.items()}
    if not 1 <= sizes["min_match"] <= sizes["max_match"]:
        raise Incompatible(
            "is out of order",
            field="proposer.parameters",
            value=sizes,
            remedy="use 1 <= min_match <= max_match",
        )
    return NgramProposer(**sizes)


def _one_of(name: str, value: str, known: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a lookup
    if value not in known:
        raise Incompatible(
            "is not supported by the reference engine",
            field=name,
            value=value,
            remedy=f"use one of {', '.join(known)}",
        )
    return known[value]


def _nothing_left(parameters: Mapping[str, Any], known: tuple[str, ...] = ()) -> None:
    for name, value in parameters.items():
        if name in known:
            continue
        raise Incompatible(
            "is not a parameter of this proposer",
            field=f"proposer.parameters.{name}",
            value=value,
            remedy="remove it",
        )


def _end_tokens(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text()).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
