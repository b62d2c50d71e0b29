"""Two running servers, gated by one command through the real control plane and worker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from shipped_policies import shipped_policy

from gatekeeper.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from live import LiveServer


def policy() -> Any:
    """The demo's, small enough for a real model in a test."""
    document = shipped_policy("demo")
    document["name"] = "small"
    document["equivalence"] |= {"tokens_per_request": 12}
    document["equivalence"]["sampled"] |= {"min_tokens": 60, "max_tokens": 8 * 3 * 12}
    document["serving"] |= {
        "concurrency": [1],
        "tokens_per_request": 12,
        "requests_per_block": 1,
        "sweep_blocks": 1,
        "confirm_blocks": 5,
        "max_prompt_tokens": 140,
    }
    return document


@contextmanager
def working(server: LiveServer) -> Iterator[None]:
    """A worker in a process of its own, as in real use: its event loop is its own."""
    command = [sys.executable, "-m", "gatekeeper", "worker", "--poll", "0.2"]
    settings = {"GATEKEEPER_URL": server.url, "GATEKEEPER_TOKEN": server.tokens["worker"]}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            ended = process.poll()
            process.kill()
            process.communicate()
            log.seek(0)
            print(f"worker, status {ended}:\n{log.read()}")  # noqa: T201 - shown where the test fails


def gated(server: LiveServer, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """``gatekeeper gate run`` with a worker beside it; ``arguments`` name route and servers."""
    with server.client("admin") as admin:
        admin.put("/v1/policies/small", json=policy()).raise_for_status()
    monkeypatch.setenv("GATEKEEPER_URL", server.url)
    monkeypatch.setenv("GATEKEEPER_TOKEN", server.tokens["admin"])
    with working(server):
        options = ("--policy", "small", "--slice", "code")
        return CliRunner().invoke(cli, ["gate", "run", *options, *arguments])
