"""A corpus for look-up: one local file, known by its digest, indexed once in the target's tokens.

A text file (UTF-8), or ``*.npy`` with the token ids themselves. The index lies in the cache under a
key of corpus, tokenizer and match length; it decides what is proposed and never what is accepted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.errors import InputError, Unavailable
from gatekeeper_adapters.engines.reference.proposers.corpus_index import MOST_TOKENS, CorpusIndex
from gatekeeper_adapters.engines.reference.sources import file_digest, parse_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["corpus_file", "describe_corpus", "index_corpus", "read_corpus"]

FORMAT = 1
"""Raised when an index written before can no longer be read, or would be another."""

PIECE = 1 << 20
"""Characters tokenised at a time: an encoding takes far more memory than its tokens."""


def corpus_file(source: str) -> Path | None:
    """The file that a source names, None where it names a folder or a model elsewhere.

    Raises:
        InputError: the source cannot be parsed.
    """
    parsed = parse_source(source)
    path = Path(parsed.name).expanduser().resolve()
    return path if parsed.kind == "file" and path.is_file() else None


def describe_corpus(source: str, path: Path) -> dict[str, Any]:
    """Artifact section of a corpus; it has no tokenizer, because the target's reads it."""
    return {
        "source": source,
        "revision": None,
        "files": {path.name: file_digest(path)},
        "tokenizer": None,
        "vocab_size": None,
        "token_map": None,
        "architecture": "corpus",
        "padding_ids": [],
    }


def index_corpus(
    path: Path,
    tokenizer: Path,
    cache: Path,
    *,
    max_match: int,
    note: Callable[[str], None] = lambda _: None,
) -> Path:
    """Folder of the index, built the first time; ``index.json`` there says how long that took.

    Raises:
        InputError: the corpus cannot be read, is too short or too long.
        Unavailable: the cache cannot be written.
    """
    key = {
        "format": FORMAT,
        "corpus": file_digest(path),
        "tokenizer": file_digest(tokenizer),
        "max_match": max_match,
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "corpora" / name
    if (folder / "index.json").is_file():
        return folder
    note(f"indexing {path.name} (once)")
    start = time.perf_counter()
    tokens = read_corpus(path, tokenizer)
    read_s = time.perf_counter() - start
    index = CorpusIndex.build(tokens, max_match)
    sort_s = time.perf_counter() - start - read_s
    said = {**key, "tokens": len(tokens), "bytes": index.bytes, "read_s": read_s, "sort_s": sort_s}
    _write(index, said, folder)
    note(f"indexed {len(tokens)} tokens in {read_s + sort_s:.1f} s, {index.bytes} bytes")
    return folder


def read_corpus(path: Path, tokenizer: Path) -> NDArray[Any]:
    """Token ids [n] of a corpus.

    Text is tokenised in pieces that end with a line, without special tokens.

    Raises:
        InputError: it is no UTF-8 text, or no list of the tokenizer's ids.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - extra

    words = Tokenizer.from_file(str(tokenizer))
    if path.suffix == ".npy":
        return _ids(path, words.get_vocab_size(with_added_tokens=True))
    found, count = [np.zeros(0, dtype=np.uint32)], 0
    try:
        for piece in _pieces(path):
            ids = np.asarray(words.encode(piece, add_special_tokens=False).ids, dtype=np.uint32)
            found.append(ids)
            count += len(ids)
            _refuse_long(path, count)
    except UnicodeDecodeError as error:
        raise _unreadable(path, "is not UTF-8 text") from error
    return np.concatenate(found)


def _ids(path: Path, vocab: int) -> NDArray[Any]:
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise _unreadable(path, "is not a NumPy array") from error
    whole = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not whole or not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise _unreadable(path, f"is not a list of token ids below {vocab}")
    _refuse_long(path, len(ids))
    return np.asarray(ids, dtype=np.uint32)


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as text:
        while piece := text.read(PIECE):
            yield piece + text.readline(PIECE)


def _refuse_long(path: Path, count: int) -> None:
    if count > MOST_TOKENS:
        raise _unreadable(path, f"has more than {MOST_TOKENS} tokens")


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        why,
        field="proposer.source",
        value=path.name,
        remedy="give UTF-8 text, or token ids of the target as *.npy",
    )


def _write(index: CorpusIndex, said: dict[str, Any], folder: Path) -> None:
    """The folder appears by one rename; whoever is second keeps the first one's."""
    work: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".work-", dir=folder.parent))
        index.save(work)
        (work / "index.json").write_text(json.dumps(said, indent=1, sort_keys=True))
        try:
            os.rename(work, folder)  # noqa: PTH104 - Path.rename replaces files, we want the error
        except OSError:
            if not (folder / "index.json").is_file():
                raise
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="cache",
            value=str(folder.parent),
            remedy="choose a writable folder with room for the corpus",
        ) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
