"""Texts a target wrote, with its hidden states: what drafters learn from and are judged by."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["Text", "read_texts", "write_texts"]


@dataclass(frozen=True)
class Text:
    """The end of a prompt and the target's answer.

    ``tokens`` int64 [n], the first ``first`` of them prompt; ``states`` [n − 1, H] the target's last
    hidden state after its final norm, row r having read token r. Drafting starts when the token
    before is committed, so what a drafter says at depth d counts at the rows of ``rows(d)``: row r
    is the place whose token the target's state r decides.
    """

    prompt: str
    tokens: Tensor
    states: Tensor
    first: int
    greedy: bool
    held_out: bool

    def rows(self, depth: int) -> range:
        """Rows at which depth ``depth`` (1 is the first draft token) can be judged."""
        return range(self.first + depth - 1, len(self.states))

    def whole(self) -> Text:
        """The same with all but its first token as the answer: the prompt is read text to learn from."""
        return replace(self, first=1)


def write_texts(texts: Sequence[Text], path: Path, recipe: str) -> None:
    """Write texts and the recipe they came from as one safetensors file, by one rename."""
    tensors = {
        "tokens": torch.cat([text.tokens for text in texts]).to(torch.int32),
        "states": torch.cat([text.states for text in texts]),
        "lengths": torch.tensor([len(text.tokens) for text in texts], dtype=torch.int32),
        "first": torch.tensor([text.first for text in texts], dtype=torch.int32),
        "greedy": torch.tensor([text.greedy for text in texts], dtype=torch.uint8),
        "held_out": torch.tensor([text.held_out for text in texts], dtype=torch.uint8),
    }
    work = path.with_name(f".{path.name}.{os.getpid()}")
    names = json.dumps([text.prompt for text in texts])
    save_file(tensors, work, metadata={"prompts": names, "recipe": recipe})
    work.replace(path)


def read_texts(path: Path) -> list[Text]:
    """Read what ``write_texts`` wrote."""
    with safe_open(path, framework="pt") as file:
        names = json.loads(file.metadata()["prompts"])
        tokens, states = file.get_tensor("tokens").long(), file.get_tensor("states")
        lengths = file.get_tensor("lengths").tolist()
        marks = [file.get_tensor(name).tolist() for name in ("first", "greedy", "held_out")]
    parts = zip(
        names, tokens.split(lengths), states.split([n - 1 for n in lengths]), *marks, strict=True
    )
    return [
        Text(name, text, rows, first, bool(greedy), bool(held_out))
        for name, text, rows, first, greedy, held_out in parts
    ]
