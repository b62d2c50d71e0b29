"""Marks in time: CUDA events on a GPU, the wall clock on a CPU."""

from __future__ import annotations

import time
from typing import Any

import torch

__all__ = ["Stopwatch"]


class Stopwatch:
    """Collects marks; ``laps`` gives the seconds between them, after waiting for the device."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """Note this moment on the device's own clock."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def laps(self) -> list[float]:
        """Seconds between consecutive marks."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._cuda:
            self._marks[-1].synchronize()
            return [before.elapsed_time(after) / 1e3 for before, after in pairs]
        return [after - before for before, after in pairs]
