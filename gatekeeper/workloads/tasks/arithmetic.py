"""Tasks of kind ``arithmetic``: complete a sum in the grammar ``NUMBER + NUMBER = NUMBER``."""

from __future__ import annotations

import re

from gatekeeper.workloads.chat import chat
from gatekeeper.workloads.tasks.task import Task

__all__ = ["build"]

_SUMS = (
    *((4, 3), (6, 2), (5, 5), (9, 1), (2, 7), (1, 8), (3, 3), (7, 2), (5, 4), (2, 2)),
    *((1, 6), (8, 2), (3, 4), (6, 6), (4, 5), (7, 1), (2, 5), (9, 2), (6, 3), (1, 1)),
    *((10, 4), (12, 3), (20, 5), (10, 10), (11, 2), (15, 1), (30, 4), (13, 5), (8, 8), (7, 5)),
)
_GRAMMAR = re.compile(r"([0-9]+) \+ ([0-9]+) = ([0-9]+)")


def build() -> tuple[Task, ...]:
    """Return 30 tasks, each after one worked example."""
    found = []
    for number, (left, right) in enumerate(_SUMS, start=1):
        asked = f"{left} + {right}"
        found.append(
            Task(
                id=f"arithmetic-{number:02d}",
                kind="arithmetic",
                text=chat([("user", "2 + 3"), ("assistant", "2 + 3 = 5"), ("user", asked)]),
                answer=f"{asked} = {left + right}",
                verify=_Sum(left, right),
            )
        )
    return tuple(found)


class _Sum:
    """Accept the asked sum, written in the grammar and right; nothing before or after it."""

    def __init__(self, left: int, right: int) -> None:
        self._asked = (str(left), str(right))
        self._result = str(left + right)

    def __call__(self, text: str) -> bool:
        found = _GRAMMAR.fullmatch(text.strip())
        return found is not None and found.groups() == (*self._asked, self._result)
