"""The command that runs a gate, and what to do where it is refused: for a terminal and a report."""

from __future__ import annotations

import shlex

from gatekeeper.core.running_pair import SERVER_GATES

__all__ = [
    "HOW_TO_PRICE",
    "OUTCOME_REFUSED",
    "files_route",
    "outcome_elsewhere",
    "run_command",
    "runs_here",
]

HOW_TO_PRICE = "How tasks get there and are priced: docs/how-to/price-your-agents-tasks.md"

OUTCOME_REFUSED = "outcome cannot be measured on servers that already run"

_SUFFIX = "-files"
"""Ends the route of the same two servers with their model files declared (``--target``)."""

_REGISTERED = "-registered"
"""Ends the route of the pair registered as files, which no server of theirs takes part in."""


def runs_here(gate: str, *, on_servers: bool) -> bool:
    """Whether a route's gate can be run: servers that already run cannot be put through every one."""
    return not on_servers or gate in SERVER_GATES


def run_command(route: str, gate: str) -> str:
    """Run one gate of a route."""
    return f"gatekeeper gate run {shlex.quote(route)} {gate}"


def outcome_elsewhere(route: str) -> tuple[str, str]:
    """How outcome is settled for two servers: pairs of one's own, or the pair's files."""
    other = shlex.quote(_another(route.removesuffix(_SUFFIX), _REGISTERED))
    return (
        "pairs of your own tasks: gatekeeper outcome check PAIRS.csv",
        (
            "to have it measured here, register the pair's files: gatekeeper artifact register "
            f"pair.yaml, gatekeeper route set {other} --slice SLICE --artifact DIGEST --policy POLICY, "
            f"gatekeeper gate run {other} --wait"
        ),
    )


def files_route(route: str) -> str:
    """Name of another route for the same two servers with their files declared (``--target``)."""
    return _another(route, _SUFFIX)


def _another(route: str, suffix: str) -> str:
    """Name a route after another one; the suffix is never doubled."""
    return f"{route}-2" if route.endswith(suffix) else f"{route}{suffix}"
