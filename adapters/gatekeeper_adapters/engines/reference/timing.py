"""Marks in time: CUDA events on a GPU, the wall clock on a CPU; and who bears the time between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gatekeeper_adapters.engines.reference.devices import Transfers
    from gatekeeper_adapters.engines.reference.scheduler import Work

__all__ = ["Stopwatch", "share"]


class Stopwatch:
    """Collects marks; ``laps`` gives the seconds between them, after waiting for the device.

    What ``transfers`` moved between devices meanwhile is no part of a lap: it is ``moved``, together
    with what was moved since the watch before. ``clock`` is read on a CPU. Benchmarks on a shared
    machine put ``time.process_time`` there.
    """

    clock: ClassVar[Callable[[], float]] = staticmethod(time.perf_counter)

    def __init__(self, device: str, transfers: Transfers | None = None) -> None:
        self._cuda = device.startswith("cuda")
        self._transfers = transfers
        self._marks: list[Any] = []
        self._moved: list[float] = []
        self.mark()

    @property
    def moved(self) -> float:
        """Seconds spent moving tensors between devices up to the last mark."""
        return sum(self._moved)

    def mark(self) -> None:
        """Note this moment on the device's own clock."""
        self._moved.append(self._transfers.take() if self._transfers else 0.0)
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(type(self).clock())

    def laps(self) -> list[float]:
        """Seconds between consecutive marks, moves left out."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._cuda:
            self._marks[-1].synchronize()
            found = [before.elapsed_time(after) / 1e3 for before, after in pairs]
        else:
            found = [after - before for before, after in pairs]
        # two clocks on a GPU: a lap that was all move could come out below zero
        return [max(0.0, lap - moved) for lap, moved in zip(found, self._moved[1:], strict=True)]


def share(works: Iterable[Work], watch: Stopwatch) -> None:
    """Each sequence of a step bears an equal part of its draft, pack, verify and judge time.

    Moves between devices count with packing as transfer.
    """
    everyone = [work.sequence.spent for work in works]
    draft_s, transfer_s, verify_s, correction_s = (lap / len(everyone) for lap in watch.laps())
    for spent in everyone:
        spent[0] += draft_s
        spent[1] += verify_s
        spent[2] += correction_s
        spent[3] += transfer_s + watch.moved / len(everyone)
