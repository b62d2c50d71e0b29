"""Faults planted in the reference engine by tests; nothing in the package knows their names.

Sources: the named faults of the statistics design; each is one wrong line of a real sampler.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.engines.reference.loader import Switches
from gatekeeper_adapters.engines.reference.proposers.chain import Drawing
from gatekeeper_adapters.engines.reference.sampling import draw
from gatekeeper_adapters.engines.reference.verify import Verifier

if TYPE_CHECKING:
    from gatekeeper_adapters.engines.reference.proposers.base import Proposer

HOT = 1.6
WARM = 1.4
"""Temperature, over the target's, of a draft that is the target itself (acceptance .6 to .8)."""


def _warmer(q: Any, by: float = HOT) -> Any:
    """The same draft at another temperature: what a verifier sees when a parameter is not passed on."""
    scaled = q.pow(1.0 / by)
    return scaled / scaled.sum()


def _argmax(q: Any, _: float) -> int:
    return int(q.argmax())


VERIFIERS = {
    "residual_not_subtracted": Verifier(correction=lambda p, _: p),
    "bonus_from_q": Verifier(bonus=lambda p, q: p if q is None else q),
    "accept_above_threshold": Verifier(accept=lambda p, _: float(p > 0.1)),
    "correction_from_q": Verifier(correction=lambda _, q: q),
}
DRAWINGS = {
    "argmax_draft_with_soft_q": Drawing(pick=_argmax),
    "q_at_wrong_temperature": Drawing(claim=_warmer),
}
FAULTS = {
    **{name: Switches(verifier=verifier) for name, verifier in VERIFIERS.items()},
    **{name: Switches(drawing=drawing) for name, drawing in DRAWINGS.items()},
}
"""By name, for ``loader.Options(switches=…)``."""


def warmed(fault: str | None = None) -> Switches:
    """A fault, or none, before a draft that draws from its distribution at ``WARM`` and says so.

    Where the draft is the target, an honest copy would always be accepted and show nothing.
    """
    drawn = Drawing(pick=lambda q, u: draw(_warmer(q, WARM), u), claim=lambda q: _warmer(q, WARM))
    switches = Switches() if fault is None else FAULTS[fault]
    if fault == "argmax_draft_with_soft_q":
        drawn = replace(drawn, pick=_argmax)
    elif fault == "q_at_wrong_temperature":
        drawn = replace(drawn, claim=lambda q: _warmer(q, WARM * HOT))
    return replace(switches, drawing=drawn)


class SleepyProposer:
    """Another proposer, ``seconds`` slower per step."""

    def __init__(self, inner: Proposer, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, windows: Any) -> Any:
        time.sleep(self._seconds)
        return self._inner.propose(windows)


def sleepy(seconds: float) -> Switches:
    """A drafter that sleeps before every proposal."""
    return Switches(wrap=lambda inner: SleepyProposer(inner, seconds))
