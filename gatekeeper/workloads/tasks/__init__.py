"""Tasks with verifiers: what the outcome gate decodes and judges by program.

Four kinds, short prompts and short answers, the project's own content, built deterministically.
They are easy enough for a small model to solve often and hard enough to fail at times, so that a
loss shows. The suite's digest names its exact content in evidence.
"""

from __future__ import annotations

import hashlib

from gatekeeper.workloads.tasks import arithmetic, copying, extraction, tools
from gatekeeper.workloads.tasks.task import Task

__all__ = ["KINDS", "Task", "digest", "suite"]

KINDS = ("copy", "extract", "arithmetic", "tool")
"""Kinds of task, in the order of the suite."""


def suite() -> tuple[Task, ...]:
    """Return every task, kind by kind, ids unique."""
    modules = (copying, extraction, arithmetic, tools)
    return tuple(task for module in modules for task in module.build())


def digest(tasks: tuple[Task, ...] | None = None) -> str:
    """Return the sha256 over ids, prompts and answers: changes whenever the content does."""
    state = hashlib.sha256()
    for task in suite() if tasks is None else tasks:
        state.update(f"{task.id}\0{task.text}\0{task.answer}\0".encode())
    return state.hexdigest()
