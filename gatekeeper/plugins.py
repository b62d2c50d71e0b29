"""Engines, trace formats, executors and commands that installed packages offer.

Everything outside the pure core arrives through entry points, so that the control plane
imports no adapter and no model library. Reading the list of names imports nothing.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gatekeeper.errors import InputError, MissingExtra, NotFound

__all__ = ["GROUPS", "load", "load_all", "names"]

GROUPS = ("gatekeeper.engines", "gatekeeper.traces", "gatekeeper.executors", "gatekeeper.commands")
"""The entry-point groups that gatekeeper reads."""

_EXTRA_OF = {
    "torch": "torch",
    "transformers": "torch",
    "safetensors": "torch",
    "gguf": "torch",
}
"""Importable module to the extra of this project that installs it."""


@cache
def _found(group: str) -> dict[str, EntryPoint]:
    if group not in GROUPS:
        raise InputError(
            "is not a plugin group",
            field="group",
            value=group,
            remedy=f"use one of {', '.join(GROUPS)}",
        )
    return {point.name: point for point in sorted(entry_points(group=group), key=str)}


def names(group: str) -> tuple[str, ...]:
    """Names offered in a group, sorted; imports none of them."""
    return tuple(sorted(_found(group)))


def load(group: str, name: str) -> Any:  # noqa: ANN401 - each group has its own protocol
    """Import and return one plugin.

    Raises:
        NotFound: nothing of that name is installed.
        MissingExtra: it is installed, but a library it needs is not; the remedy is the
            install line.
    """
    point = _found(group).get(name)
    if point is None:
        raise NotFound(
            f"no plugin of group {group} has this name",
            field=group.removeprefix("gatekeeper.").removesuffix("s"),
            value=name,
            remedy=f"installed: {', '.join(names(group)) or 'none'}",
        )
    try:
        return point.load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"gatekeeper", "gatekeeper_adapters"}:
            raise  # a broken installation, not a missing extra: show the real traceback
        extra = _EXTRA_OF.get(missing)
        install = f"gatekeeper[{extra}]" if extra else missing
        raise MissingExtra(
            f"needs the module {missing!r}, which is not installed",
            field=group.removeprefix("gatekeeper.").removesuffix("s"),
            value=name,
            remedy=f"pip install {install}",
        ) from error


def load_all(group: str) -> dict[str, Any]:
    """Import every plugin of a group, by name in sorted order."""
    return {name: load(group, name) for name in names(group)}
