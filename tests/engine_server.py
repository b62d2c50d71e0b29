"""The engine's HTTP server on a loopback port, in this process: the whole stack but the command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from gatekeeper_adapters.engines.reference.server.app import create_app
from gatekeeper_adapters.engines.reference.server.chat_template import ChatTemplate
from gatekeeper_adapters.engines.reference.server.service import Card, Service
from gatekeeper_adapters.engines.reference.server.wire import Defaults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HTTP = httpx.Client(timeout=30)
"""One client for all: making one takes longer than most requests."""


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """Serve until the block ends; the root of the server's address."""
    config = uvicorn.Config(create_app(service), log_config=None, timeout_graceful_shutdown=5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def serving_model(
    folder: Path,
    *proposers: str,
    gamma: int = 4,
    slots: int = 4,
    waiting: int = 16,
    context: int = 512,
    **more: Any,
) -> Iterator[tuple[str, Service]]:
    """Load a model as the command does, and serve it."""
    from gatekeeper_adapters.engines.reference.loader import Options
    from gatekeeper_adapters.engines.reference.server import setup

    chosen = setup.of_target(
        f"file:{folder}", proposers, gamma=gamma, dtype="float32", device="cpu"
    )
    options = Options(max_context=context, prefix_cache_bytes=2**20)
    engine = setup.open_engine(chosen, options, max_batch=slots, note=None)
    with closing(engine):
        service = setup.service_of(chosen, engine, waiting=waiting, otlp=None)
        for name, value in more.items():
            setattr(service, name, value)
        with serving(service) as url:
            yield url, service


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``gatekeeper engine serve`` as a process, and the root of its address."""
    command = [sys.executable, "-m", "gatekeeper", "engine", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        yield process, json.loads(text)["url"]
    finally:
        process.kill()
        process.communicate()


def service_around(engine: Any, *, waiting: int = 4, gamma: int = 0, **more: Any) -> Service:
    """A service around any engine, conversations as ChatML."""
    return Service(
        engine,
        Card("fake", ("other",), "fp_test", {}, {}),
        ChatTemplate(None, {}),
        Defaults(gamma, engine.info.end_tokens, engine.info.max_context),
        waiting,
        **more,
    )


def gauge(url: str, name: str) -> float:
    """A value of ``/metrics``."""
    for line in HTTP.get(f"{url}/metrics").text.splitlines():
        if line.startswith((f"gatekeeper:{name} ", f"gatekeeper:{name}{{")):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{name} is not shown")


def wait_until(good: Any, *, seconds: float = 20.0) -> None:
    """Wait for a condition that has to come."""
    deadline = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
