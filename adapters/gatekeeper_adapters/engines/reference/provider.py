"""The entry point of the reference engine: cheap to import, torch only in ``open``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import EvidenceError, Incompatible, MissingExtra
from gatekeeper_adapters.engines.reference.convert import describe, prepare
from gatekeeper_adapters.engines.reference.sources import parse_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gatekeeper.protocols import Engine
    from gatekeeper_adapters.engines.reference.loader import Options

__all__ = ["PROVIDER", "ReferenceProvider"]

REVISION = "1"
"""Raised when the engine's numerics or algorithm change, which voids evidence."""

NEEDED = ("torch", "transformers", "safetensors", "tokenizers", "gguf")


@dataclass(frozen=True)
class ReferenceProvider:
    """Implements ``gatekeeper.protocols.EngineProvider``.

    ``note`` hears one line before every slow step; ``options`` (``loader.Options``) tune the
    engine from Python only: artifacts and requests cannot reach them. ``max_batch`` of ``open``
    replaces the one there.
    """

    name: str = "reference"
    note: Callable[[str], None] = lambda _: None
    options: Options | None = None

    def version(self) -> str:
        """Engine revision and torch version, such as ``1+torch2.13.0``.

        Raises:
            MissingExtra: a package of the torch extra is absent.
        """
        found = {}
        for package in NEEDED:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError as error:
                raise MissingExtra(
                    "is not installed",
                    field="engine",
                    value=f"reference ({package})",
                    remedy="pip install gatekeeper[torch]",
                ) from error
        return f"{REVISION}+torch{found['torch'].partition('+')[0]}"

    def manifest(self, source: str, *, cache: Path) -> Mapping[str, Any]:
        """Fetch, convert once, digest; see ``convert.describe``. ``folder`` is the local path."""
        self.version()
        folder = prepare(source, cache, self.note)
        return {**describe(source, folder), "folder": str(folder)}

    def cut(
        self, source: str, *, layers: Sequence[int], vocabulary: int | None, cache: Path
    ) -> str:
        """Cut a draft from a target's own layers; implements ``gatekeeper.protocols.DraftMaker``.

        Low token ids are the frequent ones of a byte-pair vocabulary: a trimmed head keeps those.
        """
        self.version()
        from gatekeeper_adapters.engines.reference.cut import cut_layers  # noqa: PLC0415 - the extra

        name = "-".join(
            ["cut", parse_source(source).key, *map(str, layers), str(vocabulary or "all")]
        )
        keep = None if vocabulary is None else range(vocabulary)
        folder = prepare(source, cache, self.note)
        return f"file:{cut_layers(folder, layers, keep, cache.absolute() / 'models' / name)}"

    def open(
        self, artifact: Mapping[str, Any], *, cache: Path, max_batch: int, device: str
    ) -> Engine:
        """Check every digest, then load.

        Raises:
            MissingExtra: the torch extra is not installed.
            Incompatible: the artifact asks for what this engine cannot do, or its parts do not fit.
            InputError: a parameter of the proposer has the wrong form.
            EvidenceError: a file differs from the digest in the artifact.
            Unavailable: the device is absent, or a download failed.
        """
        version = self.version()
        engine, proposer = artifact["engine"], artifact["proposer"]
        _agree("engine.name", engine["name"], self.name)
        _agree("engine.version", engine["version"], version)
        _agree("engine.device", engine["device"], device)
        _agree("engine.draft_device", engine.get("draft_device") or device, device)
        _agree("engine.kv_dtype", engine.get("kv_dtype") or engine["dtype"], engine["dtype"])
        _agree("acceptance.method", artifact["acceptance"]["method"], "standard")
        target = _checked(artifact["target"], "target", cache, self.note)
        draft = None
        if proposer.get("source"):
            draft = _checked(proposer, "proposer", cache, self.note)
            _agree("proposer.tokenizer", proposer["tokenizer"], artifact["target"]["tokenizer"])
        # torch arrives here and not before
        from gatekeeper_adapters.engines.reference import loader  # noqa: PLC0415

        options = self.options or loader.Options()
        return loader.load_engine(
            target,
            proposer,
            draft,
            version=version,
            dtype=engine["dtype"],
            device=device,
            options=loader.replace_batch(options, max_batch),
        )


def _agree(field: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Incompatible(
            f"differs from {wanted}",
            field=field,
            value=found,
            remedy="register a new version of the artifact for this engine",
        )


def _checked(
    section: Mapping[str, Any], where: str, cache: Path, note: Callable[[str], None]
) -> Path:
    """The prepared folder of a section, its files equal to the section's digests."""
    folder = prepare(section["source"], cache, note)
    note(f"checking digests of {where}")
    found = describe(section["source"], folder)
    wanted = section["files"]
    for name in sorted({*wanted, *found["files"]}):
        if wanted.get(name) != found["files"].get(name):
            raise EvidenceError(
                f"is not the file that was registered ({folder / name})",
                field=f"{where}.files.{name}",
                value=found["files"].get(name, "absent"),
                remedy="restore the file, or register the artifact again",
            )
    for key in ("tokenizer", "vocab_size", "token_map"):
        if section.get(key) is not None and section[key] != found[key]:
            raise EvidenceError(
                f"differs from what the files hold ({json.dumps(found[key])})",
                field=f"{where}.{key}",
                value=section[key],
                remedy="register the artifact again",
            )
    return folder


PROVIDER = ReferenceProvider()
"""What the entry point ``gatekeeper.engines:reference`` names."""
