"""The real model for tests marked ``model``: prepared once, found again by every later run.

``GATEKEEPER_TEST_CACHE`` names the cache; default ``.cache`` in the repository.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gatekeeper.errors import Unavailable


def model_cache() -> Path:
    """Folder handed to providers as ``cache``."""
    named = os.environ.get("GATEKEEPER_TEST_CACHE")
    return Path(named) if named else Path(__file__).parents[1] / ".cache"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct, downloaded and converted the first time."""
    pytest.importorskip("torch")
    from gatekeeper_adapters.engines.reference.convert import prepare
    from gatekeeper_adapters.engines.reference.sources import SMOLLM2

    cache = model_cache()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        # one process converts, for half a minute; the others find what it made
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return prepare(SMOLLM2, cache, print)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
