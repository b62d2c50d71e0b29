"""llama.cpp's own server for tests marked ``model``: its model files, and the server in a process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from models import model_cache

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parent / "llama_server.py"


@pytest.fixture(scope="session")
def gguf() -> Path:
    """SmolLM2-135M-Instruct as llama.cpp reads it, fetched the first time."""
    pytest.importorskip("xllamacpp")
    try:
        return fetched()
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def fetched() -> Path:
    """The same outside a test.

    Raises:
        Unavailable: it is not here and cannot be downloaded.
    """
    from gatekeeper_adapters.engines.reference.sources import SMOLLM2, fetch, parse_source

    source = parse_source(SMOLLM2)
    path = model_cache() / "gguf" / Path(str(source.path)).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            shutil.move(fetch(source, Path(folder), print), path)
    return path


def rewritten(source: Path, path: Path, *, layers: int | None = None, whole: bool = True) -> Path:
    """A GGUF written anew, once: its first ``layers``, and where ``whole`` in float32.

    Dequantised, the weights are those that the reference engine loads from the same file.
    """
    import gguf as library
    import numpy as np

    if path.is_file():
        return path
    reader = library.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    half = path.with_suffix(".part")
    writer = library.GGUFWriter(half, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kinds, value = field.types, field.contents()
        if layers is not None and field.name == f"{architecture}.block_count":
            value = layers
        if whole and field.name == "general.file_type":
            value = 0  # all of it float32
        array = kinds[0] == library.GGUFValueType.ARRAY
        writer.add_key_value(field.name, value, kinds[0], sub_type=kinds[-1] if array else None)
    for tensor in reader.tensors:
        block = tensor.name.split(".")[1] if tensor.name.startswith("blk.") else "0"
        if layers is not None and int(block) >= layers:
            continue
        if whole:
            values = library.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half.rename(path)
    return path


@contextmanager
def llama(gguf: Path, how: str, *more: str) -> Iterator[str]:
    """Serve until the block ends; ``how`` and ``more`` are those of ``llama_server.py``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(gguf), str(port), how, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.endswith(str(port)), f"llama.cpp did not start: {line}"
        yield line
    finally:
        process.kill()
        process.communicate()
