"""From a request's constraint, a JSON schema or a regular expression, to the grammar of its answer.

llguidance refuses a schema keyword that it cannot enforce. One ignored in silence would make every
answer look valid.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from llguidance import LLMatcher, LLTokenizer

from gatekeeper.errors import InputError, TooLarge
from gatekeeper_adapters.engines.reference.grammar import TokenGrammar

if TYPE_CHECKING:
    from torch import Tensor

    from gatekeeper.core.decoding import Constraint, DecodeRequest

__all__ = ["Grammars"]

LARGEST = 64 * 1024
"""Characters of a schema or regular expression; the library bounds what they expand to."""

WHITE_SPACE = r"( |\n[ \t]{0,16})"
"""Between JSON tokens: one blank, or a line break with its indentation. Any run of white space is
JSON too, but small models that may write one sometimes write nothing else."""


class Grammars:
    """Makes the grammars of one engine's requests.

    The trie of the target's vocabulary takes half a second: the first constraint builds it. Grammars
    cost a millisecond and are not kept: copies of one share what the library bounds, the states of
    its lexer, and a request must not fail by what another did.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:  # noqa: ANN401 - untyped
        self._tokenizer = tokenizer
        self._vocab = vocab_size
        self._known: tuple[LLTokenizer, Tensor] | None = None

    def make(self, request: DecodeRequest) -> TokenGrammar | None:
        """The grammar of a request, or None where it has no constraint.

        Raises:
            InputError: the constraint cannot be enforced, or no answer satisfies it.
            TooLarge: it is longer than ``LARGEST``.
        """
        if request.constraint is None:
            return None
        text = _grammar(request.constraint)
        trie, tokens = self._vocabulary(request.constraint)
        matcher = LLMatcher(trie, text, log_level=0)
        if matcher.is_error():
            raise _refusal(request.constraint, _one_line(matcher.get_error()))
        grammar = TokenGrammar(matcher, tokens, request.end_tokens)
        if grammar.lost:
            raise _refusal(request.constraint, "has no answer that this vocabulary can spell")
        return grammar

    def _vocabulary(self, constraint: Constraint) -> tuple[LLTokenizer, Tensor]:
        """The trie of all tokens, and bool [V]: those for text, so neither special nor padding."""
        if self._known is not None:
            return self._known
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        try:
            # a request brings its own end tokens, and special tokens are masked: any id will do
            trie = LLTokenizer(
                self._tokenizer.to_str(), n_vocab=max(self._vocab, size), eos_token=0
            )
        except ValueError as error:
            raise InputError(
                f"needs a tokenizer that spells bytes ({error})",
                field=_field(constraint),
                value=_text(constraint),
                remedy="leave it out, or use a target with a byte-level tokenizer",
            ) from error
        ids = range(self._vocab)
        text = torch.tensor([token < size and not trie.is_special_token(token) for token in ids])
        self._known = trie, text
        return self._known


def _grammar(constraint: Constraint) -> str:
    """The constraint in the library's own format."""
    text = _text(constraint)
    if len(text) > LARGEST:
        raise TooLarge(
            "is too long",
            field=_field(constraint),
            value=len(text),
            remedy=f"use at most {LARGEST} characters",
        )
    grammar: str
    if constraint.regex is not None:
        grammar = LLMatcher.grammar_from_regex(text)
        return grammar
    try:
        schema = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _refusal(constraint, f"is not JSON ({_one_line(str(error))})") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _refusal(constraint, "is not an object")
    grammar = LLMatcher.grammar_from_json_schema(
        schema, overrides={"whitespace_pattern": WHITE_SPACE, "lenient": False}
    )
    return grammar


def _refusal(constraint: Constraint, what: str) -> InputError:
    remedy = (
        "use a JSON schema whose keywords can all be enforced"
        if constraint.regex is None
        else "use a regular expression without look-around and back-references"
    )
    return InputError(what, field=_field(constraint), value=_text(constraint), remedy=remedy)


def _field(constraint: Constraint) -> str:
    return "constraint.json_schema" if constraint.regex is None else "constraint.regex"


def _text(constraint: Constraint) -> str:
    return constraint.json_schema or constraint.regex or ""


def _one_line(message: str, limit: int = 200) -> str:
    """A message without the grammar that the library prints below it."""
    line = " ".join(message.split("<state>", maxsplit=1)[0].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
