"""Adaptive windows in the engine: what a step's times and a round's verdict tell of the next window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatekeeper.core.adaptive_window import AdaptiveWindows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.core.adaptive_window import RequestWindow
    from gatekeeper.core.decoding import DecodeRequest
    from gatekeeper_adapters.engines.reference.scheduler import Work
    from gatekeeper_adapters.engines.reference.timing import Stopwatch

__all__ = ["Pacing"]


class Pacing:
    """Gives adaptive requests their controller, and feeds it the times of steps."""

    def __init__(self, windows: AdaptiveWindows | None = None) -> None:
        self._windows = windows or AdaptiveWindows()

    def begin(self, request: DecodeRequest) -> RequestWindow | None:
        """The controller of a request, None where its windows are fixed."""
        if not (request.adaptive and request.gamma):
            return None
        return self._windows.begin(request.gamma, request.proposer)

    def learn(self, works: Sequence[Work], watch: Stopwatch) -> None:
        """A step is judged, and its rows are not kept yet.

        Steps that cache a prompt cost more than their windows do. So does a draft after rounds
        without one, which first reads what was committed meanwhile; and where proposers share a
        step nobody knows whose the time was.
        """
        drafting = [work.sequence for work in works if work.window]
        usual = all(sequence.drafted for sequence in drafting)
        for work in works:
            work.sequence.drafted = bool(work.window)
        if all(work.sequence.windows is None for work in works):
            return
        if any(work.until - work.sequence.cached > 1 for work in works):
            self._windows.times.skip()
            return
        names = {sequence.request.proposer for sequence in drafting}
        draft_s, *rest = watch.laps()
        self._windows.times.observe(
            [work.window or 0 for work in works],
            sum(rest) + watch.moved,
            draft_s if usual and len(names) == 1 else None,
            next(iter(names), None),
        )
