"""Gamma of one request, round by round, from what its drafts were worth and what they cost.

A window is chosen before its round drafts anything, from judged tokens of earlier rounds and from
times of earlier steps. Given that past it is a constant, and verification of a window of any constant
length returns the target's distribution: the choice changes the speed, never the law of the text.
A rule that looked at this round's draft tokens first (a confidence stop) would condition on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.documents import check
from gatekeeper.core.step_times import StepTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.window import StepCosts

__all__ = ["AdaptiveWindows", "RequestWindow", "WindowRules", "expected_speedups"]


@dataclass(frozen=True)
class WindowRules:
    """How windows follow the evidence.

    ``acceptance`` is assumed at every position before any draft was judged, ``weight`` rounds
    strong. Counts fade over ``memory`` rounds of a request, ``pool_memory`` rounds of all requests
    together, whose curve is where a new request starts. Another window must be faster by ``margin``
    for ``patience`` rounds in a row. At 0, after ``wait`` ordinary rounds ``probes`` windows of
    ``probe`` tokens are tried; failure doubles the wait, up to ``longest_wait``, and success makes
    the next one soon. (Two probes: the first also makes the draft read what it missed, so only the
    next shows what drafting costs.)
    Where less than ``scarce`` of the positions are free, windows shorten in proportion.
    """

    acceptance: float = 0.6
    weight: float = 6.0
    memory: float = 24.0
    pool_memory: float = 240.0
    margin: float = 0.03
    patience: int = 2
    probe: int = 1
    probes: int = 2
    wait: int = 8
    longest_wait: int = 64
    scarce: float = 0.1

    def __post_init__(self) -> None:
        probability = "use a probability in [0, 1]"
        check(
            [
                ("acceptance", self.acceptance, 0 <= self.acceptance <= 1, probability),
                ("weight", self.weight, self.weight > 0, "use a number above 0"),
                ("memory", self.memory, self.memory > 1, "use more than one round"),
                ("pool_memory", self.pool_memory, self.pool_memory > 1, "use more than one round"),
                ("margin", self.margin, self.margin >= 0, "use 0 or more"),
                ("patience", self.patience, self.patience >= 1, "use at least one round"),
                ("probe", self.probe, self.probe >= 1, "probe with at least one token"),
                ("probes", self.probes, self.probes >= 1, "probe at least once"),
                ("wait", self.wait, self.wait >= 1, "use at least one round"),
                (
                    "longest_wait",
                    self.longest_wait,
                    self.longest_wait >= self.wait,
                    "use at least wait",
                ),
                ("scarce", self.scarce, 0 < self.scarce <= 1, "use a share in (0, 1]"),
            ]
        )


class AdaptiveWindows:
    """What the requests of one engine share: the times of its steps, and acceptance by proposer."""

    def __init__(self, rules: WindowRules | None = None, times: StepTimes | None = None) -> None:
        self.rules = rules or WindowRules()
        self.times = times or StepTimes()
        self._pools: dict[str | None, _Acceptance] = {}

    def begin(self, longest: int, proposer: str | None = None) -> RequestWindow:
        """The controller of a new request whose windows are at most ``longest`` tokens."""
        pool = self._pools.setdefault(proposer, _Acceptance(self.rules.pool_memory))
        return RequestWindow(self, pool, longest, proposer)


class RequestWindow:
    """Chooses the windows of one request; ``choose`` once a round, ``observe`` its verdict."""

    def __init__(
        self, shared: AdaptiveWindows, pool: _Acceptance, longest: int, proposer: str | None
    ) -> None:
        self._shared = shared
        self._rules = shared.rules
        self._pool = pool
        self._longest = longest
        self._proposer = proposer
        self._own = _Acceptance(shared.rules.memory)
        self._standing: int | None = None  # the window that stands, limits aside; None before any
        self._better = 0  # rounds in a row in which another one would have been faster
        self._waited = 0
        self._probes = 0  # probes still to come of those that began
        self._wait = shared.rules.wait
        self._hopeless = False  # at these costs even perfect drafts would not pay

    @property
    def standing(self) -> int | None:
        """The window chosen last, before limits and probes; None before the first round."""
        return self._standing

    def choose(self, batch: int, room: int, free: float = 1.0) -> int:
        """The next round's window in a batch of so many sequences; 0 means draft nothing at all.

        ``room`` is the most that the text may still take, ``free`` the share of the engine's
        positions that is free.
        """
        limit = min(room, self._longest, self._affordable(free))
        if limit <= 0 or self._shared.times.ordinary_due(batch):
            return 0
        costs = self._shared.times.costs(batch, self._longest, self._proposer)
        speeds = expected_speedups(self.acceptance(), costs)
        best = speeds.index(max(speeds))
        if self._standing is None:
            self._stand(best)
        elif speeds[best] > speeds[self._standing] * (1 + self._rules.margin):
            self._better += 1
            if self._better >= self._rules.patience:
                self._stand(best)
        else:
            self._better = 0
        if self._standing:
            return min(self._standing, limit)
        perfect = expected_speedups([1.0] * self._longest, costs)
        self._hopeless = max(perfect) <= 1 + self._rules.margin
        return min(self._probe(), limit)

    def observe(self, asked: int, accepted: int) -> None:
        """A round asked for ``asked`` draft tokens, and its first ``accepted`` were accepted.

        A token that was asked for and not proposed counts as one not accepted: it brought nothing.
        Positions after the first rejection were not judged and do not count.
        """
        self._own.observe(asked, accepted)
        self._pool.observe(asked, accepted)
        if not self._standing and 0 < asked == accepted and not self._hopeless:
            self._wait = self._rules.wait

    def acceptance(self) -> list[float]:
        """Estimated conditional acceptance at every position of the longest window."""
        rules = self._rules
        # where nothing else is known a position is as good as the one before it
        pool: list[float] = []
        own: list[float] = []
        for place in range(self._longest):
            before = pool[-1] if pool else rules.acceptance
            pool.append(self._pool.estimate(place, before, rules.weight))
            # a request falls off with depth as the pool does
            fall = pool[place] / before if own and before > 0 else 1.0
            prior = min(1.0, own[-1] * fall) if own else pool[place]
            own.append(self._own.estimate(place, prior, rules.weight))
        return own

    def _stand(self, window: int) -> None:
        self._standing = window
        self._better = self._waited = self._probes = 0
        self._wait = self._rules.wait

    def _probe(self) -> int:
        if self._probes:
            self._probes -= 1
            return self._rules.probe
        self._waited += 1
        if self._waited <= self._wait:
            return 0
        self._waited = 0
        self._wait = min(2 * self._wait, self._rules.longest_wait)
        self._probes = self._rules.probes - 1
        return self._rules.probe

    def _affordable(self, free: float) -> int:
        if free >= self._rules.scarce:
            return self._longest
        return int(self._longest * max(0.0, free) / self._rules.scarce)


class _Acceptance:
    """Counts by position that fade: of the last ``memory`` times a position was judged, roughly."""

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._judged: list[float] = []
        self._accepted: list[float] = []

    def observe(self, asked: int, accepted: int) -> None:
        reached = min(asked, accepted + 1)
        while len(self._judged) < reached:
            self._judged.append(0.0)
            self._accepted.append(0.0)
        for place in range(reached):
            self._judged[place] = self._judged[place] * self._keep + 1.0
            self._accepted[place] = self._accepted[place] * self._keep + (place < accepted)

    def estimate(self, place: int, prior: float, weight: float) -> float:
        """P(accepted | those before were), the prior counted as ``weight`` judgements."""
        if place >= len(self._judged):
            return prior
        return (weight * prior + self._accepted[place]) / (weight + self._judged[place])


def expected_speedups(acceptance: Sequence[float], costs: StepCosts) -> list[float]:
    """Latency speed-up of every window from 0 (1 by definition) to the length of the curve.

    As ``core.window.choose_window`` computes it, in one pass: this runs for every request and round.
    """
    speeds, progress, reach = [1.0], 1.0, 1.0
    for gamma, value in enumerate(acceptance, start=1):
        reach *= value
        progress += reach
        spent = costs.draft_s[gamma] + costs.verify_s[gamma] + costs.overhead_s
        speeds.append(progress * costs.ordinary_s / spent)
    return speeds
