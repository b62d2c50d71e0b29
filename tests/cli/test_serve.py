from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Run = Callable[..., Any]


class Server:
    """``gatekeeper serve`` as a process."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = home
        self.process = serve(home, self.port)

    def ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        pytest.fail(f"not ready, status {self.process.poll()}")


def serve(home: Path, port: int) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GATEKEEPER_")}
    command = [sys.executable, "-m", "gatekeeper", "serve", "--home", str(home)]
    return subprocess.Popen(
        [*command, "--port", str(port)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("serve") / "deep" / "home")
    try:
        one.ready()
        yield one
    finally:
        one.process.terminate()
        _, errors = one.process.communicate(timeout=30)
    assert one.process.returncode == 0, errors
    assert "Traceback" not in errors


def refused(home: Path, port: int) -> str:
    process = serve(home, port)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(errors.strip().splitlines()) == 1, errors
    return errors


def test_a_busy_port_is_named_before_anything_is_written(server: Server, tmp_path: Path) -> None:
    errors = refused(tmp_path / "other", server.port)
    assert f"port={server.port}: cannot be listened on" in errors
    assert "--port" in errors
    assert not (tmp_path / "other").exists()


def test_a_second_server_on_one_home_is_refused(server: Server) -> None:
    errors = refused(server.home, 0)
    assert f"already served by process {server.process.pid}" in errors
    assert "PostgreSQL" in errors
    assert httpx.get(f"{server.url}/readyz").status_code == 200


def test_an_unusable_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    errors = refused(tmp_path / "file" / "home", 0)
    assert "home=" in errors
    assert "--home" in errors


def test_token_create_beside_a_running_server(server: Server, gatekeeper: Run) -> None:
    made = gatekeeper("token", "create", "--role", "admin", "--home", server.home, "--json")
    assert made.status == 0
    secret = made.json["token"]
    listed = gatekeeper("policy", "list", "--json", URL=server.url, TOKEN=secret)
    assert {"demo", "ci", "production"} <= {p["name"] for p in listed.json["items"]}
    tokens = gatekeeper("token", "list", "--home", server.home, "--json").json["items"]
    assert made.json["id"] in {t["id"] for t in tokens}
    assert gatekeeper("token", "revoke", made.json["id"], "--home", server.home).status == 0
    again = gatekeeper("policy", "list", URL=server.url, TOKEN=secret)
    assert again.status == 2
    assert "token create" in again.err


def test_a_server_told_to_stop_ends_what_it_has_begun(tmp_path: Path, gatekeeper: Run) -> None:
    server = Server(tmp_path / "home")
    try:
        server.ready()
        made = gatekeeper("token", "create", "--role", "ingester", "--home", server.home)
        reader = gatekeeper("token", "create", "--role", "reader", "--home", server.home)
        body = json.dumps({"resourceSpans": []}).encode()
        head = (
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {made.out.strip()}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sender:
            sender.sendall(head.encode() + body[:5])
            time.sleep(0.5)  # it has begun to read
            stream = follow(server, reader.out.strip())
            server.process.terminate()
            began = time.monotonic()
            while stream.recv(4096):  # ends by itself, though a request is still in flight
                assert time.monotonic() - began < 15
            stream.close()
            deadline = time.monotonic() + 60
            while accepts(server.port):  # nothing new comes in
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert server.process.poll() is None
            sender.sendall(body[5:])
            answer = sender.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        _, errors = server.process.communicate(timeout=60)
        assert server.process.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        server.process.kill()
        server.process.communicate()


def follow(server: Server, token: str) -> socket.socket:
    """Open the stream of decisions; it has begun."""
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=15)
    head = f"GET /v1/decisions/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    stream.sendall(f"{head}Connection: close\r\n\r\n".encode())
    assert stream.recv(4096).startswith(b"HTTP/1.1 200 ")
    return stream


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
