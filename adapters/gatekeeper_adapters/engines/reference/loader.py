"""Put an engine together from prepared folders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from gatekeeper.core.candidate_trees import MOST_CANDIDATES
from gatekeeper.errors import Incompatible
from gatekeeper.protocols import EngineInfo
from gatekeeper_adapters.engines.reference.devices import refuse_absent
from gatekeeper_adapters.engines.reference.engine import ReferenceEngine
from gatekeeper_adapters.engines.reference.invariance import is_invariant
from gatekeeper_adapters.engines.reference.limits import Limits
from gatekeeper_adapters.engines.reference.loaders import Place, load_proposer
from gatekeeper_adapters.engines.reference.model import LlamaDecoder, load_llama
from gatekeeper_adapters.engines.reference.proposers.chain import HONEST, Drawing
from gatekeeper_adapters.engines.reference.proposers.several import Several
from gatekeeper_adapters.engines.reference.scoring import DenseLlama, Scorer, TransformersModel
from gatekeeper_adapters.engines.reference.typical import TYPICAL
from gatekeeper_adapters.engines.reference.verify import EXACT, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gatekeeper_adapters.engines.reference.decoder import Decoder
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer
    from gatekeeper_adapters.engines.reference.scoring import DenseModel
    from gatekeeper_adapters.engines.reference.typical import Typical

__all__ = ["Options", "Switches", "load_engine", "replace_batch"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

METHODS: Mapping[str, Verifier | Typical] = {"standard": EXACT, "typical": TYPICAL}
"""Acceptance methods; the second is approximate, and artifacts have to say so."""


@dataclass(frozen=True)
class Switches:
    """Where tests plant faults. The provider in the entry point always runs with the defaults."""

    verifier: Verifier | Typical = EXACT
    drawing: Drawing = HONEST
    wrap: Callable[[Proposer], Proposer] = lambda proposer: proposer


@dataclass(frozen=True)
class Options:
    """How to run.

    ``invariant`` prefers kernels and attention blocks whose bits do not depend on what shares the
    step to the fastest ones; the start-up test then says whether this processor keeps the promise.
    ``prefix_cache_bytes`` for prefixes that prompts share (0: none): see ``limits.Limits``.
    """

    max_batch: int = 8
    max_context: int = 2048
    prefill_chunk: int = 128
    threads: int = 1
    invariant: bool = False
    prefix_cache_bytes: int = 0
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
    draft_device: str | None = None,
    acceptance: str = "standard",
    others: Sequence[tuple[Mapping[str, Any], Path | None]] = (),
    options: Options | None = None,
    details: Mapping[str, Any] | None = None,
) -> ReferenceEngine:
    """Load ``target`` with a proposer (``kind`` and ``parameters`` as in an artifact).

    ``draft`` is the folder of its files. ``others`` are further proposers with theirs: requests
    name one by its ``name``, or kind, and those that name none get the first. ``details``
    are added to those of the engine's information.

    Raises:
        Incompatible: unknown dtype, kind, method or parameter, or a draft that does not fit.
        InputError: a parameter of the wrong form.
        Unavailable: the device is absent.
    """
    chosen = options or Options()
    kind = _one_of("engine.dtype", dtype, DTYPES)
    method = _one_of("acceptance.method", acceptance, METHODS)
    refuse_absent(device, "device")
    refuse_absent(draft_device or device, "draft_device")
    torch.set_num_threads(chosen.threads)
    decoder, dense, limit = _load_target(target, kind, device, chosen)
    place = Place(decoder, target, kind, draft_device or device, limit, chosen)
    found = load_proposer(proposer, draft, place)
    if others:
        more = {
            section.get("name", section["kind"]): load_proposer(section, at, place)
            for section, at in others
        }
        found = Several({found.name: found, **more})
    faulty = chosen.switches.verifier is not EXACT
    info = EngineInfo(
        name="reference",
        version=version,
        device=device,
        dtype=dtype,
        vocab_size=decoder.vocab_size,
        max_context=limit,
        max_batch=chosen.max_batch,
        end_tokens=_end_tokens(target),
        identity_rule=_identity_rule(decoder, found, chosen),
        details={
            "proposer": found.name,
            "device": device,
            "draft_device": "cpu" if found.name == "ngram" else place.device,
            "acceptance": acceptance,
            "forward": type(decoder).__name__,
            "threads": chosen.threads,
            "prefill_chunk": chosen.prefill_chunk,
            "processor": torch.backends.cpu.get_cpu_capability(),
            **(details or {}),
        },
    )
    return ReferenceEngine(
        decoder,
        chosen.switches.wrap(found),
        Scorer(dense),
        Tokenizer.from_file(str(target / "tokenizer.json")),
        info,
        limits=Limits(chosen.max_batch, limit, chosen.prefill_chunk, chosen.prefix_cache_bytes),
        verifier=chosen.switches.verifier if faulty else method,
        transfers=place.transfers,
    )


def _identity_rule(decoder: Decoder, proposer: Proposer, options: Options) -> str:
    """``bitwise`` where the start-up test finds no dependence on what shares a step.

    A tree's mask makes its attention another sum than ordinary decoding's: there it is ``deficit``.
    """
    branches = any(proposer.most_candidates(g) > g for g in range(1, MOST_CANDIDATES + 1))
    invariant = not branches and is_invariant(decoder, slots=options.max_batch)
    return "bitwise" if invariant else "deficit"


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


def _one_of(name: str, value: str, known: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a lookup
    if value not in known:
        raise Incompatible(
            "is not supported by the reference engine",
            field=name,
            value=value,
            remedy=f"use one of {', '.join(known)}",
        )
    return known[value]


def _end_tokens(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text()).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
