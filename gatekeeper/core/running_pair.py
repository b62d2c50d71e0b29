"""Two servers that already run, as an artifact: what nobody disclosed is null, never guessed.

The document has the keys of every artifact. Its target is the server that decodes alone, its
proposer the one that speculates; files, tokenizer, numerics and acceptance are ``undisclosed``.
Its digest addresses the pair of addresses, not what answers there. ``target.weights`` may declare
the files that both servers are said to have loaded: then an engine of ours scores what they emit,
which is the one way in which such an artifact can PASS equivalence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - documents.read() resolves it
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gatekeeper.core.addresses import is_host, without_secrets
from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.documents import check, read
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from gatekeeper.core.artifacts import Artifact

__all__ = [
    "SERVERS_ENGINE",
    "SERVER_GATES",
    "UNDISCLOSED",
    "DeclaredWeights",
    "declared_weights",
    "is_running_pair",
    "pair_document",
    "refuse_half_disclosed",
    "scorer_document",
    "server_url",
]

UNDISCLOSED = "undisclosed"
SERVERS_ENGINE = "openai_http"
"""Entry point of the engine that talks to servers which already run."""

SERVER_GATES = ("equivalence", "serving")
"""Gates that can be measured from outside."""

_LARGEST_PORT = 65_535
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DeclaredWeights:
    """The model files that both servers of a pair are said to have loaded.

    ``engine`` is the entry point that took the digests and can load them; ``files`` maps names to
    sha256, ``tokenizer`` is one.
    """

    engine: str
    source: str
    revision: str | None
    files: Mapping[str, str]
    tokenizer: str
    vocab_size: int

    def __post_init__(self) -> None:
        at = "target.weights"
        digests = {f"files[{name}]": digest for name, digest in self.files.items()}
        check(
            [
                (f"{at}.engine", self.engine, bool(self.engine), "name an engine's entry point"),
                (f"{at}.source", self.source, ":" in self.source, "use file:DIR, hf: or pypi:"),
                (f"{at}.files", self.files, bool(self.files), "give each file's sha256"),
                (f"{at}.vocab_size", self.vocab_size, self.vocab_size >= 1, "use 1 or more"),
            ]
            + [
                (
                    f"{at}.{name}",
                    digest,
                    bool(_SHA256.fullmatch(digest)),
                    "give 64 lower-case hex digits",
                )
                for name, digest in {**digests, "tokenizer": self.tokenizer}.items()
            ]
        )


def declared_weights(document: Mapping[str, Any]) -> DeclaredWeights | None:
    """Return the declared weights of an artifact document, None where it declares none.

    Raises:
        InputError: they are not of this form.
    """
    given = document["target"].get("weights")
    return None if given is None else read(DeclaredWeights, given, field="target.weights")


def scorer_document(weights: DeclaredWeights, *, version: str) -> dict[str, Any]:
    """Return an artifact document with which an engine opens the declared weights to score text.

    In float32 on the processor, beside a look-up that is never asked for a draft.
    """
    placed = dict.fromkeys(("device", "draft_device"), "cpu")
    numerics = dict.fromkeys(("dtype", "kv_dtype"), "float32")
    return {
        "schema": 1,
        "target": {
            "source": weights.source,
            "revision": weights.revision,
            "files": dict(weights.files),
            "tokenizer": weights.tokenizer,
            "vocab_size": weights.vocab_size,
            "architecture": UNDISCLOSED,
        },
        "proposer": {"kind": "ngram", "parameters": {}},
        "gamma": 1,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [GREEDY.to_dict()],
        "engine": {
            "name": weights.engine,
            "version": version,
            "tensor_parallel": 1,
            **numerics,
            **placed,
        },
    }


def is_running_pair(document: Mapping[str, Any]) -> bool:
    """Whether an artifact document is a pair of running servers."""
    return bool(document["proposer"]["kind"] == UNDISCLOSED)


def pair_document(
    baseline_url: str,
    candidate_url: str,
    *,
    model: str | None,
    gamma: int | None,
    version: str,
    weights: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the artifact document of two servers; ``version`` is that of the engine that asks.

    ``gamma`` None says that the candidate's window is not known either. ``weights`` are the
    fields of ``DeclaredWeights``, None where nobody says what the servers have loaded.

    Raises:
        InputError: an address that cannot be one of a server, or one server given twice.
    """
    baseline = server_url(baseline_url, field="baseline_url")
    candidate = server_url(candidate_url, field="candidate_url")
    _refuse_one_server(baseline, candidate, field="candidate_url")
    hidden = dict.fromkeys(("dtype", "kv_dtype", "device", "draft_device"), UNDISCLOSED)
    return {
        "schema": 1,
        "target": {
            "source": baseline,
            "revision": None,
            "files": {},
            "tokenizer": None,
            "vocab_size": None,
            "architecture": UNDISCLOSED,
            **({} if weights is None else {"weights": dict(weights)}),
        },
        "proposer": {"kind": UNDISCLOSED, "parameters": {"model": model}, "source": candidate},
        "gamma": gamma,
        "acceptance": {"method": UNDISCLOSED, "contract": "exact"},
        "sampling": [GREEDY.to_dict()],
        "engine": {"name": SERVERS_ENGINE, "version": version, "tensor_parallel": None, **hidden},
    }


def server_url(text: str, *, field: str) -> str:
    """Return a server's root, such as ``http://127.0.0.1:8000``, without ``/v1`` and slashes.

    Raises:
        InputError: not http or https, no host, a port that is none, or anything beside a path:
            a password in an address would be stored and shown.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    sound = (
        parts.scheme in {"http", "https"}
        and is_host(parts.hostname)
        and (port is None or 0 < port <= _LARGEST_PORT)
        and not (parts.query or parts.fragment or parts.username or parts.password)
        and "@" not in parts.netloc
        and text.isprintable()
        and " " not in text
    )
    if not sound:
        raise InputError(
            "is not the address of a server",
            field=field,
            value=without_secrets(text),
            remedy="use http://HOST:PORT, without user, password, query or fragment",
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def refuse_half_disclosed(artifact: Artifact) -> None:
    """Refuse a pair of servers that states what cannot be checked, and any other that hides it.

    Raises:
        InputError: named by its field.
    """
    target, proposer, engine = artifact.target, artifact.proposer, artifact.engine
    pair = proposer.kind == UNDISCLOSED
    hidden: tuple[tuple[str, object, bool], ...] = (
        ("target.tokenizer", target.tokenizer, target.tokenizer is None),
        ("target.vocab_size", target.vocab_size, target.vocab_size is None),
        ("acceptance.method", artifact.acceptance.method, _open(artifact.acceptance.method)),
        ("engine.dtype", engine.dtype, _open(engine.dtype)),
        ("engine.kv_dtype", engine.kv_dtype, _open(engine.kv_dtype)),
        ("engine.device", engine.device, _open(engine.device)),
        ("engine.draft_device", engine.draft_device, _open(engine.draft_device)),
        ("engine.tensor_parallel", engine.tensor_parallel, engine.tensor_parallel is None),
    )
    for field, value, is_hidden in hidden:
        if is_hidden != pair:
            raise InputError(
                "cannot be checked on a server that already runs"
                if pair
                else "is needed: only a pair of running servers may leave it open",
                field=field,
                value=value,
                remedy="leave it undisclosed" if pair else "give it",
            )
    if not pair:
        if target.weights is not None:
            raise InputError(
                "are for servers that already run: this target has files of its own",
                field="target.weights",
                remedy="leave them out",
            )
        if artifact.gamma is None:
            raise InputError("is not a window", field="gamma", remedy="use a whole number from 1")
        return
    declared_weights(artifact.document)
    _refuse_addresses(artifact)


def _refuse_addresses(artifact: Artifact) -> None:
    target, proposer = artifact.target, artifact.proposer
    for field, given in (
        ("target.files", target.files),
        ("target.padding_ids", target.padding_ids),
        ("proposer.files", proposer.files),
        ("proposer.tokenizer", proposer.tokenizer),
        ("proposer.vocab_size", proposer.vocab_size),
        ("proposer.token_map", proposer.token_map),
    ):
        if given:
            raise InputError(
                "cannot be checked on a server that already runs",
                field=field,
                value=given,
                remedy="leave it out, or register the model's files with an engine that reads them",
            )
    model = proposer.parameters.get("model")
    if model is not None and not (isinstance(model, str) and model):
        raise InputError(
            "is not a model's name",
            field="proposer.parameters.model",
            value=model,
            remedy="give the name that GET /v1/models lists, or null",
        )
    for field, source in (("target.source", target.source), ("proposer.source", proposer.source)):
        if server_url(source or "", field=field) != source:
            raise InputError(
                "is not written as a server's root",
                field=field,
                value=source,
                remedy="leave out /v1 and slashes at the end",
            )
    _refuse_one_server(target.source, proposer.source or "", field="proposer.source")


def _refuse_one_server(baseline: str, candidate: str, *, field: str) -> None:
    if _place(baseline) == _place(candidate):
        raise InputError(
            "is the baseline's address too",
            field=field,
            value=candidate,
            remedy="give two servers: one that decodes alone and one that speculates",
        )


def _place(url: str) -> tuple[str, str | None, int | None, str]:
    """Where an address leads: a host's name in any case, a port given or not."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port, parts.path


def _open(value: str) -> bool:
    return value == UNDISCLOSED
