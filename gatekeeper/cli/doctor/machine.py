"""What this machine itself offers: the home and its space, the evidence folder, the engines."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gatekeeper import plugins
from gatekeeper.cli.doctor.check import FAIL, OK, WARN, Check, command, failed
from gatekeeper.errors import MissingExtra

if TYPE_CHECKING:
    from gatekeeper.config import Settings

__all__ = ["another_home", "engines", "folder", "home"]

_GIB = 2**30
_LEAST, _ENOUGH = 0.2 * _GIB, 2 * _GIB
"""Bytes: below the first not even evidence fits; the second holds a small model and its cache."""


def home(settings: Settings) -> Check:
    """Whether the home is there, is a folder, can be written, and has space."""
    return folder("home", settings.home, created_by=command("serve", settings.home))


def another_home() -> Path:
    """Folder that a user can nearly always write: what advice names where the home is broken."""
    return Path.home() / "gatekeeper"


def folder(name: str, path: Path, *, created_by: str) -> Check:
    """Look at one folder; ``created_by`` is the command that makes it where it is missing."""
    elsewhere = command("serve", another_home())
    if name == "evidence":
        elsewhere = f"export GATEKEEPER_EVIDENCE={shlex.quote(str(another_home() / name))}"
    try:
        if path.is_dir():
            return _existing(name, path)
        if path.exists():
            return Check(name, FAIL, f"{path} is not a folder", elsewhere)
        parent = next(p for p in path.parents if p.exists())
    except OSError as error:  # a loop of links, a path too long, a mount that went away
        reason = (error.strerror or str(error)).lower()
        return Check(name, FAIL, f"{path} cannot be looked at ({reason})", elsewhere)
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return Check(name, WARN, f"{path} is not there yet", created_by)
    return Check(name, FAIL, f"{path} cannot be made under {parent}", elsewhere)


def _existing(name: str, path: Path) -> Check:
    quoted = shlex.quote(str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Check(name, FAIL, f"{path} cannot be read and written", f"chmod u+rwx {quoted}")
    free = shutil.disk_usage(path).free
    seen = f"{path}, {free / _GIB:.1f} GiB free"
    if free >= _ENOUGH:
        return Check(name, OK, seen)
    return Check(name, FAIL if free < _LEAST else WARN, seen, f"free some space: df -h {quoted}")


def engines() -> list[Check]:
    """Look at each engine's entry point: its version, or what to install for it."""
    checks = []
    for name in plugins.names("gatekeeper.engines"):
        title = f"engine {name}"
        try:
            provider = plugins.load("gatekeeper.engines", name)
            checks.append(Check(title, OK, f"version {provider.version()}"))
        except MissingExtra as error:
            # A control plane needs no engine; only workers do.
            checks.append(Check(title, WARN, failed(title, error).seen, error.remedy))
        except ImportError as error:
            seen = f"its installation is broken ({error})"
            remedy = "pip install --force-reinstall --no-deps gatekeeper"
            checks.append(Check(title, FAIL, seen, remedy))
    if not checks:
        checks.append(
            Check("engines", FAIL, "no entry point is installed", "pip install gatekeeper[torch]")
        )
    return checks
