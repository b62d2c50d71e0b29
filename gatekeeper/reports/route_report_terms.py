"""Terms of a route's report, one line each: only those that occur in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gatekeeper.reports.route_report_figures import (
    Charts,
    Facts,
    Group,
    Items,
    Paragraph,
    Section,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gatekeeper.reports.route_report_figures import Block, Line

__all__ = ["terms_section"]

_TERMS = (
    ("γ, gamma, window", r"γ|\bgamma\b|\bwindows?\b", "draft tokens proposed in one round"),
    (
        "round",
        r"\brounds?\b",
        "one step of drafting and verifying: the target commits what it accepts and one token more",
    ),
    (
        "TTFT",
        r"\bTTFT\b",
        "time to first token: from the request's arrival to the first token of any kind",
    ),
    (
        "TPOT",
        r"\bTPOT\b",
        "time per output token after the first; unknown, not 0, for one token or none",
    ),
    (
        "ITL",
        r"\bITL\b",
        "inter-token latency: the gap between streamed chunks, and a chunk may hold several tokens",
    ),
    (
        "bonus",
        r"\bbonus\b",
        "the position after the last draft token, filled by the target where it accepted them all",
    ),
    ("q", r"(?<![\w-])q(?![\w-])", "the draft's probability of a token, as p is the target's"),
    (
        "deficit rule",
        r"\bdeficits?\b",
        (
            "a greedy token may trail the target's best logit by its deficit only where rounding "
            "explains it (a numeric tie)"
        ),
    ),
    (
        "design effect",
        r"\bdesign effect\b",
        (
            "how many times the variance grows because pairs of one cluster are alike: so many pairs "
            "count as one"
        ),
    ),
    ("goodput", r"\bgoodput\b", "requests per second that meet every objective of the policy"),
)


def terms_section(blocks: Iterable[Block]) -> tuple[Section, ...]:
    """One section on the terms that ``blocks`` use; none where they use none."""
    text = "\n".join(_texts(blocks))
    rows = tuple(
        (name, (meaning,))
        for name, pattern, meaning in _TERMS
        if re.search(pattern, text, re.IGNORECASE if name.islower() else 0)
    )
    return (Section("terms", "Terms", (Facts(rows),)),) if rows else ()


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Group):
            yield block.title
            yield from _texts(block.blocks)
        elif isinstance(block, Paragraph):
            yield _said(block.content)
        elif isinstance(block, Items):
            yield from map(_said, block.items)
        elif isinstance(block, Facts):
            for name, content in block.rows:
                yield f"{name} {_said(content)}"
        elif isinstance(block, Table):
            yield " ".join((block.caption, *block.columns))
            for row in block.rows:
                yield from _cells(row)
        elif isinstance(block, Charts):
            yield from (chart.alt for chart in block.charts)


def _cells(row: Sequence[Line]) -> Iterator[str]:
    yield from map(_said, row)


def _said(content: Line) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in content)
