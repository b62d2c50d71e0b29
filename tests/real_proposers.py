"""Every kind of proposer on SmolLM2-135M-Instruct, in one engine over one copy of the target.

Medusa and EAGLE draft with the shipped drafters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import model_cache

from gatekeeper import workloads

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GAMMA", "KINDS", "TREE_OF", "load_kinds", "short_prompts"]

GAMMA = 2
TREE = [[0], [1], [0, 0]]
PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"kind": "ngram"},
    "draft_lm": {"kind": "draft_lm", "source": "shipped:draft_lm"},
    "self_speculation": {"kind": "self_speculation", "parameters": {"skip_layers": [14, 15]}},
    "medusa": {"kind": "medusa", "source": "shipped:medusa", "parameters": {"tree": TREE}},
    "eagle": {"kind": "eagle", "source": "shipped:eagle"},
    "eagle tree": {"kind": "eagle", "source": "shipped:eagle", "parameters": {"tree": TREE}},
    "eagle2": {
        "kind": "eagle2",
        "source": "shipped:eagle",
        "parameters": {"depth": 2, "top_k": 2, "nodes": 3},
    },
}
TREE_OF = {"eagle": "eagle tree"}
"""Kinds that draft chains as well as trees, and the name of the proposer with the tree."""
KINDS = [name for name in PROPOSERS if name not in TREE_OF.values()]


def load_kinds(target: Path) -> Any:
    """An engine of 16 slots whose requests name their proposer."""
    from gatekeeper_adapters.engines.reference.convert import prepare
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    first, *others = (
        ({**section, "name": name}, _folder(section.get("source"), prepare))
        for name, section in PROPOSERS.items()
    )
    return load_engine(
        target,
        *first,
        version="test",
        others=others,
        # prompts are read once and not again for every kind
        options=Options(max_batch=16, max_context=256, prefix_cache_bytes=2**29),
    )


def short_prompts(engine: Any, slice_name: str, count: int) -> list[tuple[int, ...]]:
    """The shortest prompts of a slice: little to read, as much to write."""
    found = workloads.tokenised(slice_name, engine.tokenize)
    return sorted((prompt.tokens for prompt in found), key=len)[:count]


def _folder(source: str | None, prepare: Any) -> Path | None:
    return None if source is None else prepare(source, model_cache())
