"""All that a run of training changes, to a file and back; and stopping between two steps."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch

from gatekeeper.errors import Conflict

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

__all__ = ["Checkpoint", "Learner", "Point", "Run", "StopAsked"]


@dataclass(frozen=True)
class Point:
    """One point of the curve: mean loss (nats) since the last one, first-position acceptance."""

    step: int
    loss: float | None
    acceptance: float | None


@dataclass
class Run:
    """What a run has done so far: CPU seconds of all its sittings, and its curve.

    ``loss`` is the sum over the steps since the last point.
    """

    step: int = 0
    seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)
    loss: float = 0.0


@dataclass(frozen=True)
class Learner:
    """What changes from step to step."""

    network: torch.nn.Module
    optimiser: torch.optim.Optimizer
    generator: torch.Generator


@dataclass(frozen=True)
class Checkpoint:
    """A file; ``mark`` names what is trained on what and how."""

    path: Path
    mark: str

    def steps(self) -> int | None:
        """Steps of the whole run that it belongs to; None where there is no file.

        Raises:
            Conflict: it belongs to another run.
        """
        return int(self._read()["steps"]) if self.path.is_file() else None

    def save(self, learner: Learner, run: Run, steps: int) -> None:
        """Write everything by one rename: a kill at any moment leaves the former file or this one."""
        work = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        document = {
            "mark": self.mark,
            "steps": steps,
            "network": learner.network.state_dict(),
            "optimiser": learner.optimiser.state_dict(),
            "generator": learner.generator.get_state(),
            "step": run.step,
            "seconds": run.seconds,
            "loss": run.loss,
            "curve": [astuple(point) for point in run.curve],
        }
        with work.open("wb") as file:
            torch.save(document, file)
            file.flush()
            os.fsync(file.fileno())
        work.replace(self.path)

    def restore(self, learner: Learner) -> Run:
        """Take up the file's state; a fresh run where there is no file.

        Raises:
            Conflict: it belongs to another run.
        """
        if not self.path.is_file():
            return Run()
        document = self._read()
        learner.network.load_state_dict(document["network"])
        learner.optimiser.load_state_dict(document["optimiser"])
        learner.generator.set_state(document["generator"])
        curve = [Point(*values) for values in document["curve"]]
        return Run(document["step"], document["seconds"], curve, document["loss"])

    def _read(self) -> dict[str, Any]:
        document: dict[str, Any] = torch.load(self.path, weights_only=True)
        if document["mark"] != self.mark:
            raise Conflict(
                "belongs to a run with other settings",
                field="checkpoint",
                value=str(self.path),
                remedy="repeat the command that began it, or remove the file",
            )
        return document


class StopAsked:
    """While entered, SIGINT is only noted in ``asked``; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self._former: Any = None

    def __enter__(self) -> Self:
        """Take the signal over, where this thread may."""
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back."""
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
