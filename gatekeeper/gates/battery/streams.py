"""Answers as they arrive: the same text as whole ones, in order, and freed when nobody listens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.exchange import Reply, Stage
from gatekeeper.gates.battery.facts import running
from gatekeeper.gates.battery.item import (
    Item,
    ask_all,
    ask_together,
    failed,
    passed,
    unverified,
)
from gatekeeper.gates.battery.texts import PROMPTS, SHORT_ANSWERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan

__all__ = ["CANCELLATION", "STREAM_EQUALS_WHOLE", "STREAM_ORDER"]

_LENGTH = 24
_CHARACTERS = "é 語 🙂 é 語 🙂 é 語"
_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1, "seed": 4})
_STOP: dict[str, Any] = {"stop": ["e, ", "zz"]}
_LONG = 400
_MADE = re.compile(
    r"^(?:vllm:generation_tokens_total|llamacpp:tokens_predicted_total"
    r"|gatekeeper:generation_tokens_total|sglang:generation_tokens_total)(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)
_POLLS, _PAUSE_S = 60, 0.25
_MOST_MADE = 0.75


def _stream_equals_whole(facts: Facts) -> Plan:
    asks = [
        facts.ask(prompt, _LENGTH, **fields)
        for prompt in (*PROMPTS[:2], _CHARACTERS)
        for fields in _SETTINGS
    ]
    asks.append(facts.ask(PROMPTS[0], _LENGTH, **_STOP))
    if facts.chat:
        said = [{"role": "user", "content": "Count from one to nine in words."}]
        asks += [facts.chat_ask(said, _LENGTH, **fields) for fields in _SETTINGS]
    whole = yield from ask_all(asks)
    again = yield from ask_all(asks)
    streams = yield from ask_all(ask.but(stream=True) for ask in asks)
    compared = []
    for one, two, stream in zip(whole, again, streams, strict=True):
        if _heard(one) != _heard(two):
            continue  # not repeatable: nothing to compare the stream with
        compared.append(stream)
        if _heard(stream) != _heard(one):
            return failed("the stream says something else than the whole answer", stream, one)
    if not compared:
        return unverified("no answer came twice the same", whole[0])
    return passed(f"{len(compared)} streams say what the whole answers say", compared[0])


def _heard(reply: Reply) -> tuple[str, str, str | None]:
    return reply.first.text, reply.first.reasoning, reply.first.finish


STREAM_EQUALS_WHOLE = Item(
    "stream_equals_whole",
    "A stream's pieces join to the whole answer, however many tokens a piece holds.",
    _stream_equals_whole,
    compares=True,
)


def _stream_order(facts: Facts) -> Plan:
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    asks = [facts.ask(prompt, _LENGTH, **fields) for prompt in (PROMPTS[0], SHORT_ANSWERS[0])]
    asks.append(facts.ask(PROMPTS[0], _LENGTH, stop=["e"], **fields))
    if facts.chat:
        said = [{"role": "user", "content": "Count from one to nine in words."}]
        asks.append(facts.chat_ask(said, _LENGTH, **fields))
    replies = yield from ask_all(asks)
    for reply in replies:
        wrong = _disorder(reply)
        if wrong is not None:
            return failed(wrong, reply)
    pieces = sum(len(reply.events) for reply in replies)
    return passed(f"{pieces} events of {len(replies)} streams are in order", replies[0])


def _disorder(reply: Reply) -> str | None:
    """What is out of order in a stream; None where nothing is."""
    counted = [i for i, event in enumerate(reply.events) if event.get("usage")]
    rules = (
        (reply.closed, "the stream does not end with [DONE]"),
        (not reply.after_done, f"{reply.after_done} events follow [DONE]"),
        (len({event.get("id") for event in reply.events}) == 1, "one answer has several ids"),
        (bool(reply.by_choice), "no event carries a choice"),
        (bool(counted), "no usage came, though it was asked for"),
        (counted[-1:] == [len(reply.events) - 1], "events follow the usage"),
    )
    broken = [why for kept, why in rules if not kept]
    broken += [why for rows in reply.by_choice.values() for why in _disorder_of(rows)]
    return broken[0] if broken else None


def _disorder_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is out of order in one choice of a stream."""
    ends = [i for i, row in enumerate(rows) if row.get("finish_reason") is not None]
    roles = [i for i, row in enumerate(rows) if _part(row).get("role")]
    spoken = [i for i, row in enumerate(rows) if _speaks(row)]
    rules = (
        (len(ends) == 1, f"{len(ends)} events say why the answer ended"),
        (not ends or not spoken or spoken[-1] <= ends[0], "text follows the end of the answer"),
        (not roles or not spoken or roles[0] <= spoken[0], "the role comes after the text"),
    )
    return [why for kept, why in rules if not kept]


def _part(row: Mapping[str, Any]) -> Mapping[str, Any]:
    delta = row.get("delta", row)
    return delta if isinstance(delta, dict) else {}


def _speaks(row: Mapping[str, Any]) -> bool:
    part = _part(row)
    return bool(part.get("content") or part.get("text") or part.get("tool_calls"))


STREAM_ORDER = Item(
    "stream_order",
    "Events come as role, text, one end, usage, [DONE]; nothing follows a stop.",
    _stream_order,
    windowed=False,
)


def _cancellation(facts: Facts) -> Plan:
    if not facts.counts_running:
        return unverified("no /metrics tells how many requests run")
    length = _LONG if facts.context is None else min(_LONG, facts.context // 2)
    (before,) = yield from ask_all(facts.running_asks())
    endless = {"logit_bias": {str(token): -100 for token, _ in facts.ends}} if facts.ends else {}
    asks = [
        replace(facts.ask(prompt, length, stream=True, **endless), leave_after=2)
        for prompt in PROMPTS
    ]
    left = yield from ask_together(asks)
    heard = [reply for reply in left if reply.events]
    if len(heard) < len(left):
        return unverified("a stream ended before it could be left", *left[:1])
    for _ in range(_POLLS):
        (now,) = yield Stage(facts.running_asks(), pause_s=_PAUSE_S)
        if (running(now) or 0) <= (running(before) or 0):
            break
    else:
        waited = _POLLS * _PAUSE_S
        return failed(f"still runs {waited:.0f} s after everyone left", left[0], now)
    made, most = _made(before, now), length * len(asks)
    if made is None:
        return unverified("no counter of tokens tells whether it went on to the end", left[0])
    if made > _MOST_MADE * most:
        return failed(f"{made} of {most} tokens were made for streams left at once", left[0], now)
    return passed(f"{made} of {most} tokens were made for streams left at once", left[0])


def _made(before: Reply, now: Reply) -> int | None:
    counts = [_MADE.findall(reply.text) for reply in (before, now)]
    try:
        first, last = (sum(float(value) for value in found) for found in counts)
        return round(last - first) if all(counts) else None
    except (ValueError, OverflowError):
        return None


CANCELLATION = Item(
    "cancellation", "A client that leaves frees its request.", _cancellation, windowed=False
)
