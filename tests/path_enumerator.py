"""Makespan of a small span forest by listing every path, written from the rules alone.

Shares nothing with the implementation: edges are drawn pair by pair, without scopes, chains or
topological sorting, and each path is walked from the end back to the start and summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Bar:
    """A span: index of its parent or None, start, end (None: unfinished), kind, links.

    ``kind`` is other, tool, decode or call; only a call has ``phases``: (kind, start, end) each.
    ``links`` are the indices of the spans that it names as causes.
    """

    parent: int | None
    start: int
    end: int | None
    kind: str
    phases: tuple[tuple[str, int, int], ...] = ()
    links: tuple[int, ...] = ()


@dataclass(frozen=True)
class Event:
    """A node: span index (-1 for the ends of the task), role, start, end, kind of its work."""

    bar: int
    role: str
    start: int
    end: int
    kind: str = ""


class Enumerator:
    """Bars must be sorted by (start, end); the index breaks ties between touching spans."""

    def __init__(self, bars: list[Bar], *, happens_before: bool = True) -> None:
        self.bars = bars
        self.happens_before = happens_before
        self.live = [i for i in range(len(bars)) if not self.detail(i)]
        known = [b.start for b in bars] + [b.end for b in bars if b.end is not None]
        self.zero, self.last = min(known), max(known)
        self.events = [Event(-1, "source", self.zero, self.zero)]
        for i in self.live:
            self.events += self.of_bar(i)
        self.events.append(Event(-1, "sink", self.last, self.last))

    def up(self, i: int) -> Iterator[int]:
        at = self.bars[i].parent
        while at is not None:
            yield at
            at = self.bars[at].parent

    def below(self, i: int) -> list[int]:
        return [j for j in range(len(self.bars)) if i in self.up(j)]

    def plain(self, i: int) -> bool:
        return all(
            self.bars[j].kind == "other" and self.bars[j].end is not None
            for j in [i, *self.below(i)]
        )

    def detail(self, i: int) -> bool:
        """Whether a working span above already counts the time of this plain one."""
        for top, over in [(i, self.bars[i].parent)] + [
            (j, self.bars[j].parent) for j in self.up(i)
        ]:
            if over is None:
                return False
            end = self.bars[over].end
            inside = end is not None and all(
                self.bars[over].start <= self.bars[j].start and (self.bars[j].end or 0) <= end
                for j in [top, *self.below(top)]
            )
            if self.bars[over].kind != "other" and self.plain(top) and inside:
                return True
        return False

    def covered(self, i: int) -> bool:
        """Whether own segments cover a span: decode and calls always, others only as leaves."""
        if self.bars[i].end is None:
            return False
        leaf = not any(self.bars[j].parent == i for j in self.live)
        return self.bars[i].kind in ("decode", "call") or leaf

    def of_bar(self, i: int) -> list[Event]:
        bar = self.bars[i]
        made = [Event(i, "open", bar.start, bar.start)]
        if self.covered(i):
            cuts = {self.bars[j].start for j in self.live if self.bars[j].parent == i}
            cuts |= {self.bars[j].start for j in self.live if i in self.bars[j].links}
            assert bar.end is not None
            whole = ((bar.kind, bar.start, bar.end),)
            for kind, begin, end in bar.phases if bar.kind == "call" else whole:
                stops = [*sorted(c for c in cuts if begin < c < end), end]
                begins = [begin, *stops[:-1]]
                made += [Event(i, "piece", a, b, kind) for a, b in zip(begins, stops, strict=True)]
        return made if bar.end is None else [*made, Event(i, "close", bar.end, bar.end)]

    def home(self, i: int) -> int | None:
        """Nearest ancestor that lasts at least as long: there the span is joined."""
        own = self.bars[i].end
        assert own is not None
        ends = ((a, self.bars[a].end) for a in self.up(i))
        return next((a for a, end in ends if end is not None and end >= own), None)

    def door(self, i: int) -> int | None:
        """Nearest ancestor that had begun when the span began: out of it the span forks."""
        return next((a for a in self.up(i) if self.bars[a].start <= self.bars[i].start), None)

    def finished(self, i: int | None) -> int | None:
        """The span itself, or the nearest finished one above it."""
        if i is None:
            return None
        return next((a for a in (i, *self.up(i)) if self.bars[a].end is not None), None)

    def needs(self, v: Event) -> list[Event]:
        """Every event that must end before ``v`` starts."""
        if v.role == "source":
            return []
        if v.role == "sink":
            unfinished = [e for e in self.events if e.role == "open" and self.lost(e.bar)]
            ends = [e for e in self.events if e.role == "source" or self.joins(e, None)]
            return [*ends, *unfinished]
        own = self.of_bar(v.bar)
        if v.role == "piece":
            return [own[own.index(v) - 1]]
        if v.role == "close":
            return [own[-2], *(e for e in self.events if self.joins(e, v.bar))]
        before = [e for e in self.events if e.role == "close" and self.earlier(e.bar, v.bar)]
        return [*before, self.fork(v.bar), *self.causes(v.bar)]

    def lost(self, i: int) -> bool:
        return self.bars[i].end is None

    def joins(self, e: Event, scope: int | None) -> bool:
        return e.role == "close" and self.home(e.bar) == scope

    def earlier(self, a: int, b: int) -> bool:
        """Whether a had ended when b began, seen from a level where b's surroundings are."""
        levels = {self.finished(self.bars[b].parent), self.finished(self.door(b))}
        end = self.bars[a].end
        assert end is not None
        touching = (end, a) < (self.bars[b].start, b)
        return self.happens_before and a != b and self.home(a) in levels and touching

    def fork(self, i: int) -> Event:
        door = self.door(i)
        if door is None:
            return self.events[0]
        start, end, around = self.bars[i].start, self.bars[i].end, self.bars[door].end
        outlives = around is not None and (start > around if end is None else end > around)
        return self.running(door, start, may_close=outlives)

    def causes(self, i: int) -> list[Event]:
        """What a link names: it had begun, and it is not just the parent, which forks."""
        start = self.bars[i].start
        return [
            self.running(j, start, may_close=True)
            for j in self.bars[i].links
            if j != i and j in self.live and self.bars[j].start <= start
            if self.bars[i].parent != j
        ]

    def running(self, i: int, time: int, *, may_close: bool) -> Event:
        """The last of a span's events that was over at a time; its close only where that counts."""
        end = self.bars[i].end
        if may_close and end is not None and end <= time:
            return self.of_bar(i)[-1]
        return [e for e in self.of_bar(i) if e.role != "close" and e.end <= time][-1]

    def makespan(self, x: Fraction, kind: str = "decode") -> Fraction:
        """Longest of all paths from the task's start to its end, ``kind`` taking x of its time."""
        best = Fraction(-1)
        todo = [(self.events[-1], Fraction(0))]
        while todo:
            v, after = todo.pop()
            needs = self.needs(v)
            lag = v.start - max([e.end for e in needs], default=v.start)
            factor = x if v.role == "piece" and v.kind == kind else 1
            length = after + lag + (v.end - v.start) * factor
            if not needs:
                best = max(best, length)
            todo += [(e, length) for e in needs]
        return best
