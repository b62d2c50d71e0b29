"""What this machine offers to an engine: found without importing a model library."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

__all__ = ["cuda_devices", "devices"]

_QUERY_TIMEOUT_S = 20


def devices() -> list[dict[str, Any]]:
    """Return the processor and, where ``nvidia-smi`` lists any, the GPUs of the first kind."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found: list[dict[str, Any]] = [{"kind": "cpu", "count": 1, "memory_bytes": pages}]
    found += cuda_devices(_nvidia_smi())
    return found


def cuda_devices(listing: str) -> list[dict[str, Any]]:
    """Read ``nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits`` (MiB per line)."""
    sizes = [int(line) for line in listing.split() if line.isdigit()]
    if not sizes:
        return []
    return [{"kind": "cuda", "count": len(sizes), "memory_bytes": min(sizes) * 1024 * 1024}]


def _nvidia_smi() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command found on PATH
            [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
