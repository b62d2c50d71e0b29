"""The artifact: one target, one proposer and everything their equivalence depends on.

Immutable and addressed by the sha256 of its canonical JSON (RFC 8785), so that any change is a
new artifact and voids the evidence of the old one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping  # noqa: TC003 - read() resolves it
from dataclasses import dataclass
from typing import Any

import rfc8785

from gatekeeper.core.addresses import has_credentials, without_secrets
from gatekeeper.core.compatibility import refuse_incompatible
from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.documents import check, mapping, plain, refuse_unknown
from gatekeeper.core.documents import read as read_document
from gatekeeper.core.running_pair import UNDISCLOSED, is_running_pair
from gatekeeper.errors import EvidenceError, InputError

__all__ = [
    "SCHEMA",
    "Acceptance",
    "Artifact",
    "EngineSpec",
    "Proposer",
    "Target",
    "artifact_digest",
    "check_digest",
    "parse_artifact",
]

SCHEMA = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DEVICES = ("cpu", "cuda", UNDISCLOSED)
_SOURCE = re.compile(r"[a-z][a-z0-9+.-]*:.+")


@dataclass(frozen=True)
class Target:
    """The model whose distribution is the contract. ``files`` maps names to sha256.

    ``tokenizer`` and ``vocab_size`` are None for a server that already runs, and only there;
    ``weights`` is what such a server is said to have loaded, see ``core.running_pair``.
    """

    source: str
    revision: str | None
    files: Mapping[str, str]
    tokenizer: str | None
    vocab_size: int | None
    architecture: str
    padding_ids: tuple[int, ...] = ()
    weights: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Proposer:
    """What drafts. A look-up (``ngram``) and the target's own layers (``self_speculation``) have
    parameters, a look-up perhaps a corpus as source and file; a model also source and files.
    """  # noqa: D205 - one sentence

    kind: str
    parameters: Mapping[str, Any]
    source: str | None = None
    files: Mapping[str, str] | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    token_map: str | None = None


@dataclass(frozen=True)
class Acceptance:
    """How drafts are accepted, and whether the result is declared ``exact`` or ``approximate``.

    ``deviation`` is what an approximate artifact admits: the largest mean deviation of any feature
    that the equivalence gate watches. None claims no more than the policy's tolerance.
    """

    method: str
    contract: str
    deviation: float | None = None


@dataclass(frozen=True)
class EngineSpec:
    """Where it runs; every field changes numbers or speed."""

    name: str
    version: str
    dtype: str
    kv_dtype: str
    tensor_parallel: int | None
    device: str
    draft_device: str

    def __post_init__(self) -> None:
        check(
            [
                ("engine.name", self.name, bool(self.name), "name the engine's entry point"),
                ("engine.version", self.version, bool(self.version), "give the engine's version"),
                (
                    "engine.dtype",
                    self.dtype,
                    self.dtype in {"float32", "bfloat16", "float16", UNDISCLOSED},
                    "use float32, bfloat16 or float16",
                ),
                (
                    "engine.tensor_parallel",
                    self.tensor_parallel,
                    self.tensor_parallel is None or self.tensor_parallel >= 1,
                    "use 1 or more",
                ),
            ]
            + [
                (f"engine.{name}", device, device in _DEVICES, "use cpu or cuda")
                for name, device in (("device", self.device), ("draft_device", self.draft_device))
            ]
        )


@dataclass(frozen=True)
class Artifact:
    """A parsed, compatible artifact; ``document`` is what was given and what is digested.

    ``gamma`` is None where a running server does not disclose its window, and only there.
    """

    target: Target
    proposer: Proposer
    gamma: int | None
    gamma_schedule: tuple[tuple[int, int, int], ...] | None
    acceptance: Acceptance
    sampling: tuple[SamplingSettings, ...]
    engine: EngineSpec
    document: Mapping[str, Any]
    digest: str


_KEYS = (
    "schema",
    "target",
    "proposer",
    "gamma",
    "gamma_schedule",
    "acceptance",
    "sampling",
    "engine",
)


def artifact_digest(document: Mapping[str, Any]) -> str:
    """The sha256 of the document as canonical JSON (RFC 8785): key order and spacing do not count.

    Raises:
        InputError: it holds something JSON cannot, such as NaN.
    """
    try:
        return hashlib.sha256(rfc8785.dumps(plain(dict(document)))).hexdigest()
    except rfc8785.CanonicalizationError as error:
        raise InputError(
            f"has no canonical JSON: {error}", field="artifact", remedy="use JSON values only"
        ) from error


def check_digest(document: Mapping[str, Any], digest: str) -> None:
    """Check that a document still is the artifact of that digest.

    Raises:
        EvidenceError: it is not.
    """
    found = artifact_digest(document)
    if found != digest:
        raise EvidenceError(
            f"belongs to another document, whose digest is {found}",
            field="artifact.digest",
            value=digest,
            remedy="register the changed artifact and gate it anew",
        )


def parse_artifact(document: Mapping[str, Any]) -> Artifact:
    """Read and check an artifact document.

    Raises:
        UnknownKey: a key that nothing reads, named by its dotted field.
        InputError: a missing key, or a wrong type or range.
        Incompatible: target and proposer do not fit, or the contract cannot hold.
    """
    document = mapping(dict(document), field="artifact")
    refuse_unknown(document, _KEYS, field="")
    for key in _KEYS:
        if key not in document and key != "gamma_schedule":
            raise InputError("is missing", field=key, remedy="add it")
    if document["schema"] != SCHEMA:
        raise InputError(
            "is not a known schema",
            field="schema",
            value=document["schema"],
            remedy=f"use {SCHEMA}",
        )
    target = read_document(Target, document["target"], field="target")
    proposer = read_document(Proposer, document["proposer"], field="proposer")
    _check_model("target", target.source, target.files, {"tokenizer": target.tokenizer})
    _check_model(
        "proposer",
        proposer.source,
        proposer.files or {},
        {"tokenizer": proposer.tokenizer, "token_map": proposer.token_map},
    )
    artifact = Artifact(
        target=target,
        proposer=proposer,
        gamma=None if _window_is_open(document) else _gamma(document["gamma"], "gamma", least=1),
        gamma_schedule=_schedule(document.get("gamma_schedule")),
        acceptance=read_document(Acceptance, document["acceptance"], field="acceptance"),
        sampling=_sampling(document["sampling"]),
        engine=read_document(EngineSpec, document["engine"], field="engine"),
        document=document,
        digest=artifact_digest(document),
    )
    refuse_incompatible(artifact)
    return artifact


def _check_model(
    side: str, source: str | None, files: Mapping[str, str], digests: Mapping[str, str | None]
) -> None:
    if source is not None and not _SOURCE.fullmatch(source):
        raise InputError(
            "has no scheme",
            field=f"{side}.source",
            value=source,
            remedy="use file:PATH, hf:org/name@revision or pypi:dist==version#path",
        )
    if source is not None and "://" in source and has_credentials(source):
        raise InputError(
            "holds a user or password, which everybody who reads artifacts would see",
            field=f"{side}.source",
            value=without_secrets(source),
            remedy="leave it out; a key for a server goes into GATEKEEPER_SERVERS_KEY of the worker",
        )
    for name in files:
        if "/" in name or "\\" in name or name in {"", ".", ".."}:
            raise InputError(
                "is not the name of a file",
                field=f"{side}.files",
                value=name,
                remedy="name files of the source's own folder",
            )
    named = {f"files[{name}]": digest for name, digest in files.items()}
    for name, digest in {**named, **digests}.items():
        if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
            raise InputError(
                "is not a sha256",
                field=f"{side}.{name}",
                value=digest,
                remedy="give 64 lower-case hexadecimal digits",
            )


def _window_is_open(document: Mapping[str, Any]) -> bool:
    return document["gamma"] is None and is_running_pair(document)


def _gamma(value: object, field: str, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(
            "is not a window", field=field, value=value, remedy=f"use a whole number from {least}"
        )
    return value


def _schedule(raw: object) -> tuple[tuple[int, int, int], ...] | None:
    """Rows of (min concurrency, max concurrency, gamma), rising, not overlapping; gamma 0 is off."""
    if raw is None:
        return None
    if not isinstance(raw, (list, tuple)) or not raw:
        raise InputError(
            "is not a list of rows",
            field="gamma_schedule",
            value=raw,
            remedy="use [[min_concurrency, max_concurrency, gamma], …] or null",
        )
    rows: list[tuple[int, int, int]] = []
    last = 0
    for index, row in enumerate(raw):
        at = f"gamma_schedule[{index}]"
        width = 3
        if not isinstance(row, (list, tuple)) or len(row) != width:
            raise InputError("is not a row", field=at, value=row, remedy="use [min, max, gamma]")
        low, high = _gamma(row[0], at, least=1), _gamma(row[1], at, least=1)
        check([(at, list(row), last < low <= high, "let the rows rise without overlap")])
        rows.append((low, high, _gamma(row[2], at, least=0)))
        last = high
    return tuple(rows)


def _sampling(raw: object) -> tuple[SamplingSettings, ...]:
    if not isinstance(raw, (list, tuple)) or not raw:
        raise InputError(
            "covers no sampling settings",
            field="sampling",
            value=raw,
            remedy="list the settings that the route uses",
        )
    return tuple(
        SamplingSettings.from_dict(
            mapping(item, field=f"sampling[{index}]"), field=f"sampling[{index}]"
        )
        for index, item in enumerate(raw)
    )
