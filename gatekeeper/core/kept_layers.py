"""Self-speculation: which of the target's own layers draft.

Early exit runs the first layers and goes straight to the head (Elhoushi et al., arXiv:2404.16710);
skipping leaves out a set (Zhang et al., arXiv:2309.08168).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import Incompatible, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PARAMETERS", "kept_layers", "refuse_parameters"]

PARAMETERS = ("exit_after", "skip_layers")
"""What the proposer reads: exactly one of them."""

_FIELD = "proposer.parameters"


def refuse_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse what no target could fit.

    ``exit_after`` counts the layers that run, ``skip_layers`` lists layers from 0 in rising order.

    Raises:
        InputError: not exactly one of the two is given, or it has the wrong form.
    """
    given = [name for name in PARAMETERS if name in parameters]
    if len(given) != 1:
        raise InputError(
            "needs exactly one of exit_after and skip_layers",
            field=_FIELD,
            value=dict(parameters),
            remedy="give exit_after: layers that run, or skip_layers: [layers left out]",
        )
    (name,) = given
    value = parameters[name]
    if name == "exit_after":
        good, remedy = _whole(value) and value >= 1, "use a whole number of layers from 1"
    else:
        good, remedy = _rising(value), "list at least one layer, from 0, in rising order"
    if not good:
        raise InputError(
            "does not say which layers draft", field=f"{_FIELD}.{name}", value=value, remedy=remedy
        )


def kept_layers(parameters: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers that draft, in order, of a target with so many ``layers``.

    Raises:
        InputError: the parameters have the wrong form.
        Incompatible: this target has no such layers, or none or all of them would draft.
    """
    refuse_parameters(parameters)
    if "exit_after" in parameters:
        after = int(parameters["exit_after"])
        if after >= layers:
            raise Incompatible(
                f"leaves nothing out of a target of {layers} layers",
                field=f"{_FIELD}.exit_after",
                value=after,
                remedy=f"use 1 to {layers - 1}" if layers > 1 else "use another proposer",
            )
        return tuple(range(after))
    skipped = list(parameters["skip_layers"])
    if skipped[-1] >= layers:
        raise Incompatible(
            f"names layers that a target of {layers} layers does not have",
            field=f"{_FIELD}.skip_layers",
            value=skipped,
            remedy=f"use layers from 0 to {layers - 1}",
        )
    if len(skipped) == layers:
        raise Incompatible(
            f"leaves none of the target's {layers} layers",
            field=f"{_FIELD}.skip_layers",
            value=skipped,
            remedy="keep at least one layer",
        )
    return tuple(layer for layer in range(layers) if layer not in skipped)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rising(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(map(_whole, value))
        and value[0] >= 0
        and all(a < b for a, b in pairwise(value))
    )
