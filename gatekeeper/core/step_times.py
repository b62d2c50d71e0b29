"""How long decoding steps take, learned while decoding: the cost curves behind a choice of gamma.

Times are kept by batch size and window, as means of the latest steps, none counted as more than
twice their median: one hiccup of the machine moves little, yet a look-up that often proposes nothing
still pays for the rounds in which it does. Where nothing was measured yet, the nearest measured time
is carried over by a declared shape: a draft token and a verified one cost a fixed share of an
ordinary step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gatekeeper.core.documents import check
from gatekeeper.core.window import StepCosts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CostPrior", "StepTimes", "batch_class"]

EXACT_BATCHES = 8
"""Batch sizes told apart; larger ones share the class of the next power of two."""

HICCUP = 2.0
"""Multiple of the median above which a step's time is not its window's doing."""


@dataclass(frozen=True)
class CostPrior:
    """What is assumed of costs before any were measured, in ordinary steps.

    One draft token costs ``draft``, one more token to verify ``verify``; ``samples`` latest steps
    count. An ordinary step is asked for where ``enough`` were not seen yet, or none in the last
    ``stale`` steps: every speed-up is measured against it. Where it does not come as often as asked
    for twice over (others in the batch draft whatever happens), the shape has to do until then.
    """

    draft: float = 0.05
    verify: float = 0.05
    samples: int = 15
    enough: int = 2
    stale: int = 256

    def __post_init__(self) -> None:
        check(
            [
                ("draft", self.draft, self.draft >= 0, "use a share of an ordinary step"),
                ("verify", self.verify, self.verify >= 0, "use a share of an ordinary step"),
                ("samples", self.samples, self.samples >= 1, "keep at least one step"),
                ("enough", self.enough, 0 <= self.enough <= self.samples, "use 0 to samples"),
                ("stale", self.stale, self.stale >= 1, "use at least one step"),
            ]
        )


class StepTimes:
    """Steps of one engine. Every figure in seconds, of whole steps: all their sequences wait."""

    def __init__(self, prior: CostPrior | None = None) -> None:
        self._prior = prior or CostPrior()
        self._verify: dict[int, _Curve] = defaultdict(self._curve)
        self._draft: dict[tuple[str | None, int], _Curve] = defaultdict(self._curve)
        self._steps = 0
        self._settled: dict[int, int] = {}  # the step after which no ordinary one was due
        self._wanted: set[int] = set()  # batches for which one was due in this step
        self._in_vain: dict[int, int] = defaultdict(int)
        self._found: dict[tuple[str | None, int, int], StepCosts] = {}

    def observe(
        self, windows: Sequence[int], rest_s: float, draft_s: float | None, proposer: str | None
    ) -> None:
        """A step that cached no prompt: the ``windows`` asked for, and where its time went.

        A step of mixed windows counts for their mean, rounded, in what it verified, and for their
        longest in what it drafted. ``draft_s`` is None where it says nothing of a usual draft.
        """
        batch = batch_class(len(windows))
        drafting = sum(window > 0 for window in windows)
        self._found.clear()
        if rest_s > 0:
            self._verify[batch].add(round(sum(windows) / len(windows)), rest_s)
        self._step(None if drafting else batch)
        if drafting and draft_s is not None:
            self._draft[proposer, batch_class(drafting)].add(max(windows), draft_s)

    def skip(self) -> None:
        """A step of which nothing can be learned, because it cached prompts too."""
        self._step(None)

    def ordinary_due(self, batch: int) -> bool:
        """Whether the next step of so many sequences should be ordinary, to know what one costs."""
        batch = batch_class(batch)
        last = self._settled.get(batch)
        due = self._prior.enough > 0 and (last is None or self._steps - last >= self._prior.stale)
        if due:
            self._wanted.add(batch)
        return due

    def costs(self, batch: int, longest: int, proposer: str | None = None) -> StepCosts:
        """Times of steps in which each of ``batch`` sequences has the same window, 0 to ``longest``.

        So that everyone bears the delay its window causes to all: with b sequences, a row of one
        delays all b, as a row of each does that one. Correction and transfer are in ``verify_s``.
        """
        key = (proposer, batch_class(batch), longest)
        if key not in self._found:
            self._found[key] = self._costs(*key)
        return self._found[key]

    def _costs(self, proposer: str | None, batch: int, longest: int) -> StepCosts:
        prior = self._prior
        rest = _nearest(self._verify, batch)
        ordinary = 1.0 if rest is None else rest.at(0, lambda gamma: 1 + prior.verify * gamma)
        drafts = _nearest({b: c for (name, b), c in self._draft.items() if name == proposer}, batch)
        gammas = range(1, longest + 1)
        return StepCosts(
            ordinary_s=ordinary,
            draft_s={
                gamma: prior.draft * gamma * ordinary
                if drafts is None
                else drafts.at(gamma, lambda depth: depth)
                for gamma in gammas
            },
            verify_s={
                gamma: 1 + prior.verify * gamma
                if rest is None
                else rest.at(gamma, lambda depth: 1 + prior.verify * depth)
                for gamma in gammas
            },
        )

    def _step(self, ordinary: int | None) -> None:
        """Count a step; ``ordinary`` is the batch of one in which nobody drafted."""
        self._steps += 1
        if ordinary is not None and self._verify[ordinary].count(0) >= self._prior.enough:
            self._settle(ordinary)
        for batch in self._wanted - {ordinary}:
            self._in_vain[batch] += 1
            if self._in_vain[batch] >= 2 * self._prior.enough:
                self._settle(batch)
        self._wanted.clear()

    def _settle(self, batch: int) -> None:
        self._settled[batch] = self._steps
        self._in_vain[batch] = 0

    def _curve(self) -> _Curve:
        return _Curve(self._prior.samples)


class _Curve:
    """Means by window, hiccups capped; between two measured windows, and beyond them, by a shape."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._seen: dict[int, deque[float]] = {}
        self._usual: dict[int, float] = {}

    def add(self, window: int, seconds: float) -> None:
        seen = self._seen.setdefault(window, deque(maxlen=self._samples))
        seen.append(seconds)
        most = HICCUP * median(seen)
        self._usual[window] = sum(min(each, most) for each in seen) / len(seen)

    def count(self, window: int) -> int:
        return len(self._seen.get(window, ()))

    def at(self, window: int, shape: Callable[[int], float]) -> float:
        """The time as a multiple of the shape: linear between measured windows, level outside."""
        if window in self._usual:
            return self._usual[window]
        below = max((w for w in self._usual if w < window), default=None)
        above = min((w for w in self._usual if w > window), default=None)
        sides = [w for w in (below, above) if w is not None]
        ratios = [self._usual[w] / shape(w) for w in sides]
        if below is None or above is None:
            return ratios[0] * shape(window)
        part = (window - below) / (above - below)
        return (ratios[0] * (1 - part) + ratios[1] * part) * shape(window)


def batch_class(batch: int) -> int:
    """The largest batch size that is counted together with this one."""
    return batch if batch <= EXACT_BATCHES else 1 << (batch - 1).bit_length()


def _nearest(curves: Mapping[int, _Curve], batch: int) -> _Curve | None:
    """What was measured at this batch size, else at the nearest: only ratios of times matter."""
    if not curves:
        return None
    return curves[min(curves, key=lambda known: (abs(known - batch), known))]
