"""llama.cpp's own server for tests marked ``model``: its model file, and the server in a process."""

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
    from gatekeeper_adapters.engines.reference.sources import SMOLLM2, fetch, parse_source

    pytest.importorskip("xllamacpp")
    source = parse_source(SMOLLM2)
    path = model_cache() / "gguf" / Path(str(source.path)).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            try:
                shutil.move(fetch(source, Path(folder), print), path)
            except Unavailable as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(str(error))
    return path


@contextmanager
def llama(gguf: Path, how: str) -> Iterator[str]:
    """Serve until the block ends; ``how`` is that of ``llama_server.py``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(gguf), str(port), how],
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
