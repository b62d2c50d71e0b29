"""A window of a rollout: the tasks of one step that are judged together, once, when they are enough.

When a window is full depends on how many tasks came in and when, never on what they show, so that its
one interval means what it says. The next window holds fresh tasks only. Nothing here loads numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.arms import CANDIDATE, ORDINARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gatekeeper.core.ramp import Rollout

__all__ = ["MIN_SESSIONS", "ArmTask", "Side", "counted", "missing"]

MIN_SESSIONS = 30
"""Fewest sessions on either side: with fewer, intervals clustered by session are known to be too
narrow (Cameron and Miller 2015, section VI)."""


@dataclass(frozen=True)
class ArmTask:
    """One complete task of a route under a rollout.

    ``wall_s`` and ``success`` are None where nobody told them. ``arrived_at``: seconds since 1970 by
    the database's clock.
    """

    task: str
    arm: str
    session: str
    wall_s: float | None
    success: bool | None
    arrived_at: float


@dataclass(frozen=True)
class Side:
    """How much there is of one side of a comparison; ``newest_at`` None where there is nothing."""

    tasks: int
    sessions: int
    judged: int
    judged_sessions: int
    newest_at: float | None


def counted(tasks: Iterable[ArmTask]) -> dict[str, Side]:
    """Count the candidate's tasks and the ordinary ones: ``candidate`` and ``ordinary``.

    Tasks of any other arm are on neither side. A task without a wall time is no task of a side, one
    without a success is not among its ``judged``.
    """
    sides: dict[str, list[ArmTask]] = {"candidate": [], "ordinary": []}
    for task in tasks:
        if task.arm == CANDIDATE:
            sides["candidate"].append(task)
        elif task.arm in ORDINARY:
            sides["ordinary"].append(task)
    return {name: _side(found) for name, found in sides.items()}


def _side(tasks: Sequence[ArmTask]) -> Side:
    timed = [task for task in tasks if task.wall_s is not None]
    judged = [task for task in tasks if task.success is not None]
    return Side(
        tasks=len(timed),
        sessions=len({task.session for task in timed}),
        judged=len(judged),
        judged_sessions=len({task.session for task in judged}),
        newest_at=max((task.arrived_at for task in timed), default=None),
    )


def missing(
    sides: dict[str, Side], rollout: Rollout, *, since: float, success_needed: bool
) -> tuple[str, ...]:
    """What a window that began at ``since`` lacks, in words; nothing where it is full."""
    needed = []
    for name, side in sides.items():
        needed += _short(f"{name} tasks", side.tasks, rollout.min_tasks)
        needed += _short(f"sessions of {name} tasks", side.sessions, MIN_SESSIONS)
        if success_needed:
            needed += _short(f"{name} tasks with an outcome", side.judged, rollout.min_tasks)
            needed += _short(
                f"sessions of {name} tasks with an outcome", side.judged_sessions, MIN_SESSIONS
            )
        # the tasks' own time: a route without traffic does not grow older
        over = 0.0 if side.newest_at is None else side.newest_at - since
        if over < rollout.min_step_s:
            needed.append(
                f"{name} tasks over {rollout.min_step_s:g} s: so far they came in over {over:.0f} s"
            )
    return tuple(needed)


def _short(what: str, found: int, least: int) -> list[str]:
    return [f"{least} {what}: there are {found}"] if found < least else []
