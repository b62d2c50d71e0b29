"""Every kind of proposer with the parameters and the drafter that the long checks run it with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatekeeper import plugins
from gatekeeper.cli.demo.setup import documents, load_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CACHE", "CONTROLS", "GAMMA", "KINDS", "ROOT", "TYPICAL", "artifacts", "say"]

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("GATEKEEPER_TEST_CACHE") or ROOT / ".cache")
GAMMA = 4
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]]
"""Eight candidates: on a processor each row of verification costs, and unlikely branches do not pay."""

KINDS: dict[str, dict[str, Any]] = {
    "ngram": {
        "about": "prompt look-up, nothing trained",
        "proposer": {"kind": "ngram"},
    },
    "draft_lm": {
        "about": "a small language model with layers of the target, trained",
        "proposer": {"kind": "draft_lm", "source": "shipped:draft_lm"},
    },
    "self_speculation": {
        "about": "the target without layers 14 and 15",
        "proposer": {"kind": "self_speculation", "parameters": {"skip_layers": [14, 15]}},
    },
    "medusa": {
        "about": "heads on the target's last state, static tree",
        "proposer": {"kind": "medusa", "source": "shipped:medusa", "parameters": {"tree": TREE}},
    },
    "eagle": {
        "about": "one layer over token and state, chain",
        "proposer": {"kind": "eagle", "source": "shipped:eagle"},
    },
    "eagle tree": {
        "about": "the same drafter, static tree",
        "proposer": {"kind": "eagle", "source": "shipped:eagle", "parameters": {"tree": TREE}},
    },
    "eagle2": {
        "about": "the same drafter, dynamic tree",
        "proposer": {
            "kind": "eagle2",
            "source": "shipped:eagle",
            "parameters": {"depth": 4, "top_k": 3, "nodes": 8},
        },
    },
}
"""Name → artifact as in the demo's description."""

CONTROLS: dict[str, dict[str, Any]] = {
    "cut": {
        "about": "layers 0, 1 and 29 of the target with a trimmed head, untrained",
        "gamma": 2,
        "proposer": {"kind": "draft_lm"},
        "cut": {"layers": [0, 1, 29], "vocabulary": 8192},
    },
    "early exit": {
        "about": "the target up to layer 26",
        "proposer": {"kind": "self_speculation", "parameters": {"exit_after": 26}},
    },
}
"""Proposers that cannot pay here: nearly always rejected, and nearly as dear as the target."""

TYPICAL = {"method": "typical", "contract": "approximate"}
"""Medusa's own acceptance rule, declared for what it is."""


def artifacts(
    names: Iterable[str], *, dtype: str = "float32", note: Callable[[str], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Artifact documents of the named kinds, every digest taken from the files."""
    provider = plugins.load("gatekeeper.engines", "reference")
    known = {**KINDS, **CONTROLS}
    specs = {name: {"gamma": GAMMA, **known[name]} for name in names}
    setup = {**load_setup(), "dtype": dtype, "artifacts": specs}
    return documents(setup, provider, provider, CACHE, note=note or say)


def say(line: str) -> None:
    """Print an indented line at once."""
    print(f"  {line}", flush=True)
