"""A small byte-level tokenizer for tiny models, and an oracle for constraints of finitely many answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = ("<unk>", "<s>", "</s>")
END = 2
CHARACTERS = 'abcdefghijklmnopqrstuvwxyz0123456789{}[]":,.-+_/\\ETN \n'
LONGER = (
    '{"',
    '":',
    '",',
    '"}',
    "ab",
    "abc",
    "bc",
    "ca",
    "10",
    "12",
    "true",
    "false",
    "null",
    "tr",
)
WORDS = (*SPECIAL, *CHARACTERS, *LONGER)
"""Token texts by id; ids from here to the model's vocabulary are padding."""


def write_byte_tokenizer(folder: Path) -> None:
    """Replace a tiny model's tokenizer; text is encoded character by character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    written = {" ": "Ġ", "\n": "Ċ"}
    vocab = {
        "".join(written.get(c, c) for c in word) if i >= len(SPECIAL) else word: i
        for i, word in enumerate(WORDS)
    }
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))


def ids(text: str) -> list[int]:
    """Single-character tokens of a text."""
    return [WORDS.index(character) for character in text]


def spelled(tokens: Any) -> str:
    """Text of tokens, an end token left out."""
    return "".join(WORDS[token] for token in tokens if token != END)


@dataclass(frozen=True)
class Language:
    """All answers of a constraint, written down: what may follow is found by looking."""

    answers: frozenset[str]

    @classmethod
    def of(cls, *answers: str) -> Language:
        return cls(frozenset(answers))

    def allowed(self, tokens: Any, *, ends: bool = True) -> set[int]:
        """Tokens after which an answer is still possible, or is whole."""
        text = spelled(tokens)
        found = {
            token
            for token in range(len(SPECIAL), len(WORDS))
            if any(answer.startswith(text + WORDS[token]) for answer in self.answers)
        }
        return found | ({END} if ends and text in self.answers else set())
