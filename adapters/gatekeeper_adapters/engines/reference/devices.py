"""Where tensors lie. Between devices they go through ``Transfers.moved``, which keeps the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["Transfers", "are_one", "lies_on", "refuse_absent", "synchronise"]


def refuse_absent(device: str, field: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        Unavailable: it is not there.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Unavailable(
            "is not there", field=field, value=device, remedy="run a worker on a GPU machine"
        )


def are_one(device: str, other: str) -> bool:
    """Whether two names are of one device, as far as names tell: without a number it is the first."""
    one, two = torch.device(device), torch.device(other)
    return one.type == two.type and (one.index or 0) == (two.index or 0)


def lies_on(tensor: Tensor, device: str) -> bool:
    """Whether a tensor is on a device; one without a number is any of its kind."""
    wanted = torch.device(device)
    return tensor.device.type == wanted.type and wanted.index in {None, tensor.device.index}


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what was asked of it; a processor always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Transfers:
    """Moves tensors and adds up how long that took, in seconds of ``clock``.

    The device a tensor comes from is waited for first: what still runs there is drafting or
    verification and counts as such. Then the copy and the wait for its arrival count as transfer.
    ``copy``, ``wait`` and ``here`` are arguments, because a machine with one device never moves.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        copy: Callable[[Tensor, str], Tensor] = lambda tensor, device: tensor.to(device),
        wait: Callable[[torch.device], None] = synchronise,
        here: Callable[[Tensor, str], bool] = lies_on,
    ) -> None:
        self._clock, self._copy, self._wait, self._here = clock, copy, wait, here
        self._seconds = 0.0
        self.bytes = 0

    def moved(self, tensor: Tensor, device: str) -> Tensor:
        """The tensor on ``device``; itself where it lies there already."""
        if self._here(tensor, device):
            return tensor
        self._wait(tensor.device)
        start = self._clock()
        out = self._copy(tensor, device)
        self._wait(out.device)
        self._seconds += self._clock() - start
        self.bytes += tensor.numel() * tensor.element_size()
        return out

    def moved_rows(self, rows: Sequence[Tensor], device: str) -> list[Tensor]:
        """Rows of one length and dtype, moved together: each move waits for two devices."""
        if not rows or self._here(rows[0], device):
            return list(rows)
        return list(self.moved(torch.stack(list(rows)), device).unbind())

    def take(self) -> float:
        """Seconds spent moving since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
