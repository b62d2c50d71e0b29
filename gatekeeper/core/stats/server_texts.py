"""Greedy texts of two servers: where they part, and whether numerics could have done it.

Table ``texts``, one row per pass and prompt: ``arm`` (``baseline``, ``repeat`` of the baseline,
``candidate``, ``first`` for one token of the candidate with log-probabilities), ``prompt``,
``text``, ``pieces`` (the streamed deltas), ``reason``, ``tokens`` (usage), and per emitted token,
where the server gives them, ``scored`` (token texts), ``top_tokens`` and ``top_logprobs`` (lists of
lists, nats, likeliest first).

Greedy decoding without speculation emits the arg max; speculation that preserves it may only
depart where two tokens are nearly as likely, since a batch of another shape rounds differently. The
first departure of a prompt is judged under the baseline's own log-probabilities: *deficit* = log p
of its likeliest token − log p of what the candidate emitted there, or a lower bound of that. Where
the baseline gives none, only how often and how early texts depart can be judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from gatekeeper.core.claims import equation
from gatekeeper.core.stats.intervals import clopper_pearson
from gatekeeper.core.verdicts import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

__all__ = [
    "BASELINE",
    "BENIGN_SHARE",
    "CANDIDATE",
    "FIRST",
    "LEAST_PROMPTS",
    "NO_BASELINE",
    "REPEAT",
    "TIE",
    "Departure",
    "TextVerdict",
    "compared",
    "departures",
    "differing",
    "faults",
    "first_token_difference",
    "judge",
    "threshold",
    "ties",
    "tokens",
    "undecided",
]

BASELINE, REPEAT, CANDIDATE, FIRST = "baseline", "repeat", "candidate", "first"

TIE = 0.5
"""Nats within which two tokens count as nearly as likely: twice the largest gap (.25) at which
exact speculation in bfloat16 was seen to depart."""

NO_BASELINE = 1.0
"""A baseline that departs from itself by more than this has no greedy text to compare with."""

LEAST_PROMPTS = 8
"""Fewest prompts from which "no fault seen" is said at all."""

EARLY = 120
"""Characters, about 32 tokens, in which texts must part to count without log-probabilities."""

BENIGN_SHARE = 0.5
"""Share of prompts that exact speculation in bfloat16 stays well below within 32 tokens (.3)."""


@dataclass(frozen=True)
class Departure:
    """Where a prompt's text leaves the baseline's.

    ``position`` counts the baseline's tokens and ``deficit`` is in nats, each None where the
    baseline gives no log-probabilities there; ``at_least`` marks a deficit that is a lower bound.
    """

    prompt: str
    character: int
    position: int | None
    expected: str
    found: str
    deficit: float | None
    at_least: bool


@dataclass(frozen=True)
class TextVerdict:
    """What the texts say; ``first`` is the first fault, None without one."""

    outcome: Outcome
    detail: str
    first: Departure | None


def departures(texts: pd.DataFrame, arm: str) -> list[Departure]:
    """First departure of every prompt whose complete answers differ from the baseline's."""
    mine = _complete(texts, arm)
    found = []
    for prompt, base in _complete(texts, BASELINE).items():
        other = mine.get(prompt)
        if other is not None and other["text"] != base["text"]:
            found.append(_departure(prompt, base, other))
    return found


@equation("servers.compared", table=True)
def compared(texts: pd.DataFrame, *, arm: str) -> int:
    """Prompts that both the baseline and ``arm`` answered completely."""
    return len(_complete(texts, BASELINE).keys() & _complete(texts, arm).keys())


@equation("servers.differing", table=True)
def differing(texts: pd.DataFrame, *, arm: str) -> int:
    """Prompts whose text differs from the baseline's."""
    return len(departures(texts, arm))


@equation("servers.tokens", table=True)
def tokens(texts: pd.DataFrame, *, arm: str) -> float | None:
    """Output tokens of complete answers, from usage; None where one is unknown."""
    rows = texts.loc[(texts["arm"] == arm) & texts["reason"].isin(["stop", "length"]), "tokens"]
    return float(rows.sum()) if len(rows) and rows.notna().all() else None


@equation("servers.tie_threshold", table=True)
def threshold(texts: pd.DataFrame) -> float:
    """Largest deficit that numerics explain, nats: from ``TIE`` to ``NO_BASELINE``.

    Between them 1.5 × the largest departure of the baseline from itself, or twice the largest
    change of a first token's log-probability, between two runs of the baseline or between the two
    servers: no draft takes part there, and either token of a pair may move by that much.
    """
    moved = [first_token_difference(texts, arm=arm) or 0.0 for arm in (REPEAT, FIRST)]
    parted = [1.5 * d for d in _deficits(departures(texts, REPEAT))]
    return min(NO_BASELINE, max([TIE, 2 * max(moved), *parted]))


@equation("servers.faults", table=True)
def faults(texts: pd.DataFrame, *, threshold: float) -> int:
    """Prompts where the candidate departs by more than ``threshold`` nats."""
    return len(_faulty(departures(texts, CANDIDATE), threshold))


@equation("servers.undecided", table=True)
def undecided(texts: pd.DataFrame, *, threshold: float) -> int:
    """Departures of the candidate that log-probabilities neither explain nor condemn."""
    return sum(_is_open(one, threshold) for one in departures(texts, CANDIDATE))


@equation("servers.ties", table=True)
def ties(texts: pd.DataFrame, *, threshold: float) -> int:
    """Departures of the candidate that a near-tie explains."""
    found = departures(texts, CANDIDATE)
    return len(found) - len(_faulty(found, threshold)) - sum(_is_open(d, threshold) for d in found)


@equation("servers.first_token_difference", table=True)
def first_token_difference(texts: pd.DataFrame, *, arm: str) -> float | None:
    """Largest |Δ log p| of a token that both list first in an answer, over all prompts, nats.

    No draft takes part in a first token: this compares the two targets. None without such tokens.
    """
    one, two = _first_logprobs(texts, BASELINE), _first_logprobs(texts, arm)
    gaps = [
        abs(one[prompt][token] - two[prompt][token])
        for prompt in one.keys() & two.keys()
        for token in one[prompt].keys() & two[prompt].keys()
    ]
    return max(gaps, default=None)


def judge(texts: pd.DataFrame, *, alpha: float) -> TextVerdict:
    """Judge the candidate's greedy texts. PASS says that no fault was seen, and no more.

    FAIL: a departure above the threshold; or, among departures without log-probabilities, when
    the baseline repeats itself on every prompt and at confidence 1 − ``alpha`` more than
    ``BENIGN_SHARE`` of the prompts part within ``EARLY`` characters. ERROR: the baseline contradicts itself.
    """
    n = compared(texts, arm=CANDIDATE)
    repeated = compared(texts, arm=REPEAT)
    ours, noise = departures(texts, CANDIDATE), departures(texts, REPEAT)
    worst = max(_deficits(noise), default=0.0)
    if worst > NO_BASELINE:
        detail = (
            f"the baseline departs from its own text by {worst:.2f} nats: it is not greedy, or not "
            "one server, so there is nothing to compare with"
        )
        return TextVerdict(Outcome.ERROR, detail, None)
    limit = threshold(texts)
    bad = _faulty(ours, limit)
    if bad:
        one = bad[0]
        detail = (
            f"{len(bad)} of {n} prompts depart beyond numerics; the first is {one.prompt} at token "
            f"{one.position}: {one.found!r} for {one.expected!r}, {_said(one)} nats less likely "
            f"(ties reach {limit:.2f}; the baseline differs from itself on {len(noise)} of {repeated})"
        )
        return TextVerdict(Outcome.FAIL, detail, one)
    return _without_faults(ours, noise, limit, alpha=alpha, prompts=(n, repeated))


def _without_faults(
    ours: Sequence[Departure],
    noise: Sequence[Departure],
    limit: float,
    *,
    alpha: float,
    prompts: tuple[int, int],
) -> TextVerdict:
    n, repeated = prompts
    unexplained = [one for one in ours if _is_open(one, limit)]
    early = [one for one in unexplained if one.character < EARLY]
    reproduces = repeated == n and n > 0 and not noise
    if early and reproduces and clopper_pearson(len(early), n, 1 - 2 * alpha)[0] > BENIGN_SHARE:
        detail = (
            f"{len(early)} of {n} prompts depart within {EARLY} characters, where the baseline "
            "repeats itself on every one; it gives no log-probabilities that could explain them"
        )
        return TextVerdict(Outcome.FAIL, detail, early[0])
    if n < LEAST_PROMPTS:
        detail = f"{n} prompts were answered by both, fewer than {LEAST_PROMPTS}"
        return TextVerdict(Outcome.INCONCLUSIVE, detail, None)
    if repeated < LEAST_PROMPTS:
        detail = f"the baseline repeated {repeated} prompts, fewer than {LEAST_PROMPTS}"
        return TextVerdict(Outcome.INCONCLUSIVE, detail, None)
    if unexplained:
        detail = (
            f"{len(unexplained)} of {n} prompts depart where no log-probabilities of the baseline "
            "tell a near-tie from a fault"
        )
        return TextVerdict(Outcome.INCONCLUSIVE, detail, None)
    if _more_ties(len(ours), n, len(noise), repeated, alpha):
        detail = (
            f"{len(ours)} of {n} prompts depart at near-ties, the baseline from itself on "
            f"{len(noise)} of {repeated}: more than numerics explain"
        )
        return TextVerdict(Outcome.INCONCLUSIVE, detail, None)
    detail = (
        f"no fault in {n} prompts: {len(ours)} depart, each at a near-tie of at most {limit:.2f} "
        f"nats; the baseline differs from itself on {len(noise)} of {repeated}"
    )
    return TextVerdict(Outcome.PASS, detail, None)


def _more_ties(ours: int, n: int, noise: int, repeated: int, alpha: float) -> bool:
    """Fisher's exact test, one-sided: does the candidate depart more often than the baseline?"""
    if ours == 0:
        return False
    table = np.array([[ours, n - ours], [noise, repeated - noise]])
    return float(stats.fisher_exact(table, alternative="greater").pvalue) < alpha


def _said(one: Departure) -> str:
    return f"{'at least ' if one.at_least else ''}{one.deficit:.2f}"


def _faulty(found: Sequence[Departure], limit: float) -> list[Departure]:
    return [one for one in found if one.deficit is not None and one.deficit > limit]


def _is_open(one: Departure, limit: float) -> bool:
    """Neither explained by a near-tie nor a fault: unknown, or a lower bound that says little."""
    return one.deficit is None or (one.at_least and one.deficit <= limit)


def _deficits(found: Sequence[Departure]) -> list[float]:
    return [one.deficit for one in found if one.deficit is not None]


def _complete(texts: pd.DataFrame, arm: str) -> dict[str, dict[str, object]]:
    rows = texts[(texts["arm"] == arm) & texts["reason"].isin(["stop", "length"])]
    records: list[dict[str, object]] = [
        {str(name): value for name, value in row.items()} for row in rows.to_dict("records")
    ]
    return {str(row["prompt"]): row for row in records}


def _departure(prompt: str, base: dict[str, object], other: dict[str, object]) -> Departure:
    expected, found = str(base["text"]), str(other["text"])
    shared = min(len(expected), len(found))
    at = next((i for i in range(shared) if expected[i] != found[i]), shared)
    scored = [str(token) for token in _list(base["scored"])]
    edges = [0, *accumulate(len(token) for token in scored)]
    known = "".join(scored) == expected
    position = max((i for i, edge in enumerate(edges[:-1]) if edge <= at), default=None)
    if not known or position is None or at >= len(expected):
        # no log-probabilities there: none at all, or the baseline ended and gives none for that
        return Departure(
            prompt, at, None, expected[at:][:20], found[at:][:20], None, at_least=False
        )
    begin = edges[position]
    if not _same_edges(other, edges, begin):
        return Departure(
            prompt, at, position, scored[position], found[begin:][:20], None, at_least=False
        )
    if begin == len(found) and other["reason"] != "stop":
        return Departure(prompt, at, position, scored[position], "", None, at_least=False)
    tops = list(zip(_texts_at(base, position), _floats_at(base, position), strict=True))
    deficit, at_least, token = _deficit(tops, scored[position], found[begin:])
    return Departure(prompt, at, position, scored[position], token, deficit, at_least=at_least)


def _deficit(
    tops: Sequence[tuple[str, float]], expected: str, rest: str
) -> tuple[float | None, bool, str]:
    """Deficit of what a text goes on with, whether it is a lower bound, and the token as known.

    A listed token that the text goes on with may be the one emitted, so the likeliest such token
    gives the smallest deficit that the text allows; where none is listed, it is at least that of the
    least likely one listed. A text that ends here emitted an end token, which may be any but the
    expected one.
    """
    listed = [logprob for _, logprob in tops]
    others = [(token, logprob) for token, logprob in tops if token != expected]
    if len(listed) < 2 or not others:  # noqa: PLR2004 - one token has no runner-up
        return None, False, rest[:20]
    best = max(listed)
    if not rest:
        return best - max(logprob for _, logprob in others), True, ""
    fits = [(token, logprob) for token, logprob in others if token and rest.startswith(token)]
    if fits:
        token, logprob = max(fits, key=lambda pair: pair[1])
        return best - logprob, False, token
    return best - min(listed), True, rest[:20]


def _same_edges(other: dict[str, object], edges: Sequence[int], begin: int) -> bool:
    """Whether the pieces of a text end where the baseline's tokens end, up to ``begin``.

    Else the same characters were other tokens, and the texts parted unseen before.
    """
    ends = accumulate(len(str(piece)) for piece in _list(other["pieces"]))
    return all(end in edges for end in ends if end <= begin)


def _first_logprobs(texts: pd.DataFrame, arm: str) -> dict[str, dict[str, float]]:
    found = {}
    for prompt, row in _complete(texts, arm).items():
        if len(_list(row["top_tokens"])):
            pairs = zip(_texts_at(row, 0), _floats_at(row, 0), strict=True)
            found[prompt] = dict(pairs)
    return found


def _texts_at(row: dict[str, object], position: int) -> list[str]:
    return [str(token) for token in _list(_list(row["top_tokens"])[position])]


def _floats_at(row: dict[str, object], position: int) -> list[float]:
    return [float(str(value)) for value in _list(_list(row["top_logprobs"])[position])]


def _list(value: object) -> list[object]:
    """A list column's cell: Parquet gives arrays back."""
    return [] if value is None else list(value)  # type: ignore[call-overload]
