"""A real Chromium for tests marked ``browser``; without one they are skipped, in CI they fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

EXECUTABLE = Path("/usr/bin/chromium")
_INSTALL = "apt-get install -y --no-install-recommends chromium fonts-dejavu-core"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium without a network of its own."""
    if not EXECUTABLE.exists():
        if os.environ.get("CI"):
            pytest.fail(f"Chromium is missing: {_INSTALL}")
        pytest.skip(f"Chromium is missing: {_INSTALL}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=list(_FLAGS))
        yield started
        started.close()
