"""Tasks of kind ``copy``: repeat a short line of words and digits."""

from __future__ import annotations

from gatekeeper.workloads.chat import chat
from gatekeeper.workloads.tasks.task import Task, exactly

__all__ = ["build"]

_LINES = (
    "amber kettle 47",
    "seven grey herons",
    "harbour gate 3, berth 12",
    "Mirela Quant, row 19",
    "thin copper wire",
    "0815-2207",
    "plum, fig, quince",
    "north stair, door 6",
    "oat milk and rye",
    "Tovik Sandbar",
    "X7-Q41-B",
    "the loft is locked",
    "94 blue tiles",
    "salt before sugar",
    "Rua do Carmo 31",
    "kiln at 1240 degrees",
    "one map, no compass",
    "pier 9 at 06:45",
    "violet ink, size 8",
    "Anneke Brusz",
    "5519 3302 7",
    "brass hinge, left side",
    "umbrella in the hall",
    "ZK-8806/4",
    "two owls, one mouse",
    "gravel path 250 m",
    "Ostrava via Brno",
    "wet paint until noon",
    "lot 77, crate 15",
    "moth, lamp, moth",
)


def build() -> tuple[Task, ...]:
    """Return 30 tasks; solved by the line itself and nothing else."""
    return tuple(
        Task(
            id=f"copy-{number:02d}",
            kind="copy",
            text=chat(
                [
                    ("user", "Repeat: green door 5"),
                    ("assistant", "green door 5"),
                    ("user", f"Repeat: {line}"),
                ]
            ),
            answer=line,
            verify=exactly(line),
        )
        for number, line in enumerate(_LINES, start=1)
    )
