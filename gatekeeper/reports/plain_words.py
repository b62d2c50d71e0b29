"""Words for readers without statistics: settings, kinds of tokens, known faults, prompts."""

from __future__ import annotations

import re

from gatekeeper.reports import number_forms as forms

__all__ = [
    "FACTS",
    "KNOWN_FAULTS",
    "SCOPE",
    "UNSEEN",
    "chance",
    "in_number",
    "kind_of_token",
    "prompt_words",
    "quoted",
    "setting_words",
    "times_in",
]

SCOPE = (
    "It says nothing of the speed, nor of whether the answers are any good: other tests ask that."
)

KNOWN_FAULTS = {
    "correction drawn from q": "a rejected guess is replaced by another guess",
    "acceptance of every draft with p > 0.1": "every guess that is not too unlikely is kept",
    "residual not subtracted": "a rejected guess is replaced without making up for the rejection",
    "q at the wrong temperature": "the draft guesses at another temperature than it says",
    "bonus drawn from q": "the token that follows the guesses is a guess as well",
    "acceptance 1.1 times too lenient": "guesses are kept one tenth too easily",
    "repetition penalty ignoring the window": "the penalty on repetition forgets the guesses",
}
"""The reference faults of ``core.stats.power`` by name."""

UNSEEN = {
    "weights of both servers": "Whether both servers have loaded the same model.",
    "version of both servers": "Which version of their program they run, and when it changes.",
    "gamma": "How many tokens ahead the draft guesses.",
    "acceptance method and sampler": "By which rule guesses are kept or rejected.",
    "tokenizer and chat template": "Whether both cut and frame a text alike.",
    "sampled distribution": "Whether text drawn at random comes out as often as it should.",
}
"""What two running servers do not disclose, by the name that their gate gives it."""

_NUMBERS = "the way its numbers are rounded"
FACTS = {
    "engine": "the engine's version",
    "device": "the device",
    "vocabulary": "the number of different tokens",
    "identity_rule": _NUMBERS,
    "dtype": _NUMBERS,
    "sigma": _NUMBERS,
    "delta": _NUMBERS,
    "gamma": "how many tokens ahead the draft guesses",
    "contract": "what the pair promises",
    "alternatives": "the faults that are looked for",
    "design": "its plan",
    "setting": "the random settings",
    "deviation": "the difference that is admitted",
    "positions": "whether the place of each token among the guesses is known",
}
"""What makes two equivalence runs one test, by the name in their evidence."""

_KINDS = {
    "most probable token": "the model's likeliest token",
    "among the 4 most probable": "one of the model's four likeliest tokens",
    "probability at least 0.1": "a likely token",
    "probability below 0.01": "an unlikely token",
    "proposal at least as probable as target": "a token that the draft likes more than the model",
    "proposal at least e times as probable": "a token that the draft likes far more than the model",
    "proposal's most probable token": "the draft's likeliest token",
    "seen in the last 32 tokens": "a token that was there shortly before",
    "end token": "the end of the answer",
}
_TURN = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_BEGIN, _END = 120, 160
_BASES = (10, 100, 1000)
_SLACK = 1e-9


def kind_of_token(feature: str) -> str:
    """A feature of the declared tolerance as a kind of token."""
    return _KINDS.get(feature, "tokens of one half of the vocabulary")


def setting_words(label: str) -> str:
    """A sampling setting's label: ``T=1 top_p=0.9`` as ``temperature 1, top p 0.9``."""
    words = (part.replace("T=", "temperature ").replace("=", " ") for part in label.split())
    return ", ".join(words).replace("_", " ")


def prompt_words(text: str) -> str:
    """What a ChatML prompt asks: its last user's turn on one line, the middle of a long one left out."""
    turns = _TURN.findall(text)
    words = " ".join((turns[-1] if turns else text).split())
    if len(words) <= _BEGIN + _END:
        return words
    return f"{words[:_BEGIN].rstrip()} … {words[-_END:].lstrip()}"


def quoted(text: str) -> str:
    """A text in quotes, its line breaks visible."""
    return f"“{text.replace(chr(10), '⏎')}”"


def in_number(share: float) -> str:
    """A share as ``1 in 50`` where that is what it is, else as so many in a hundred."""
    whole = round(1 / share) if share > 0 else 0
    if whole and abs(whole * share - 1) < _SLACK:
        return f"1 in {forms.count(whole)}"
    return f"{forms.plain(100 * share)} in 100"


def chance(probability: float) -> str:
    """An estimated probability: never quite 0 or 1."""
    return forms.share(min(max(probability, _SLACK), 1 - _SLACK))


def times_in(probability: float) -> str:
    """A probability as ``9 times in 10``."""
    for base in _BASES:
        if abs(round(probability * base) - probability * base) < _SLACK:
            return f"{round(probability * base)} times in {base}"
    return f"{forms.plain(100 * probability)} times in 100"
