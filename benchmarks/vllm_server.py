"""vLLM's own server on this processor: installed apart, started with a bound, always stopped.

vLLM pins libraries that gatekeeper has in other versions, so it lives in a virtual environment of its
own under ``.cache/vllm``. ``vllm_requirements.txt`` names every package with its version and says which
ones are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from gatekeeper_adapters.engines.openai_http.wire import counters
from own_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gatekeeper.protocols import DraftCounters

__all__ = ["FOLDER", "Serving", "environment", "serving"]

HERE = Path(__file__).resolve().parent
REQUIREMENTS, REPAIR = HERE / "vllm_requirements.txt", HERE / "vllm_repair.py"
FOLDER = HERE.parent / ".cache" / "vllm"

START_S = 1200.0
"""A start takes 2 to 4 minutes on two free cores, most of it imports; more on busy ones."""

STOP_S = 60.0

CONTEXT, SEQUENCES = 2048, 4
"""Room for every prompt of the workloads; the gate has at most two requests in flight."""


@dataclass(frozen=True)
class Serving:
    """A server that answers at ``url``; ``start_s`` seconds passed until it did."""

    url: str
    start_s: float

    def drafts(self) -> DraftCounters | None:
        """Totals of ``vllm:spec_decode_*`` so far; None where speculation is not configured."""
        return counters(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def version(self) -> str:
        """Version that the server says it has."""
        return str(httpx.get(f"{self.url}/version", timeout=30).json()["version"])


def environment(folder: Path = FOLDER, requirements: Path = REQUIREMENTS) -> Path:
    """Return the Python of vLLM's environment; installs it the first time, about 3 GB.

    An interrupted installation goes on where it stopped; one of other versions is made anew.

    Raises:
        subprocess.CalledProcessError: the installer failed; its own words are above.
    """
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    begun, done, venv = folder / "begun", folder / "installed", folder / "venv"
    python = venv / "bin" / "python"
    if _text(done) == wanted and python.exists():
        return python
    if _text(begun) != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)  # noqa: S603 - our own interpreter
        begun.write_text(wanted)
    # torch's builds need other libraries on other machines; all else is what the list says
    torch = next(
        line for line in requirements.read_text().splitlines() if line.startswith("torch==")
    )
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    plain = ["--no-compile", "--progress-bar", "off", "--disable-pip-version-check"]
    for packages in ([torch], ["--no-deps", "--requirement", str(requirements)]):
        subprocess.run([*pip, *plain, *packages], check=True)  # noqa: S603 - the ordinary installer
    done.write_text(wanted)
    return python


@contextmanager
def serving(
    model: Path,
    *,
    dtype: str,
    log: Path,
    speculative: Mapping[str, object] | None = None,
    repaired: bool = False,
) -> Iterator[Serving]:
    """Serve ``model`` as ``target`` on a free loopback port until the block ends.

    ``speculative`` is vLLM's own ``--speculative-config``; ``log`` receives all that it prints;
    ``repaired`` adds the plugin ``vllm_repair``.

    Raises:
        RuntimeError: it ended before it answered; the end of its log is in the message.
        TimeoutError: it did not answer within ``START_S`` seconds.
    """
    python = environment()
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "target", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", dtype, "--enforce-eager", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-seqs", str(SEQUENCES)]
    if speculative is not None:
        command += ["--speculative-config", json.dumps(dict(speculative))]
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as out,
        subprocess.Popen(  # noqa: S603 - the server that is measured
            command,
            env=_variables(python, _plugin() if repaired else None),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its engine is a process of its own, and has to end with it
        ) as process,
    ):
        try:
            _wait(url, process, log, start + START_S)
            yield Serving(url, round(time.monotonic() - start, 1))
        finally:
            _stop(process)


def _plugin(folder: Path = FOLDER / "plugin") -> Path:
    """A folder that Python takes for an installed package with the plugin's entry point."""
    told = folder / "vllm_repair-1.dist-info"
    told.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPAIR, folder)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-repair\nVersion: 1\n")
    (told / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nvllm_repair = vllm_repair:register\n"
    )
    return folder


def _variables(python: Path, plugin: Path | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GATEKEEPER_", "PYTHON"))}
    kept |= {} if plugin is None else {"PYTHONPATH": str(plugin)}
    return kept | {
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two servers are tied to the same core
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 4 sequences of 2,048 tokens need a third of it
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(FOLDER / "cache"),
        "VLLM_CONFIG_ROOT": str(FOLDER / "config"),
    }


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while time.monotonic() < deadline:
        if (status := process.poll()) is not None:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise RuntimeError(f"vLLM ended with status {status}; its log ends:\n{end}")
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        time.sleep(1)
    raise TimeoutError(f"vLLM does not answer after {START_S:.0f} s; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then end it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        os.killpg(process.pid, signal.SIGKILL)


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
