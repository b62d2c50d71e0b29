"""All dialects as the tables that are looked things up in: of each, the first entry wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.core.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gatekeeper.core.dialects.base import Delay, Dialect, ServerPhases

__all__ = ["VOCABULARY", "Classified", "Vocabulary", "vocabulary"]


@dataclass(frozen=True)
class Classified:
    """A span's kind and the rule that said so.

    ``told`` is False where only the presence of an attribute hints at the kind: totals stand on
    spans above the calls too. ``waits_apart`` is True where the dialect gives waiting for a person
    spans of its own.
    """

    kind: str
    rule: str
    told: bool = True
    waits_apart: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Merged tables. Attribute names come with the rule that they are, in words."""

    kind_by_value: tuple[tuple[str, Mapping[str, Classified]], ...]
    kind_by_name: tuple[tuple[re.Pattern[str], str | None, Classified], ...]
    kind_by_presence: tuple[tuple[str, Classified], ...]
    output_tokens: Mapping[str, str]
    input_tokens: Mapping[str, str]
    total_tokens: Mapping[str, str]
    models: Mapping[str, str]
    first_token_delays: tuple[tuple[Delay, str], ...]
    first_token_times: Mapping[str, str]
    first_token_events: Mapping[str, str]
    answer_lengths: tuple[Delay, ...]
    server_phases: tuple[tuple[ServerPhases, str], ...]
    attempt_counts: tuple[tuple[re.Pattern[str], str], ...]
    attempt_events: frozenset[str]
    resend_counts: frozenset[str]
    error_statuses: tuple[str, ...]
    restates_parent: frozenset[str]
    waits_for_prefill: frozenset[str]


def vocabulary(dialects: Sequence[Dialect]) -> Vocabulary:
    """Merge dialects, the earlier before the later."""
    by_value: dict[str, dict[str, Classified]] = {}
    for d in dialects:
        for key, meaning in d.kind_by_value.items():
            table = by_value.setdefault(key, {})
            for value, kind in meaning.items():
                rule = f"{d.name}: {key} = {value}"
                table.setdefault(
                    value.casefold(), Classified(kind, rule, waits_apart=d.separates_human_wait)
                )
    presence: dict[str, Classified] = {}
    for d in dialects:
        for key, kind in d.kind_by_presence.items():
            rule = f"{d.name}: has {key}"
            presence.setdefault(
                key, Classified(kind, rule, told=False, waits_apart=d.separates_human_wait)
            )
    return Vocabulary(
        kind_by_value=tuple(by_value.items()),
        kind_by_name=tuple(
            (
                re.compile(named.pattern, re.IGNORECASE),
                named.needs,
                Classified(
                    named.kind,
                    f"{d.name}: name like {named.pattern}"
                    + (f" with {named.needs}" if named.needs else ""),
                    waits_apart=d.separates_human_wait,
                ),
            )
            for d in dialects
            for named in d.kind_by_name
        ),
        kind_by_presence=tuple(presence.items()),
        output_tokens=_first((f"{d.name}:", d.output_tokens) for d in dialects),
        input_tokens=_first((f"{d.name}:", d.input_tokens) for d in dialects),
        total_tokens=_first((f"{d.name}:", d.total_tokens) for d in dialects),
        models=_first((f"{d.name}:", d.models) for d in dialects),
        first_token_delays=tuple(
            (k, f"{d.name}: {k.key}") for d in dialects for k in d.first_token_delays
        ),
        first_token_times=_first((f"{d.name}:", d.first_token_times) for d in dialects),
        first_token_events=_first((f"{d.name}: event", d.first_token_events) for d in dialects),
        answer_lengths=tuple(k for d in dialects for k in d.answer_lengths),
        server_phases=tuple((d.server_phases, d.name) for d in dialects if d.server_phases),
        attempt_counts=tuple(
            (re.compile(d.span_names or "", re.IGNORECASE), key)
            for d in dialects
            for key in d.attempt_counts
        ),
        attempt_events=frozenset(name for d in dialects for name in d.attempt_events),
        resend_counts=frozenset(key for d in dialects for key in d.resend_counts),
        error_statuses=tuple(key for d in dialects for key in d.error_statuses),
        restates_parent=frozenset(name for d in dialects for name in d.restates_parent),
        waits_for_prefill=frozenset(key for d in dialects for key in d.waits_for_prefill),
    )


def _first(tables: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Name to rule, in order; a name that two dialects share belongs to the first."""
    merged: dict[str, str] = {}
    for label, keys in tables:
        for key in keys:
            merged.setdefault(key, f"{label} {key}")
    return merged


VOCABULARY = vocabulary(DIALECTS)
"""The tables of every known dialect."""
