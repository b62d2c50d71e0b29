"""What the demo gates: the shipped description, turned into artifact documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gatekeeper.core.decoding import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gatekeeper.protocols import DraftMaker, EngineProvider

__all__ = ["DemoRoute", "documents", "load_setup", "routes"]

EXAMPLES = Path(__file__).parents[2] / "examples"
_TARGET_FIELDS = (
    *("source", "revision", "files", "tokenizer"),
    *("vocab_size", "architecture", "padding_ids"),
)
_PROPOSER_FIELDS = ("source", "files", "tokenizer", "vocab_size", "token_map")


@dataclass(frozen=True)
class DemoRoute:
    """One row of the decision table."""

    name: str
    slice: str
    artifact: str
    about: str


def load_setup() -> dict[str, Any]:
    """Read the shipped ``demo.yaml``."""
    setup: dict[str, Any] = yaml.safe_load((EXAMPLES / "demo.yaml").read_text())
    return setup


def routes(setup: Mapping[str, Any]) -> tuple[DemoRoute, ...]:
    """List the demo's routes in the order of its table."""
    return tuple(
        DemoRoute(name, r["slice"], r["artifact"], setup["artifacts"][r["artifact"]]["about"])
        for name, r in setup["routes"].items()
    )


def documents(
    setup: Mapping[str, Any],
    provider: EngineProvider,
    maker: DraftMaker,
    cache: Path,
    note: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Return an artifact document for each name, its digests taken from the files themselves.

    Raises:
        Unavailable: the target cannot be fetched.
        EvidenceError: it is not the file it should be.
    """
    note("target model: fetch once, check its digest, convert once")
    section = _section(provider, setup["target"], cache)
    target = {key: section[key] for key in _TARGET_FIELDS}
    sampling = [
        SamplingSettings().to_dict(),
        SamplingSettings(temperature=1.0).to_dict(),
    ]
    device = setup.get("device", "cpu")
    out = {}
    for name, spec in setup["artifacts"].items():
        note(f"artifact {name}: {spec['about']}")
        proposer: dict[str, Any] = {"parameters": {}, **spec["proposer"]}
        source = proposer.pop("source", None)
        if "cut" in spec:
            source = maker.cut(setup["target"], cache=cache, **spec["cut"])
        if source is not None:
            section = _section(provider, source, cache)
            proposer |= {key: section.get(key) for key in _PROPOSER_FIELDS}
        out[name] = {
            "schema": 1,
            "target": target,
            "proposer": proposer,
            "gamma": spec["gamma"],
            "gamma_schedule": None,
            "acceptance": {"method": "standard", "contract": "exact"},
            "sampling": sampling,
            "engine": {
                "name": provider.name,
                "version": provider.version(),
                "dtype": setup["dtype"],
                "kv_dtype": setup["dtype"],
                "tensor_parallel": 1,
                "device": device,
                "draft_device": device,
            },
        }
    return out


def _section(provider: EngineProvider, source: str, cache: Path) -> dict[str, Any]:
    section = dict(provider.manifest(source, cache=cache))
    del section["folder"]  # local to this machine
    section["files"] = dict(section["files"])
    return section
