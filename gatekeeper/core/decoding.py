"""What a decode request asks for, independent of the engine that serves it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import is_number
from gatekeeper.errors import InputError, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GREEDY", "Constraint", "DecodeRequest", "Rates", "SamplingSettings", "TokenPrompt"]


@dataclass(frozen=True)
class SamplingSettings:
    """The processors that turn target logits into the one distribution every step samples from.

    Applied in this order: forbidden tokens and logit bias, repetition, presence and frequency
    penalties over prompt and output, temperature, top-k, top-p, min-p. ``temperature=0`` is
    greedy: the point mass on the arg max (lowest id on ties) after bias and penalties.
    ``top_k=0``, ``top_p=1``, ``min_p=0`` switch a filter off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    forbidden_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks: tuple[tuple[str, bool, str], ...] = (
            ("temperature", self.temperature >= 0, "use 0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "use 0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "use a value in (0, 1]"),
            ("min_p", 0 <= self.min_p < 1, "use a value in [0, 1)"),
            ("repetition_penalty", self.repetition_penalty > 0, "use a value above 0"),
        )
        for name, good, remedy in checks:
            if not good:
                raise InputError(
                    "is out of range", field=name, value=getattr(self, name), remedy=remedy
                )

    @property
    def greedy(self) -> bool:
        """Whether the processed distribution is a point mass."""
        return self.temperature == 0.0

    @property
    def label(self) -> str:
        """Short name for tables: the settings that differ from their defaults."""
        if self == GREEDY:
            return "greedy"
        parts = [f"T={self.temperature:g}"]
        for f in fields(self)[1:]:
            value = getattr(self, f.name)
            if value != f.default:
                parts.append(f"{f.name}={value:g}" if isinstance(value, (int, float)) else f.name)
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, field: str = "sampling") -> SamplingSettings:
        """Read settings from a document.

        Raises:
            UnknownKey: a key is not a setting.
            InputError: a value is out of range.
        """
        known = {f.name for f in fields(cls)}
        for key in document:
            if key not in known:
                raise UnknownKey(
                    "is not a sampling setting",
                    field=f"{field}.{key}",
                    value=document[key],
                    remedy=f"use one of {', '.join(sorted(known))}",
                )
        values = dict(document)
        for name, value in values.items():
            if name not in {"logit_bias", "forbidden_tokens"} and not is_number(value):
                raise InputError(
                    "is not a number", field=f"{field}.{name}", value=value, remedy="correct it"
                )
        if "logit_bias" in values:
            values["logit_bias"] = tuple((int(t), float(b)) for t, b in values["logit_bias"])
        if "forbidden_tokens" in values:
            values["forbidden_tokens"] = tuple(int(t) for t in values["forbidden_tokens"])
        return cls(**values)


GREEDY = SamplingSettings()
"""Deterministic decoding without processors."""


@dataclass(frozen=True)
class Constraint:
    """Structured output: ``json_schema`` (a JSON text) or ``regex``, which the whole answer matches."""

    json_schema: str | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        if (self.json_schema is None) == (self.regex is None):
            raise InputError(
                "needs exactly one of json_schema and regex",
                field="constraint",
                value=asdict(self),
                remedy="give one of them",
            )


@dataclass(frozen=True)
class DecodeRequest:
    """One sequence to decode.

    ``gamma=0`` is ordinary decoding with no draft work at all; with ``adaptive`` it is the longest
    window, and the engine shortens it where a shorter one is faster. ``evidence=True`` asks the
    engine to hand out the proposal distribution at every emitted position, the bonus included.
    ``stop`` texts end the answer with the token that completes one of them. ``logprobs`` asks for the
    target's log-probability of every emitted token and so many of the likeliest. ``proposer`` names
    one of an engine's proposers, None its only or first one.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingSettings = GREEDY
    seed: int = 0
    gamma: int = 0
    min_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    evidence: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    constraint: Constraint | None = None
    adaptive: bool = False
    proposer: str | None = None


@dataclass(frozen=True)
class TokenPrompt:
    """A workload prompt after tokenisation by the target's own tokenizer."""

    id: str
    slice: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Rates:
    """Measured speeds of the engine at hand, tokens per second, for honest estimates of time.

    A forward that scores an answer reads its prompt too: ``score_tokens_per_s`` counts the answers'
    tokens alone, ``read_tokens_per_s`` all that were read, prompts included. None where the run did
    not tell the two apart; a server's is its prefill, which is both.
    """

    decode_tokens_per_s: float
    score_tokens_per_s: float
    read_tokens_per_s: float | None = None

    def minutes(self, tokens: int, prompt_tokens: int) -> float:
        """Minutes to decode and to read so many tokens."""
        read = self.read_tokens_per_s or self.score_tokens_per_s
        return (tokens / self.decode_tokens_per_s + prompt_tokens / read) / 60
