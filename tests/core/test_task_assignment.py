from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from span_builders import span, trace

from gatekeeper.core.routing import Rule
from gatekeeper.core.task_assignment import (
    RoutedRules,
    Routing,
    TaskRules,
    assign,
    conversation_of,
    joined,
    owners,
    session_of,
)
from gatekeeper.core.task_profile import profile_task
from gatekeeper.core.tasks import build_task
from gatekeeper.errors import InputError, UnknownKey

CHAT = {"kind": "model", "langfuse__completion_start_ns": 1}


def routing(**rules: Rule) -> Routing:
    return Routing(tuple(RoutedRules(name, (rule,)) for name, rule in sorted(rules.items())))


def assigned(*spans: Any, using: Routing) -> dict[str, str | None]:
    return {c.span_id: c.route for c in assign(build_task(trace(*spans)), using)}


def test_routes_are_tried_by_name_and_what_matches_nothing_is_kept_as_nothing() -> None:
    using = routing(
        a=Rule("a", model="big*"), b=Rule("b", attributes=(("tier", "gold"),), agent="shop")
    )
    found = assigned(
        span("root", 0, 90, gen_ai__agent__name="shop"),
        span("one", 0, 10, parent="root", gen_ai__request__model="big-1", tier="gold", **CHAT),
        span("two", 10, 20, parent="root", gen_ai__request__model="small", tier="gold", **CHAT),
        span("three", 20, 30, parent="root", **CHAT),
        span("tool", 30, 40, parent="root", kind="tool"),
        using=using,
    )
    assert found == {"one": "a", "two": "b", "three": None}


def test_the_name_of_an_existing_route_wins_over_every_rule_also_from_above() -> None:
    using = Routing((RoutedRules("shop"), RoutedRules("a", (Rule("a", model="*"),))))
    spans = (
        span("root", 0, 90, gatekeeper__route="shop"),
        span("one", 0, 10, parent="root", gen_ai__request__model="m", **CHAT),
        span("two", 10, 20, parent="root", gatekeeper__route="a", **CHAT),
        span("three", 20, 30, parent="root", gatekeeper__route="nowhere", **CHAT),
        span("four", 30, 40, parent="root", gatekeeper__route="nowhere", model="m", **CHAT),
    )
    assert assigned(*spans, using=using) == {
        "one": "shop",
        "two": "a",
        "three": None,
        "four": None,
    }
    (first, *_) = assign(build_task(trace(*spans)), using)
    assert "gatekeeper.route" in first.why


def test_a_rule_may_look_at_the_inherited_route_attribute() -> None:
    using = routing(desk=Rule("desk", attributes=(("gatekeeper.route", "order-desk/*"),)))
    found = assigned(
        span("root", 0, 90, gatekeeper__route="order-desk/answer"),
        span("call", 0, 10, parent="root", **CHAT),
        using=using,
    )
    assert found == {"call": "desk"}


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("chat 1", "gatekeeper route set 'chat 1' --slice SLICE --artifact DIGEST --policy POLICY"),
        ("desk/answer", 'the rule gatekeeper.route: "desk/answer"'),
        (None, "names none in gatekeeper.route, and no route has rules (the key rules in the YAML"),
    ],
)
def test_why_a_call_has_no_route_says_what_would_give_it_one(named: str | None, words: str) -> None:
    more = {} if named is None else {"gatekeeper__route": named}
    task = build_task(trace(span("call", 0, 10, **CHAT, **more)))
    (call,) = assign(task, Routing((RoutedRules("shop", ()),)))
    assert call.route is None
    assert words in call.why
    assert call.why.startswith("No route")
    assert ("no route has rules" in call.why) is (named is None)


def test_what_is_inherited_is_looked_up_once_a_span_however_deep() -> None:
    class Counted(dict[str, Any]):
        looked_up = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.looked_up += 1
            return super().get(key, default)

    def cost(depth: int) -> float:
        spans = [span("s0", 0, 9 * depth, gatekeeper__route="desk", gen_ai__agent__name="shop")]
        for i in range(1, depth):
            chat = span(
                f"s{i}", i, 9 * depth - i, parent=f"s{i - 1}", kind="tool" if i % 2 else None
            )
            more = (
                {} if i % 2 else {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": 1}
            )
            spans.append(replace(chat, attributes=Counted(chat.attributes | more)))
        task = build_task(trace(*spans))
        Counted.looked_up = 0
        found = assign(task, Routing((RoutedRules("desk"),)))
        assert {call.route for call in found} == {"desk"}
        assert len(found) == (depth - 1) // 2
        return Counted.looked_up / depth

    assert cost(2000) <= 1.1 * cost(200)


def test_phases_below_a_call_are_its_own() -> None:
    task = build_task(
        trace(
            span("root", 0, 100),
            span("call", 0, 60, parent="root", kind="model"),
            span("prefill", 0, 20, parent="call", kind="prefill"),
            span("decode", 20, 60, parent="prefill", kind="decode"),
            span("alone", 60, 100, parent="root", kind="decode"),
        )
    )
    names = [w.span.span_id for w in task.works]
    of = {names[i]: None if o is None else names[o] for i, o in enumerate(owners(task))}
    assert of == {
        "root": None,
        "call": "call",
        "prefill": "call",
        "decode": "call",
        "alone": "alone",
    }


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"groupby": "trace"}, UnknownKey),
        ({"group_by": "day"}, InputError),
        ({"quiet_s": -1}, InputError),
        ({"quiet_s": float("nan")}, InputError),
        ({"quiet_s": True}, InputError),
        ({"quiet_s": 1e9}, InputError),
        ({"session_attribute": ""}, InputError),
        ({"session_attribute": 3}, InputError),
    ],
)
def test_task_rules_are_read_strictly(document: Any, error: type[InputError]) -> None:
    with pytest.raises(error):
        TaskRules.from_dict(document)
    assert TaskRules.from_dict({"quiet_s": 3}).group_by == "trace"


def test_session_and_conversation() -> None:
    spans = (
        span("a", 0, 1),
        span("b", 1, 2, session__id="s-1", gen_ai__conversation__id="c-1", chat="x"),
    )
    grouped = [TaskRules(group_by="conversation")]
    assert session_of(spans, [TaskRules()], default="t") == "s-1"
    assert session_of(spans, [TaskRules(session_attribute="chat")], default="t") == "x"
    assert session_of(spans[:1], [TaskRules()], default="t") == "t"
    assert conversation_of(spans, [TaskRules()]) is None
    assert conversation_of(spans, grouped) == "c-1"
    assert conversation_of(spans[:1], grouped) is None
    own = TaskRules(group_by="conversation", session_attribute="chat")
    assert conversation_of(spans, [own]) == "x"


def test_traces_of_a_conversation_make_one_task_even_where_their_span_ids_collide() -> None:
    def turn(trace_id: str, start: int) -> list[Any]:
        spans = (
            span("1", start, start + 50),
            span("2", start, start + 40, parent="1", **{**CHAT, "kind": "decode"}),
        )
        return [replace(s, trace_id=trace_id) for s in spans]

    (one,) = joined("talk", "otlp", [*turn("a" * 32, 0), *turn("b" * 32, 100)])
    profile = profile_task(one)
    assert len(one.spans) == 4
    assert profile.task.wall_ns == 150
    assert profile.saving.value == 40  # both turns, each behind the one before


def test_the_digest_tells_every_change_that_matters() -> None:
    base = routing(a=Rule("a", model="x"))
    others = [
        Routing(),
        routing(b=Rule("b", model="x")),
        routing(a=Rule("a", model="y")),
        Routing((replace(base.routes[0], tasks=TaskRules(quiet_s=1.0)),)),
    ]
    assert len({base.digest, *(one.digest for one in others)}) == 5
    assert base.digest == routing(a=Rule("a", model="x")).digest
    assert others[3].least_quiet_s == 1.0
    assert Routing().task_rules(["a"]) == (TaskRules(),)
