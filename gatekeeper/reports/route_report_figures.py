"""What a report is made of: lines of text and figures, each figure tied to its claim."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gatekeeper.reports.charts import Chart

__all__ = [
    "UNKNOWN",
    "Block",
    "Charts",
    "Facts",
    "Figure",
    "Group",
    "Items",
    "Ledger",
    "Line",
    "Mark",
    "Page",
    "Paragraph",
    "Piece",
    "Quote",
    "Report",
    "RunFigures",
    "Section",
    "Table",
    "leaf",
    "line",
]

UNKNOWN = "unknown"
"""How a figure reads that nobody knows: never as 0, never as an empty cell."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class Figure:
    """One printed number: how it reads, its exact value, the claim that reproduces it.

    ``claim`` is None where no claim with this very value is known; a report then says so.
    """

    text: str
    value: float
    claim: str | None


@dataclass(frozen=True)
class Quote:
    """A sentence that a gate or decision wrote, with the claim of the numbers in it."""

    text: str
    claim: str | None


@dataclass(frozen=True)
class Mark:
    """An outcome or action. ``tone`` is good, bad, warn or plain; the text says it as well."""

    text: str
    tone: str


Piece = str | Figure | Quote | Mark
Line = tuple[Piece, ...]


def line(*pieces: Piece | Line) -> Line:
    """Join pieces and lines."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, tuple):
            joined += piece
        else:
            joined.append(piece)
    return tuple(joined)


@dataclass(frozen=True)
class Paragraph:
    """One paragraph; ``muted`` for remarks."""

    content: Line
    muted: bool = False


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: tuple[Line, ...]


@dataclass(frozen=True)
class Facts:
    """Names with what they are."""

    rows: tuple[tuple[str, Line], ...]


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first cell heads its row, numeric columns stand right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Line, ...], ...]
    numeric: bool = True


@dataclass(frozen=True)
class Charts:
    """Charts side by side; the tables beside them hold the same figures."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Group:
    """Blocks under a heading of their own, with an outcome."""

    title: str
    mark: Mark
    blocks: tuple[Block, ...]


Block = Paragraph | Items | Facts | Table | Charts | Group


@dataclass(frozen=True)
class Section:
    """One part of a report; ``name`` is its anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A document ready to be written out as a page.

    ``question`` has ``{}`` where the ``subject`` stands. ``headline`` is the answer, a colon and why;
    ``tone`` is the answer's.
    """

    subject: str
    question: str
    headline: str
    tone: str
    explanation: Line
    facts: Facts
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Report(Page):
    """A page whose figures are claims, also for a terminal and as Markdown.

    ``claims`` are those cited, in order of appearance; ``source`` is the path of the API that the
    figures came from.
    """

    claims: tuple[Mapping[str, Any], ...]
    known_claims: int
    unclaimed: tuple[str, ...]
    generated_at: str
    source: str


@dataclass
class Ledger:
    """The claims of a document, and which of them the report cites, in order of appearance."""

    claims: Mapping[str, Mapping[str, Any]]
    cited: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    unclaimed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, claims: Iterable[Mapping[str, Any]]) -> Ledger:
        """Index claims by id."""
        return cls({str(claim["id"]): claim for claim in claims})

    def figure(self, value: Any, form: Callable[[float], str], *ids: str) -> Piece:  # noqa: ANN401 - JSON
        """Return a number tied to the first of ``ids`` that has this very value.

        None reads "unknown". A number that no claim has is shown without one and remembered.
        """
        if value is None:
            return UNKNOWN
        text, claim = form(value), self._cite(value, ids)
        if claim is None:
            self.unclaimed.append(f"{text} ({', '.join(ids) or 'no claim'})")
        return Figure(text, value, claim)

    def quote(self, text: str, *ids: str) -> Quote:
        """Return a sentence tied to the first of ``ids`` that says exactly this."""
        return Quote(text, self._cite(text, ids))

    def _cite(self, value: Any, ids: Iterable[str]) -> str | None:  # noqa: ANN401 - JSON
        for name in ids:
            claim = self.claims.get(name)
            if claim is not None and claim["value"] == value:
                self.cited.setdefault(name, claim)
                return name
        return None


@dataclass(frozen=True)
class RunFigures:
    """Figures of one gate run, addressed by their path in its result."""

    ledger: Ledger
    run: str
    gate: str
    result: Mapping[str, Any]

    def value(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Value at a path of the result; None where there is none."""
        return leaf(self.result, path)

    def figure(self, path: str, form: Callable[[float], str], own: str | None = None) -> Piece:
        """Figure at ``path``: by the gate's ``own`` claim where it agrees, else by the path's."""
        ids = [f"run/{self.run}/{path}"]
        if own is not None:
            ids.insert(0, f"run/{self.run}/{self.gate}.{own}")
        return self.ledger.figure(self.value(path), form, *ids)

    def interval(
        self, path: str, form: Callable[[float], str], own: str, *, centre: str = "ratio"
    ) -> Line:
        """Show a figure with the bounds stored beside it."""
        middle = self.figure(f"{path}.{centre}", form, own)
        if middle == UNKNOWN:
            return (UNKNOWN,)
        low = self.figure(f"{path}.low", form, f"{own}.low")
        high = self.figure(f"{path}.high", form, f"{own}.high")
        if low == high == UNKNOWN:
            return (middle, " without bounds")
        return (middle, " [", low, ", ", high, "]")

    def quote(self, path: str) -> Quote:
        """Sentence at a path of the result."""
        return self.ledger.quote(str(self.value(path)), f"run/{self.run}/{path}")


def leaf(document: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    """Value at a dotted path such as ``regions[0].speedup.low``; None where there is none."""
    value = document
    for key, index in _STEP.findall(path):
        if key and isinstance(value, dict):
            value = value.get(key)
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
