"""A tiny random model whose tokens are single bytes: text of any kind from a second of work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ASCII = bytes([*range(32, 127), 10])
CHARACTERS = "é語🙂"
"""Two, three and four bytes: their bytes come out in any order, so most of them are broken."""


def write_byte_llama(folder: Path, letters: bytes = ASCII, **changes: Any) -> Path:
    """Tokens are the special ones and the given bytes, one each; ``<|im_end|>`` ends an answer."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    names = [*SPECIAL, *(symbol(byte) for byte in letters)]
    write_tiny_llama(folder, vocab=len(names), max_position_embeddings=2048, **changes)
    tokenizer = Tokenizer(BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=False))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = Decoder()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


def symbol(byte: int) -> str:
    """The character that byte-level tokenizers write for a byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return chr(byte)
    return chr(256 + sorted(set(range(256)) - set(plain)).index(byte))
