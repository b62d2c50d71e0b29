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
    (
        "e-process, E",
        r"\be-process\b|\bE (?:=|≥|stayed)",
        (
            "the strict test: E is what bets against the target's probabilities have made of a stake "
            "of 1; while the tokens follow them it reaches 1/α with probability α at most, whenever "
            "one looks"
        ),
    ),
    (
        "bank",
        r"\bbank\b",
        "the strict test's bets, each on another way to be wrong; E is their average",
    ),
    (
        "id bit",
        r"\bid bit\b",
        (
            "one binary digit of the token's number: the tokens that have a 1 there are one half of "
            "the vocabulary, of no special kind"
        ),
    ),
    (
        "slowdown spread",
        r"\bslowdown spread\b",
        (
            "slowdown of the load class that fares worst over that of the one that fares best; above "
            "1 some are slowed more than others"
        ),
    ),
    (
        "E[P], T₁, Td, Tv, To",
        r"E\[P\]",
        (
            "tokens that a round commits on average; time of an ordinary step, and of a round's "
            "drafting, verifying and all the rest"
        ),
    ),
    (
        "b, c",
        r"\bb=\d",
        "pairs in which only the baseline (b) or only the candidate (c) succeeded",
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
