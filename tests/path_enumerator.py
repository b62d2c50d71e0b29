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
    """A span: index of its parent or None, start, end, kind (other, tool or decode)."""

    parent: int | None
    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Event:
    """A node: span index (-1 for the ends of the task), role, start, end."""

    bar: int
    role: str
    start: int
    end: int


class Enumerator:
    """Bars must be sorted by (start, end); the index breaks ties between touching spans."""

    def __init__(self, bars: list[Bar], *, happens_before: bool = True) -> None:
        self.bars = bars
        self.happens_before = happens_before
        self.live = [i for i in range(len(bars)) if not self.detail(i)]
        self.zero = min(b.start for b in bars)
        self.last = max(b.end for b in bars)
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
        return all(self.bars[j].kind == "other" for j in [i, *self.below(i)])

    def detail(self, i: int) -> bool:
        """Whether a working span above already counts the time of this plain one."""
        for top, over in [(i, self.bars[i].parent)] + [
            (j, self.bars[j].parent) for j in self.up(i)
        ]:
            if over is None:
                return False
            inside = all(
                self.bars[over].start <= self.bars[j].start
                and self.bars[j].end <= self.bars[over].end
                for j in [top, *self.below(top)]
            )
            if self.bars[over].kind != "other" and self.plain(top) and inside:
                return True
        return False

    def covered(self, i: int) -> bool:
        """Whether own segments cover a span: decode always, others only as leaves."""
        return self.bars[i].kind == "decode" or not any(self.bars[j].parent == i for j in self.live)

    def of_bar(self, i: int) -> list[Event]:
        bar = self.bars[i]
        made = [Event(i, "open", bar.start, bar.start)]
        if self.covered(i):
            cuts = {self.bars[j].start for j in self.live if self.bars[j].parent == i}
            stops = [*sorted(c for c in cuts if bar.start < c < bar.end), bar.end]
            begins = [bar.start, *stops[:-1]]
            made += [Event(i, "piece", a, b) for a, b in zip(begins, stops, strict=True)]
        return [*made, Event(i, "close", bar.end, bar.end)]

    def home(self, i: int) -> int | None:
        """Nearest ancestor that lasts at least as long: there the span is joined."""
        return next((a for a in self.up(i) if self.bars[a].end >= self.bars[i].end), None)

    def door(self, i: int) -> int | None:
        """Nearest ancestor that had begun when the span began: out of it the span forks."""
        return next((a for a in self.up(i) if self.bars[a].start <= self.bars[i].start), None)

    def needs(self, v: Event) -> list[Event]:
        """Every event that must end before ``v`` starts."""
        if v.role == "source":
            return []
        if v.role == "sink":
            return [e for e in self.events if e.role == "source" or self.joins(e, None)]
        own = self.of_bar(v.bar)
        if v.role == "piece":
            return [own[own.index(v) - 1]]
        if v.role == "close":
            return [own[-2], *(e for e in self.events if self.joins(e, v.bar))]
        before = [e for e in self.events if e.role == "close" and self.earlier(e.bar, v.bar)]
        return [*before, self.fork(v.bar)]

    def joins(self, e: Event, scope: int | None) -> bool:
        return e.role == "close" and self.home(e.bar) == scope

    def earlier(self, a: int, b: int) -> bool:
        """Whether a had ended when b began, seen from a level where b's surroundings are."""
        levels = {self.bars[b].parent, self.door(b)}
        touching = (self.bars[a].end, a) < (self.bars[b].start, b)
        return self.happens_before and a != b and self.home(a) in levels and touching

    def fork(self, i: int) -> Event:
        door = self.door(i)
        if door is None:
            return self.events[0]
        start = self.bars[i].start
        if self.bars[i].end > self.bars[door].end and self.bars[door].end <= start:
            return self.of_bar(door)[-1]
        return [e for e in self.of_bar(door) if e.role != "close" and e.end <= start][-1]

    def makespan(self, x: Fraction) -> Fraction:
        """Longest of all paths from the task's start to its end, decode taking x of its time."""
        best = Fraction(-1)
        todo = [(self.events[-1], Fraction(0))]
        while todo:
            v, after = todo.pop()
            needs = self.needs(v)
            lag = v.start - max([e.end for e in needs], default=v.start)
            factor = x if v.role == "piece" and self.bars[v.bar].kind == "decode" else 1
            length = after + lag + (v.end - v.start) * factor
            if not needs:
                best = max(best, length)
            todo += [(e, length) for e in needs]
        return best
