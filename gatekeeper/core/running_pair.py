"""Two servers that already run, as an artifact: what nobody disclosed is null, never guessed.

The document has the keys of every artifact. Its target is the server that decodes alone, its
proposer the one that speculates; files, tokenizer, numerics and acceptance are ``undisclosed``.
Its digest addresses the pair of addresses, not what answers there: no gate can make such an
artifact PASS equivalence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gatekeeper.core.addresses import is_host, without_secrets
from gatekeeper.core.decoding import GREEDY
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.artifacts import Artifact

__all__ = [
    "SERVERS_ENGINE",
    "SERVER_GATES",
    "UNDISCLOSED",
    "is_running_pair",
    "pair_document",
    "refuse_half_disclosed",
    "server_url",
]

UNDISCLOSED = "undisclosed"
SERVERS_ENGINE = "openai_http"
"""Entry point of the engine that talks to servers which already run."""

SERVER_GATES = ("equivalence", "serving")
"""Gates that can be measured from outside."""

_LARGEST_PORT = 65_535


def is_running_pair(document: Mapping[str, Any]) -> bool:
    """Whether an artifact document is a pair of running servers."""
    return bool(document["proposer"]["kind"] == UNDISCLOSED)


def pair_document(
    baseline_url: str, candidate_url: str, *, model: str | None, gamma: int | None, version: str
) -> dict[str, Any]:
    """Return the artifact document of two servers; ``version`` is that of the engine that asks.

    ``gamma`` None says that the candidate's window is not known either.

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
        if artifact.gamma is None:
            raise InputError("is not a window", field="gamma", remedy="use a whole number from 1")
        return
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
