"""Which route a model call belongs to: declared rules, the first match wins."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import mapping, refuse_unknown
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROUTE_ATTRIBUTE", "CallFacts", "Explanation", "Rule", "Tried", "explain", "route_of"]

ROUTE_ATTRIBUTE = "gatekeeper.route"
"""Span attribute by which an application names the route itself."""

_FACTS = ("service", "agent", "model", "operation")


@dataclass(frozen=True)
class CallFacts:
    """What a rule can look at in one model call; None where the trace does not say."""

    service: str | None = None
    agent: str | None = None
    model: str | None = None
    operation: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """Conditions that must all hold for a call to belong to ``route``.

    Each condition is a pattern with ``*`` and ``?``, compared case by case with the fact as text;
    a fact that is absent matches no pattern. ``attributes`` are (span attribute, pattern) pairs.
    """

    route: str
    service: str | None = None
    agent: str | None = None
    model: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.route:
            raise InputError("is missing", field="rule.route", remedy="name the route")
        if not self.conditions:
            raise InputError(
                "would match every call",
                field="rule",
                value=self.route,
                remedy='give a condition, such as service: "*"',
            )

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """(fact, pattern) pairs in the order in which they are tried."""
        named = [(f, getattr(self, f)) for f in _FACTS if getattr(self, f) is not None]
        return (*named, *self.attributes)

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], *, route: str | None = None, field: str = "rule"
    ) -> Rule:
        """Read ``{route, service, agent, model, operation, "gatekeeper.route", attributes: {…}}``.

        ``route`` is given where the document belongs to a route and does not repeat its name.

        Raises:
            UnknownKey: a key that no rule has.
            InputError: a pattern that is not text, no condition, or no route.
        """
        known = [*_FACTS, ROUTE_ATTRIBUTE, "attributes", "route"]
        refuse_unknown(mapping(dict(document), field=field), known, field=field)
        attributes = dict(mapping(document.get("attributes", {}), field=f"{field}.attributes"))
        if ROUTE_ATTRIBUTE in document:
            attributes[ROUTE_ATTRIBUTE] = document[ROUTE_ATTRIBUTE]
        texts = {f: document[f] for f in _FACTS if f in document}
        for name, pattern in {**texts, **attributes}.items():
            if not isinstance(pattern, str):
                raise InputError(
                    "is not a pattern",
                    field=f"{field}.{name}",
                    value=pattern,
                    remedy="use text; * stands for anything",
                )
        named = document.get("route", route)
        return cls(route=named or "", **texts, attributes=tuple(attributes.items()))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        document: dict[str, Any] = {"route": self.route}
        document |= {f: getattr(self, f) for f in _FACTS if getattr(self, f) is not None}
        if self.attributes:
            document["attributes"] = dict(self.attributes)
        return document


@dataclass(frozen=True)
class Tried:
    """One rule beside the first of its conditions that did not hold, None when all held."""

    rule: Rule
    failed: str | None


@dataclass(frozen=True)
class Explanation:
    """The route, None where no rule matched, and every rule tried up to the match."""

    route: str | None
    tried: tuple[Tried, ...]

    @property
    def sentence(self) -> str:
        """Plain words for ``route test``."""
        if self.route is not None:
            held = ", ".join(f"{f} = {p}" for f, p in self.tried[-1].rule.conditions)
            return f"{self.route}: rule {len(self.tried)} matches ({held})."
        reasons = "; ".join(f"rule {i}: {t.failed}" for i, t in enumerate(self.tried, 1))
        return f"No route: {reasons or 'no route has rules'}."


def explain(rules: Sequence[Rule], call: CallFacts) -> Explanation:
    """Try the rules in order and say why each did not match, until one does."""
    tried: list[Tried] = []
    for rule in rules:
        failed = _first_failure(rule, call)
        tried.append(Tried(rule, failed))
        if failed is None:
            return Explanation(rule.route, tuple(tried))
    return Explanation(None, tuple(tried))


def route_of(rules: Sequence[Rule], call: CallFacts) -> str | None:
    """The route of the first matching rule; None when none matches: never priced, but counted."""
    return explain(rules, call).route


def _first_failure(rule: Rule, call: CallFacts) -> str | None:
    for name, pattern in rule.conditions:
        fact = getattr(call, name) if name in _FACTS else call.attributes.get(name)
        if fact is None:
            return f"{name} is absent"
        if not fnmatchcase(str(fact), pattern):
            return f"{name} is {fact}, not {pattern}"
    return None
