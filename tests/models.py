"""The real model for tests marked ``model``: prepared once, found again by every later run.

``GATEKEEPER_TEST_CACHE`` names the cache; default ``.cache`` in the repository.
"""

from __future__ import annotations

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

    try:
        return prepare(SMOLLM2, model_cache(), print)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
