"""The wheel in an empty environment, started from an empty folder."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]


def run(*args: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GATEKEEPER_", "PYTHON"))}
    done = subprocess.run(
        [str(a) for a in args], cwd=cwd, capture_output=True, text=True, check=False, env=env
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the built wheel and its required dependencies only."""
    base = tmp_path_factory.mktemp("package")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", base / "dist", cwd=ROOT)
    (wheel,) = (base / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", base / "venv", cwd=base)
    constraints = ROOT / "constraints.txt"
    pip = [base / "venv/bin/python", "-m", "pip", "install", "-q", "--no-compile"]
    run(*pip, "-c", constraints, wheel, cwd=base)
    return base / "venv/bin"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def server(installed: Path, empty: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = empty / "home"
    process = subprocess.Popen(
        [installed / "gatekeeper", "serve", "--home", home, "--port", str(port)], cwd=empty
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.3)
        assert process.poll() is None
        yield url
    finally:
        process.terminate()
        process.wait(20)


def test_the_wheel_needs_no_torch(installed: Path, empty: Path) -> None:
    done = run(installed / "python", "-c", "import torch", cwd=empty, check=False)
    assert "ModuleNotFoundError" in done.stderr


def test_serve_becomes_ready_from_an_empty_folder(
    server: str, installed: Path, empty: Path
) -> None:
    assert httpx.get(f"{server}/readyz", timeout=5).status_code == 200
    token = json.loads(
        run(
            *(installed / "gatekeeper", "token", "create", "--role", "admin", "--json"),
            *("--home", empty / "home"),
            cwd=empty,
        ).stdout
    )["token"]
    headers = {"Authorization": f"Bearer {token}"}
    policies = httpx.get(f"{server}/v1/policies", headers=headers, timeout=5).json()
    assert {"demo", "ci", "production"} <= {p["name"] for p in policies["items"]}


def test_profile_and_claims_work_without_a_server(installed: Path, empty: Path) -> None:
    trace = ROOT / "gatekeeper/examples/essay-trace.json"
    profile = json.loads(
        run(installed / "gatekeeper", "profile", trace, "--json", cwd=empty).stdout
    )
    assert profile["tasks"][0]["saving_s"]["value"] == pytest.approx(0.6)
    assert run(installed / "gatekeeper", "claims", "verify", "--json", cwd=empty).returncode == 0


def test_a_missing_extra_names_its_install_line(installed: Path, empty: Path) -> None:
    done = run(installed / "gatekeeper", "worker", "--once", cwd=empty, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
