from __future__ import annotations

import json
from typing import Any

import pytest

from gatekeeper.core.routing import CallFacts, Rule, explain, route_of
from gatekeeper.errors import InputError, UnknownKey

CALL = CallFacts(
    service="shop",
    agent="checkout",
    model="smol-135m",
    operation="chat",
    attributes={"tenant": "acme", "tier": 2},
)
RULES = (
    Rule("vip", service="shop", attributes=(("tenant", "initech"),)),
    Rule("checkout", agent="checkout"),
    Rule("shop", service="shop"),
)


def test_first_match_wins() -> None:
    assert route_of(RULES, CALL) == "checkout"
    assert route_of(RULES[::-1], CALL) == "shop"


def test_unmatched_is_no_route() -> None:
    assert route_of((), CALL) is None
    assert route_of((Rule("x", model="other"),), CALL) is None


@pytest.mark.parametrize(
    ("fact", "pattern", "matches"),
    [
        ("service", "shop", True),
        ("service", "Shop", False),
        ("service", "sh*", True),
        ("agent", "check", False),
        ("model", "smol-???m", True),
        ("operation", "chat", True),
        ("operation", "embed", False),
    ],
)
def test_patterns(fact: str, pattern: str, *, matches: bool) -> None:
    assert (route_of((Rule("r", **{fact: pattern}),), CALL) == "r") is matches


def test_every_condition_must_hold() -> None:
    both = Rule("r", service="shop", attributes=(("tenant", "acme"), ("tier", "2")))
    assert route_of((both,), CALL) == "r"
    assert route_of((Rule("r", service="shop", model="other"),), CALL) is None


def test_an_absent_fact_matches_nothing() -> None:
    assert route_of((Rule("r", service="*"),), CallFacts()) is None
    assert route_of((Rule("r", attributes=(("tenant", "*"),)),), CallFacts()) is None


def test_an_application_may_name_its_route() -> None:
    rule = Rule.from_dict({"gatekeeper.route": "search*"}, route="search")
    named = CallFacts(attributes={"gatekeeper.route": "search-eu"})
    assert route_of((rule,), named) == "search"
    assert route_of((rule,), CALL) is None


def test_explanations_say_why() -> None:
    explained = explain(RULES, CALL)
    assert [t.failed for t in explained.tried] == ["tenant is acme, not initech", None]
    assert explained.sentence == "checkout: rule 2 matches (agent = checkout)."
    none = explain(RULES[:1], CallFacts(service="shop"))
    assert none.sentence == "No route: rule 1: tenant is absent."
    assert explain((), CALL).sentence == "No route: no route has rules."


def test_rules_survive_json() -> None:
    for rule in RULES:
        assert Rule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@pytest.mark.parametrize(
    ("document", "error", "match"),
    [
        ({"route": "r", "servise": "x"}, UnknownKey, r"rule\.servise=x"),
        ({"route": "r"}, InputError, "match every call"),
        ({"service": "x"}, InputError, r"rule\.route"),
        ({"route": "r", "service": 7}, InputError, r"rule\.service=7"),
        ({"route": "r", "attributes": {"a": 1}}, InputError, r"rule\.a=1"),
        ({"route": "r", "attributes": ["a"]}, InputError, r"rule\.attributes"),
    ],
)
def test_bad_rules_are_refused(
    document: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Rule.from_dict(document)
