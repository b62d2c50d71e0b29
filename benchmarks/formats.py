"""What numerical formats and distributed sums do to greedy text: the same bits, ties, or faults.

    python benchmarks/formats.py [--prompts 3] [--tokens 24] [--json FILE]

A tiny random Llama in float32 and bfloat16, its KV cache in either, on one rank and split over two that sum
over gloo on loopback. Each format is compared with itself (windows against one token at a time, under its
own dense forward) and with the first one (ordinary text, under the first one's dense forward). Bitwise:
all logits of the same text are the same bits, so texts must be too. Else a deficit up to τ is a tie, one
above it a fault; τ comes from the noise that the coarser format is assumed to have, never from the
difference that is judged.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where the forward and the model live
from sharded_llama import Format, ShardedLlama, judge, run_ranks
from tiny_models import write_tiny_llama

from gatekeeper.core.stats import greedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FORMATS", "Compared", "compare", "report", "tiny_model"]

FORMATS = tuple(
    Format(dtype, kv, ranks)
    for ranks in (1, 2)
    for dtype, kv in (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"))
)
VOCAB, GAMMA, TAU_SIGMA = 97, 4, 10.0

Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Compared:
    """One pair: ``other`` judged against ``base``.

    ``sigma`` is the sd of the logits' difference on the same text, ``tau`` the largest deficit of a tie;
    ``differing`` counts texts, ``ties`` and ``faults`` positions, ``largest`` is the largest deficit.
    """

    other: str
    base: str
    bitwise: bool
    sigma: float
    tau: float
    positions: int
    differing: int
    ties: int
    faults: int
    largest: float
    outcome: str


@dataclass(frozen=True)
class Texts:
    """Texts of one arm: token ids, and the judge's logits [n, V] before each, by prompt."""

    tokens: Sequence[Sequence[int]]
    logits: Sequence[Logits]

    def rows(self, arm: str) -> list[tuple[str, str, int, int, float]]:
        """Rows of the greedy table."""
        return [
            (arm, str(prompt), i, token, float(row.max() - row[token]))
            for prompt, (text, logits) in enumerate(zip(self.tokens, self.logits, strict=True))
            for i, (token, row) in enumerate(zip(map(int, text), logits, strict=True))
        ]


def compare(
    names: tuple[str, str],
    base: Texts,
    other: Texts,
    same: Sequence[tuple[Logits, Logits]],
    *,
    assumed: float,
) -> Compared:
    """Judge ``other`` against ``base`` by the rule of the gate's greedy part.

    ``names`` of other and base; ``same`` the logits of both on the same texts; ``assumed`` the sd a
    logit that the coarser format is allowed.
    """
    bitwise = all(np.array_equal(a, b) for a, b in same)
    table = pd.DataFrame(
        base.rows("ordinary") + other.rows("speculative"), columns=list(greedy.COLUMNS)
    ).astype(greedy.COLUMNS)
    found = greedy.judge(
        table,
        rule="bitwise" if bitwise else "deficit",
        sigma=assumed,
        tau_sigma=TAU_SIGMA,
        prompts=len(base.tokens),
    )
    texts = [np.array_equal(a, b) for a, b in zip(base.tokens, other.tokens, strict=True)]
    return Compared(
        other=names[0],
        base=names[1],
        bitwise=bitwise,
        sigma=greedy.logit_sigma(
            *(_softmax(np.concatenate(side)) for side in zip(*same, strict=True))
        ),
        tau=found.tau,
        positions=found.positions,
        differing=texts.count(False),
        ties=found.ties,
        faults=found.mismatches,
        largest=float(table.loc[table["arm"] == "speculative", "deficit"].max()),
        outcome=str(found.outcome),
    )


def _softmax(x: Logits) -> Logits:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def report(
    folder: Path, scratch: Path, *, prompts: int, tokens: int, lost: int = 0
) -> list[Compared]:
    """Every format against itself, then against the first.

    ``lost`` plants a fault: of every so many sums over two ranks, the second one's part is missing.
    """
    asked = [[1, *((13 * i + 7 * j) % VOCAB for j in range(4 + i))] for i in range(prompts)]
    job = {"prompts": asked, "tokens": tokens, "gamma": GAMMA, "texts": [], "lost": lost}
    (first,) = run_ranks(folder, FORMATS[:1], job, scratch)
    job["texts"] = [first[f"ordinary text {i}"].tolist() for i in range(prompts)]
    judge_of_all = ShardedLlama(folder, FORMATS[0])
    reference = _arm(first, "ordinary", prompts)
    measured = [first]
    for ranks, forms in groupby(FORMATS[1:], lambda form: form.ranks):
        measured += run_ranks(folder, list(forms), job, scratch / f"{ranks} ranks")
    within, across = [], []
    for number, (form, found) in enumerate(zip(FORMATS, measured, strict=True)):
        ordinary, windows = (_arm(found, name, prompts) for name in ("ordinary", "windows"))
        within.append(
            compare(
                (f"{form.name}: windows", "one token at a time"),
                ordinary,
                windows,
                _alike(found, prompts),
                assumed=_assumed(form),
            )
        )
        if number:
            judged = [
                np.asarray(judge(judge_of_all, asked[i], ordinary.tokens[i]))
                for i in range(prompts)
            ]
            across.append(
                compare(
                    (form.name, FORMATS[0].name),
                    reference,
                    Texts(ordinary.tokens, judged),
                    [(reference.logits[i], found[f"given {i}"]) for i in range(prompts)],
                    assumed=_assumed(form),
                )
            )
    return within + across


def _arm(found: Mapping[str, Any], name: str, prompts: int) -> Texts:
    return Texts(
        [found[f"{name} text {i}"].tolist() for i in range(prompts)],
        [found[f"{name} judged {i}"] for i in range(prompts)],
    )


def _alike(found: Mapping[str, Any], prompts: int) -> list[tuple[Logits, Logits]]:
    """Logits that chose the tokens in both arms, as far as their texts agree."""
    pairs = []
    for i in range(prompts):
        one, other = found[f"ordinary text {i}"], found[f"windows text {i}"]
        same = int(np.argmin(one == other)) if (one != other).any() else len(one) - 1
        # the first differing token was still chosen on the same text
        pairs.append(
            (found[f"ordinary logits {i}"][: same + 1], found[f"windows logits {i}"][: same + 1])
        )
    return pairs


def _assumed(form: Format) -> float:
    return max(greedy.DEFAULT_SIGMA[form.dtype], greedy.DEFAULT_SIGMA[form.kv])


def tiny_model(prompts: int = 6, tokens: int = 48) -> dict[str, Any]:
    """The report on a tiny model, as a part of a long stage."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_tiny_llama(Path(scratch) / "model", vocab=VOCAB)
        rows = report(folder, Path(scratch), prompts=prompts, tokens=tokens)
    return {
        "formats": [asdict(row) for row in rows],
        "holds": all(r.outcome == "PASS" for r in rows),
    }


def _table(rows: Sequence[Compared]) -> str:
    lines = [f"{'':48s} bits  σ        τ        differ  ties  faults  largest  outcome"]
    lines += [
        f"{row.other:48s} {'same' if row.bitwise else 'other':5s} {row.sigma:<8.2g} {row.tau:<8.2g} "
        f"{row.differing:>6d} {row.ties:>5d} {row.faults:>7d}  {row.largest:<8.2g} {row.outcome}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = tiny_model(chosen.prompts, chosen.tokens)
    print(_table([Compared(**row) for row in found["formats"]]))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
