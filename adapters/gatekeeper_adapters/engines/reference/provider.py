"""The entry point of the reference engine: cheap to import, torch only in ``open``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gatekeeper.core.proposer_parameters import match_lengths, refuse_parameters
from gatekeeper.errors import EvidenceError, Incompatible, MissingExtra
from gatekeeper_adapters.engines.reference.convert import describe, prepare
from gatekeeper_adapters.engines.reference.corpus import (
    corpus_file,
    describe_corpus,
    index_corpus,
)
from gatekeeper_adapters.engines.reference.sources import parse_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gatekeeper.protocols import Engine
    from gatekeeper_adapters.engines.reference.loader import Options

__all__ = ["PROVIDER", "ReferenceProvider"]

REVISION = "2"
"""Raised when the engine's numerics or algorithm change, which voids evidence."""

NEEDED = ("torch", "transformers", "safetensors", "tokenizers", "gguf")


@dataclass(frozen=True)
class ReferenceProvider:
    """Implements ``gatekeeper.protocols.EngineProvider``.

    ``note`` hears one line before every slow step; ``options`` (``loader.Options``) tune the
    engine from Python only: artifacts and requests cannot reach them. ``max_batch`` of ``open``
    replaces the one there. ``others`` are sections of further proposers to load beside an artifact's:
    requests name one by its kind.
    """

    name: str = "reference"
    note: Callable[[str], None] = lambda _: None
    options: Options | None = None
    others: tuple[Mapping[str, Any], ...] = ()

    def version(self) -> str:
        """Engine revision and torch version, such as ``2+torch2.13.0``.

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
        """Fetch, convert once, digest; see ``convert.describe``. ``folder`` is the local path.

        A ``file:`` that names a file is a corpus; see ``corpus.describe_corpus``.
        """
        self.version()
        path, found = _found(source, cache, self.note)
        return {**found, "folder": str(path)}

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

    def _draft(
        self, section: Mapping[str, Any], target: Mapping[str, Any], folder: Path, cache: Path
    ) -> Path | None:
        """The folder of a proposer's files, checked; None where its kind has none."""
        if not section.get("source"):
            return None
        draft = _checked(section, "proposer", cache, self.note)
        if section["kind"] == "ngram":
            return self._indexed(draft, folder, section, cache)
        _agree("proposer.tokenizer", section["tokenizer"], target["tokenizer"])
        return draft

    def _indexed(
        self, corpus: Path, target: Path, proposer: Mapping[str, Any], cache: Path
    ) -> Path:
        """The folder of a corpus's index, in the target's tokens."""
        parameters = proposer.get("parameters") or {}
        refuse_parameters("ngram", parameters)
        lengths = match_lengths(parameters)
        return index_corpus(
            corpus,
            target / "tokenizer.json",
            cache,
            max_match=lengths["max_match"],
            note=self.note,
        )

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
        _agree("engine.kv_dtype", engine.get("kv_dtype") or engine["dtype"], engine["dtype"])
        _agree("engine.tensor_parallel", engine.get("tensor_parallel") or 1, 1)
        method = _method(artifact["acceptance"])
        target = _checked(artifact["target"], "target", cache, self.note)
        draft, *drafts = (
            self._draft(section, artifact["target"], target, cache)
            for section in (proposer, *self.others)
        )
        # torch arrives here and not before
        from gatekeeper_adapters.engines.reference import loader  # noqa: PLC0415
        from gatekeeper_adapters.engines.reference.expected_memory import (  # noqa: PLC0415
            expect_memory,
        )

        options = loader.replace_batch(self.options or loader.Options(), max_batch)
        # what several proposers hold together no artifact describes
        expected = {} if self.others else expect_memory(artifact, target, draft, options)
        return loader.load_engine(
            target,
            proposer,
            draft,
            version=version,
            dtype=engine["dtype"],
            device=device,
            draft_device=engine.get("draft_device") or device,
            acceptance=method,
            others=list(zip(self.others, drafts, strict=True)),
            options=options,
            details=expected,
        )


def _found(source: str, cache: Path, note: Callable[[str], None]) -> tuple[Path, Mapping[str, Any]]:
    """The prepared folder of a source, or the file of a corpus, with its artifact section."""
    path = corpus_file(source)
    if path is not None:
        return path, describe_corpus(source, path)
    folder = prepare(source, cache, note)
    return folder, describe(source, folder)


def _method(acceptance: Mapping[str, Any]) -> str:
    """How drafts are accepted; a method that changes the distribution has to be declared."""
    method, contract = acceptance["method"], acceptance["contract"]
    if method == "typical" and contract == "approximate":
        return "typical"
    _agree("acceptance.method", method, "standard")
    return "standard"


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
    """The prepared folder of a section, or a corpus, its files equal to the section's digests."""
    note(f"checking digests of {where}")
    path, found = _found(section["source"], cache, note)
    folder = path.parent if path.is_file() else path
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
    return path


PROVIDER = ReferenceProvider()
"""What the entry point ``gatekeeper.engines:reference`` names."""
