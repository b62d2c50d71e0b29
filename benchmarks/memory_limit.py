"""A limit on a process's memory that the kernel keeps: a control group of its own.

Where the machine's control groups may not be written, there is none, and whoever measures has to
watch. Page cache counts too, and is taken back before anything is killed.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ControlGroup", "control_group"]

ROOT = Path("/sys/fs/cgroup")
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class ControlGroup:
    """A group with a limit; ``version`` is that of the kernel's interface, 1 or 2."""

    folder: Path
    version: int

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that first enters the group, and so is charged from its first page."""
        script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", script, str(self.folder), *command]

    @property
    def killed(self) -> int:
        """How often the kernel killed a process of the group."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"  # noqa: PLR2004
        lines = (self.folder / name).read_text().splitlines()
        counts = {key: int(value) for key, value in (line.split() for line in lines)}
        return counts["oom_kill"]


@contextmanager
def control_group(limit_bytes: int) -> Iterator[ControlGroup | None]:
    """Make a group for as long as the block lasts; None where this machine lets us make none."""
    group = _made(f"gatekeeper-{os.getpid()}", limit_bytes)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group.folder)


def _made(name: str, limit_bytes: int) -> ControlGroup | None:
    for folder, version, limit in (
        (ROOT / "memory" / name, 1, "memory.limit_in_bytes"),
        (ROOT / name, 2, "memory.max"),
    ):
        if not (folder.parent / "cgroup.procs").exists():
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
        except OSError:  # the memory controller is not given to groups here
            _remove(folder)
            continue
        return ControlGroup(folder, version)
    return None


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            folder.rmdir()
        except OSError:  # a process of the group has not quite ended
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
