"""From what was asked for on the command line to an engine and its service."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatekeeper.cli.artifact import with_digests
from gatekeeper.cli.show import read_document
from gatekeeper.config import OtlpExport, Settings
from gatekeeper.core.addresses import has_credentials, without_secrets
from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.errors import InputError
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.provider import PROVIDER
from gatekeeper_adapters.engines.reference.sources import parse_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gatekeeper.protocols import Engine
    from gatekeeper_adapters.engines.reference.loader import Options
    from gatekeeper_adapters.engines.reference.server.service import Card, Service

__all__ = ["Chosen", "collector", "of_artifact", "of_target", "open_engine", "service_of"]

GAMMA = 4
_TURN_ENDS = "<|im_end|>"


@dataclass(frozen=True)
class Chosen:
    """What to serve: an artifact's document, further proposers' sections, and the usual window."""

    document: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...]
    gamma: int
    aliases: tuple[str, ...]


def of_artifact(file: Path, *, gamma: int | None) -> Chosen:
    """What an artifact FILE names.

    Raises:
        GatekeeperError: it cannot be read, or is no artifact.
    """
    document = with_digests(read_document(file))
    artifact = parse_artifact(document)
    usual = artifact.gamma or GAMMA
    return Chosen(document, (), usual if gamma is None else gamma, (artifact.digest,))


def of_target(
    target: str | None, proposers: Sequence[str], *, gamma: int | None, dtype: str, device: str
) -> Chosen:
    """A target with proposers as ``KIND[=SOURCE][?NAME=VALUE&…]``, the first of them the usual one.

    Raises:
        GatekeeperError: a source cannot be had, or the parts do not fit.
    """
    if target is None:
        raise InputError(
            "is missing", field="--target", remedy="name a model, or give --artifact FILE"
        )
    usual = GAMMA if gamma is None else gamma
    sections = [_section(text) for text in proposers or ("ngram",)]
    kinds = [section["kind"] for section in sections]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise InputError(
            "is given twice, and requests name a proposer by its kind",
            field="--proposer",
            value=twice,
            remedy="give each kind once",
        )
    documents = [
        with_digests(_artifact(target, section, dtype=dtype, device=device, gamma=max(1, usual)))
        for section in sections
    ]
    for document in documents:
        parse_artifact(document)  # refuses what does not fit
    return Chosen(documents[0], tuple(d["proposer"] for d in documents[1:]), usual, ())


def open_engine(
    chosen: Chosen, options: Options, *, max_batch: int, note: Callable[[str], None] | None
) -> Engine:
    """Load it, every digest checked; ``note`` hears one line before every slow step.

    Raises:
        GatekeeperError: as ``ReferenceProvider.open``.
    """
    provider = replace(
        PROVIDER, note=note or (lambda _: None), options=options, others=chosen.others
    )
    return provider.open(
        chosen.document,
        cache=Settings.load().cache,
        max_batch=max_batch,
        device=chosen.document["engine"]["device"],
    )


def collector(url: str) -> str:
    """The address of a collector of spans.

    Raises:
        InputError: it cannot be one, or holds a password.
    """
    if not url.startswith(("http://", "https://")) or has_credentials(url):
        raise InputError(
            "is not the address of a collector",
            field="--otlp",
            value=without_secrets(url),
            remedy="use http://HOST:PORT; keys go into OTEL_EXPORTER_OTLP_HEADERS",
        )
    return url


def service_of(chosen: Chosen, engine: Engine, *, waiting: int, otlp: str | None) -> Service:
    """The service around an engine that was opened.

    Raises:
        InputError: the chat template is none.
    """
    # the server's libraries arrive here and not before
    from gatekeeper_adapters.engines.reference.server.chat_template import (  # noqa: PLC0415
        ChatTemplate,
    )
    from gatekeeper_adapters.engines.reference.server.service import Service  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.server.spans import SpanSender  # noqa: PLC0415
    from gatekeeper_adapters.engines.reference.server.wire import Defaults  # noqa: PLC0415

    source = chosen.document["target"]["source"]
    template = ChatTemplate.load(prepare(source, Settings.load().cache))
    ends = engine.info.end_tokens
    closing = engine.tokenize(_TURN_ENDS)
    if template.builtin and len(closing) == 1:
        ends = tuple(dict.fromkeys([*ends, *closing]))
    service = Service(
        engine,
        _card(chosen, engine),
        template,
        Defaults(chosen.gamma, ends, engine.info.max_context),
        waiting,
    )
    if otlp is not None:
        service.sender = SpanSender(
            otlp,
            OtlpExport.load().headers,
            service.metrics.spans_dropped.inc,
        )
    return service


def _section(text: str) -> dict[str, Any]:
    """A proposer's section from ``KIND[=SOURCE][?NAME=VALUE&…]``; values are JSON."""
    head, mark, tail = text.partition("?")
    kind, _, source = head.partition("=")
    parameters = {}
    for pair in tail.split("&") if mark else []:
        name, _, value = pair.partition("=")
        try:
            parameters[name] = json.loads(value)
        except ValueError as error:
            raise InputError(
                f"has a parameter whose value is not JSON ({name})",
                field="--proposer",
                value=text,
                remedy="write KIND?NAME=VALUE, such as self_speculation?exit_after=8",
            ) from error
    section: dict[str, Any] = {"kind": kind, "parameters": parameters}
    return section | ({"source": source} if source else {})


def _artifact(
    target: str, proposer: Mapping[str, Any], *, dtype: str, device: str, gamma: int
) -> dict[str, Any]:
    return {
        "schema": 1,
        "target": {"source": target},
        "proposer": proposer,
        "gamma": gamma,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}],
        "engine": {
            "name": PROVIDER.name,
            "version": PROVIDER.version(),
            "dtype": dtype,
            "kv_dtype": dtype,
            "tensor_parallel": 1,
            "device": device,
            "draft_device": device,
        },
    }


def _card(chosen: Chosen, engine: Engine) -> Card:
    from gatekeeper_adapters.engines.reference.server.service import Card  # noqa: PLC0415 - as above

    target, info = chosen.document["target"], engine.info
    local = parse_source(target["source"]).kind == "file"
    weights = {"files": dict(target["files"]), "dtype": info.dtype}
    numerics = json.dumps([weights, info.version, info.device], sort_keys=True)
    return Card(
        name=_name(target["source"]),
        # not a folder's path, which is nobody's business
        aliases=(*([] if local else [target["source"]]), *chosen.aliases),
        fingerprint=f"fp_{hashlib.sha256(numerics.encode()).hexdigest()[:12]}",
        weights=weights,
        speculation={
            "gamma": chosen.gamma,
            "proposers": [s["kind"] for s in (chosen.document["proposer"], *chosen.others)],
        },
    )


def _name(source: str) -> str:
    """What requests call a model: the last part of where it comes from."""
    parsed = parse_source(source)
    if parsed.kind == "hf":
        return parsed.name
    return Path(parsed.name).resolve().name if parsed.path is None else Path(parsed.path).stem
