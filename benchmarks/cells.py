"""End to end, prompts included: where speculation is faster than our own ordinary decoding, and where not.

Each cell decodes the same prompts of a slice both ways, greedily and up to the same length, so that both
write the same text; CPU time, one thread, the two interleaved and the faster of each kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpu_time import Case, fastest
from proposer_speed import open_several

from gatekeeper import workloads
from gatekeeper.core.decoding import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.core.decoding import TokenPrompt

__all__ = ["CELLS", "Cell", "cells"]

KINDS = ("draft_lm", "eagle", "early exit")
SLOTS = 8


@dataclass(frozen=True)
class Cell:
    """A kind on a slice with a window, alone or in a full batch."""

    kind: str
    slice: str
    gamma: int
    batch: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.kind} on {self.slice}, gamma {self.gamma}, batch {self.batch}"


CELLS = (
    Cell("ngram", "tool_calls", 4, 1),
    Cell("ngram", "long_context", 4, 1),
    Cell("draft_lm", "code", 2, 1),
    Cell("eagle", "code", 2, 1),
    Cell("ngram", "prose", 4, 1),
    Cell("early exit", "code", 2, 1),
    Cell("draft_lm", "code", 4, SLOTS),
    Cell("ngram", "prose", 8, SLOTS),
)


def cells(dtype: str, tokens: int, repeats: int) -> dict[str, float]:
    """Ratio of every cell: speculative over ordinary tokens per CPU second."""
    engine = open_several(KINDS, dtype, slots=SLOTS, prefixes=0)
    found: dict[str, float] = {}
    for cell in CELLS:
        # short answers would leave little but prompts; a few prompts of each slice suffice
        longest = 900 if cell.slice == "long_context" else 160
        prompts = workloads.tokenised(cell.slice, engine.tokenize, max_tokens=longest)
        count = SLOTS if cell.batch > 1 else 2
        chosen = [prompts[i * len(prompts) // count] for i in range(count)]
        ways = [
            Case(name, _way(engine, chosen, tokens, cell, gamma))
            for name, gamma in (("ordinary", 0), ("speculative", cell.gamma))
        ]
        rates = fastest(ways, repeats)
        found[cell.name] = rates["speculative"] / rates["ordinary"]
    engine.close()
    return found


def _way(
    engine: Any,  # noqa: ANN401 - the engine under test
    prompts: Sequence[TokenPrompt],
    tokens: int,
    cell: Cell,
    gamma: int,
) -> Callable[[], int]:
    def run() -> int:
        count = 0
        for start in range(0, len(prompts), cell.batch):
            left = 0
            for prompt in prompts[start : start + cell.batch]:
                request = DecodeRequest(
                    prompt.id,
                    prompt.tokens,
                    tokens,
                    gamma=gamma,
                    end_tokens=engine.info.end_tokens,
                    proposer=cell.kind if gamma else None,
                )
                engine.submit(request)
                left += 1
            while left:
                result = engine.step()
                count += sum(entry.committed for entry in result.rounds)
                left -= len(result.finished)
        return count

    return run
