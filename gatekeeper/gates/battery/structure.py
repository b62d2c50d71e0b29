"""Answers of a given form: JSON schema, regular expression, behind reasoning, tool calls."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.item import Item, ask_all, failed, passed, unfit, unverified

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from gatekeeper.gates.battery.exchange import Ask, Reply, Stage
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan, Verdict

__all__ = ["AFTER_REASONING", "JSON_SCHEMA", "REGEX", "TOOL_CALLS"]

_COLOURS = ("red", "green", "blue")
_QUESTIONS = (
    "Name a colour and a count of it.",
    "How many days is the sky blue?",
    "Green leaves for how long?",
)
_LENGTH = 96
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    *({"temperature": 1, "seed": seed} for seed in range(1, 4)),
)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": list(_COLOURS)},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["colour", "count", "ok"],
    "additionalProperties": False,
}
_LARGEST = 99
_ANY_COLOUR = "(red|green|blue)"
_REGEX = rf"{_ANY_COLOUR}(-{_ANY_COLOUR}){{5}}"
_GRAMMAR = 'root ::= c ("-" c){5}\nc ::= "red" | "green" | "blue"'
_CLOSE = "</think>"
_BEHIND = rf'[a-z ]{{1,11}}{_CLOSE}\{{"colour": "{_ANY_COLOUR}", "count": [0-9]{{1,2}}\}}'
_BEHIND_GRAMMAR = (
    f'root ::= [a-z ]{{1,11}} "{_CLOSE}{{\\"colour\\": \\"" ("red" | "green" | "blue") '
    '"\\", \\"count\\": " [0-9]{1,2} "}"'
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "count_colour",
        "description": "Count things of a colour.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": list(_COLOURS)}, "days": {"type": "integer"}},
            "required": ["colour", "days"],
            "additionalProperties": False,
        },
    },
}


def _talk(facts: Facts, said: str = _QUESTIONS[0], **fields: Any) -> Ask:  # noqa: ANN401 - any JSON
    if facts.chat:
        return facts.chat_ask([{"role": "user", "content": said}], _LENGTH, **fields)
    return facts.ask(said, _LENGTH, **fields)


def _json_schema(facts: Facts) -> Plan:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
    replies = yield from ask_all(_talk(facts, response_format=wanted, **more) for more in _SETTINGS)
    return _verdict(replies, lambda reply: _fits(reply.first.text), "JSON of its schema")


def _fits(text: str) -> bool:
    try:
        found = json.loads(text.rpartition(_CLOSE)[2])
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(found, dict)
        and found.keys() == set(_SCHEMA["required"])
        and found["colour"] in _COLOURS
        and type(found["count"]) is int
        and 0 <= found["count"] <= _LARGEST
        and type(found["ok"]) is bool
    )


def _verdict(replies: tuple[Reply, ...], fits: Callable[[Reply], bool], form: str) -> Verdict:
    whole = [reply for reply in replies if reply.first.finish != "length"]
    for reply in whole:
        if not fits(reply):
            return failed(f"the answer is not {form}", reply)
    if not whole:
        return unverified(f"no answer was whole within {_LENGTH} tokens", replies[0])
    return passed(f"{len(whole)} answers are {form}", whole[0])


JSON_SCHEMA = Item(
    "json_schema",
    "An answer bound to a JSON schema conforms to it at every position.",
    _json_schema,
)


def _regex(facts: Facts) -> Plan:
    replies = yield from _bound(facts, _REGEX, _GRAMMAR)
    if isinstance(replies, str):
        return unfit(replies)
    return _verdict(replies, lambda reply: bool(re.fullmatch(_REGEX, reply.first.text)), "a match")


def _bound(
    facts: Facts, regex: str, grammar: str
) -> Generator[Stage, tuple[Reply, ...], tuple[Reply, ...] | str]:
    """Answers bound to an expression in the first words that take effect; or why there are none."""
    words: tuple[Mapping[str, Any], ...] = (
        {"regex": regex},
        {"structured_outputs": {"regex": regex}},
        {"guided_regex": regex},
        {"grammar": grammar},
    )
    (plain,) = yield from ask_all([_talk(facts)])
    refusals = []
    for fields in words:
        ask = _talk(facts, **fields)
        (reply,) = yield from ask_all([replace(ask, may_refuse=True)])
        (name,) = fields
        if reply.refused:
            refusals.append(f"{name} is refused")
        elif reply.first.text == plain.first.text:
            refusals.append(f"{name} is ignored")
        else:
            return (yield from ask_all(_talk(facts, **fields, **more) for more in _SETTINGS))
    return f"no field for a regular expression has effect: {', '.join(refusals)}"


REGEX = Item(
    "regex", "An answer bound to a regular expression matches it at every position.", _regex
)


def _after_reasoning(facts: Facts) -> Plan:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
    ask = _talk(facts, response_format=wanted)
    (thought,) = yield from ask_all([replace(ask, may_refuse=True)])
    if thought.first.reasoning or _CLOSE in thought.first.text:
        replies = yield from ask_all(
            _talk(facts, response_format=wanted, **more) for more in _SETTINGS
        )
        return _verdict(
            replies, lambda reply: _fits(reply.first.text), "JSON of its schema after reasoning"
        )
    bound = yield from _bound(facts, _BEHIND, _BEHIND_GRAMMAR)
    if isinstance(bound, str):
        return unfit(f"the model does not reason before it answers, and {bound}")

    def fits(reply: Reply) -> bool:
        # a server that parses reasoning takes the part before the tag away
        text = f"{reply.first.reasoning}{_CLOSE}" if reply.first.reasoning else ""
        return bool(re.fullmatch(_BEHIND, f"{text}{reply.first.text}"))

    return _verdict(bound, fits, "a match behind its close tag")


AFTER_REASONING = Item(
    "after_reasoning",
    "The form of an answer holds from the reasoning's close tag on, in the tag's window too.",
    _after_reasoning,
)


def _tool_calls(facts: Facts) -> Plan:
    if not facts.chat:
        return unfit("the server has no chat, and tools belong to it")
    plain = yield from ask_all([_talk(facts)])
    fields: dict[str, Any] = {"tools": [_TOOL], "tool_choice": "required"}
    asks = [_talk(facts, said=said, **fields) for said in _QUESTIONS]
    replies = yield from ask_all(asks)
    if not any(reply.first.calls for reply in replies) and replies[0].first == plain[0].first:
        return unfit("tools are ignored: the answer is the one without them", replies[0])
    again = yield from ask_all(asks)
    streams = yield from ask_all(_talk(facts, said=q, stream=True, **fields) for q in _QUESTIONS)
    whole = [reply for reply in replies if reply.first.finish != "length"]
    compared = []
    for reply, repeated, stream in zip(replies, again, streams, strict=True):
        wrong = None if reply not in whole else _no_call(reply)
        if wrong is not None:
            return failed(wrong, reply)
        if reply.first.calls == repeated.first.calls:
            compared.append(reply)
            if stream.first.calls != reply.first.calls:
                return failed("the stream's call is not the whole answer's", stream, reply)
    if not whole or not compared:
        return unverified(f"no call was whole within {_LENGTH} tokens, twice", replies[0])
    return passed(f"{len(whole)} calls, {len(compared)} of them alike in a stream", whole[0])


def _no_call(reply: Reply) -> str | None:
    """Why an answer is no call of the tool; None where it is one."""
    if not reply.first.calls:
        return "a tool call is required, and none came"
    for name, arguments in reply.first.calls:
        if name != "count_colour" or not _arguments_fit(arguments):
            return f"{name}({arguments[:80]}) is no call of the tool"
    return None


def _arguments_fit(arguments: str) -> bool:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(found, dict)
        and found.keys() == {"colour", "days"}
        and found["colour"] in _COLOURS
        and type(found["days"]) is int
    )


TOOL_CALLS = Item(
    "tool_calls",
    "A required tool call is parsed whole, and alike in a stream.",
    _tool_calls,
    compares=True,
)
