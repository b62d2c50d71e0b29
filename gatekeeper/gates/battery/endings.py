"""Where an answer ends: stop texts and end tokens inside an accepted window, and the cap beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.item import Item, ask_all, failed, passed, unverified
from gatekeeper.gates.battery.texts import PROMPTS, SHORT_ANSWERS, steady

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gatekeeper.gates.battery.exchange import Reply, Stage
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan

__all__ = ["END_TOKEN", "STOP_AND_LENGTH", "STOP_TEXT"]

_UNSTEADY = "no greedy answer came twice the same and holds a text to stop at"
_UNFINISHED = "\ufffd"
_LENGTH, _AWAY = 32, 20
_SIZE = 4
_CAP, _TAIL, _NEVER = 10, 2, "\x7f"
_SETTINGS: tuple[dict[str, Any], ...] = ({}, *({"temperature": 1, "seed": s} for s in (5, 6)))
_PER_TEXT = 5
_ENDING_TOKENS, _ENOUGH = 32, 2
_BIASES = (0, 3, 5, 6, 7, 8, 10)
_WINDOW = 6


def _stop_text(facts: Facts) -> Plan:
    bases = yield from steady(facts, _LENGTH)
    tried = [(base, stops) for base in bases for stops in _stops(base.text)]
    if not tried:
        return unverified(_UNSTEADY)
    replies = yield from ask_all(
        facts.ask(base.prompt, _LENGTH, stop=list(stops)) for base, stops in tried
    )
    judged = []
    for (base, stops), reply in zip(tried, replies, strict=True):
        place = min(base.text.index(stop) for stop in stops)
        wrong = _behind_the_stop(reply, base.text[:place], stops)
        if wrong is not None:
            return failed(wrong, reply, base.reply)
        if reply.first.text == base.text[:place]:
            judged.append(reply)  # else another text altogether: a near tie that fell otherwise
    if not judged:
        return unverified("every answer with a stop text took another way", replies[0])
    return passed(f"{len(judged)} answers end right before their stop text", judged[0])


def _behind_the_stop(reply: Reply, wanted: str, stops: Sequence[str]) -> str | None:
    """What is wrong with an answer that should be ``wanted``; None where nothing is."""
    text, finish = reply.first.text, reply.first.finish
    if any(stop in text for stop in stops):
        return f"the stop text {stops[0]!r} is in the answer"
    if text != wanted and (text.startswith(wanted) or wanted.startswith(text)):
        more = "goes on behind" if len(text) > len(wanted) else "ends before"
        return f"the answer {more} the stop text {stops[0]!r}"
    if text == wanted and finish != "stop":
        return f"a stop text ended it, and it says {finish}"
    return None


def _stops(text: str) -> list[tuple[str, ...]]:
    """Stop texts from the first part of an answer, one alone and two in the wrong order."""
    places = range(2, min(len(text), _AWAY), 3)
    single = [text[place : place + _SIZE] for place in places]
    good = list(dict.fromkeys(s for s in single if len(s) == _SIZE and _UNFINISHED not in s))
    return [*((s,) for s in good), *((later, good[0]) for later in good[-1:] if len(good) > 1)]


STOP_TEXT = Item(
    "stop_text",
    "An answer ends right before the first stop text, wherever in a window it stands.",
    _stop_text,
    compares=True,
)


def _stop_and_length(facts: Facts) -> Plan:
    plain = yield from ask_all(
        facts.ask(prompt, _CAP, **fields) for prompt in PROMPTS for fields in _SETTINGS
    )
    tried = [
        (reply.ask.but(stop=[stop]), first)
        for reply in plain
        if reply.first.finish == "length"
        for stop, first in _near_the_end(reply.first.text)
    ]
    if not tried:
        return unverified("no answer reached its cap with a text to stop at", plain[0])
    replies = yield from ask_all(ask for ask, _ in tried)
    told = dict.fromkeys(("stop", "length"), 0)
    for (ask, first), reply in zip(tried, replies, strict=True):
        (stop,) = (ask.body or {})["stop"]
        text, finish = reply.first.text, reply.first.finish
        if finish == "length" and stop in text:
            return failed(
                f"the stop text {stop!r} stands before the cap, and it says length", reply
            )
        if finish == "stop" and first == "length" and reply.made == _CAP:
            return failed(f"the cap comes before the stop text {stop!r}, and it says stop", reply)
        if finish == first:
            told[first] += 1
    if not told["stop"]:
        return unverified("every answer with a stop text took another way", replies[0])
    return passed(
        f"{told['stop']} stop texts right before the cap end the answer, {told['length']} that the "
        "cap breaks off do not",
        replies[0],
    )


def _near_the_end(text: str) -> list[tuple[str, str]]:
    """Stop texts that stand in the last characters, or only begin there; and what ends the answer."""
    found = [(text[-2:] + _NEVER, "length")]
    for less in range(_WINDOW):
        stop = text[: len(text) - less][-_TAIL:]
        if len(stop) == _TAIL and text.find(stop) == len(text) - less - _TAIL:
            found.append((stop, "stop"))
    return [(stop, first) for stop, first in found if _UNFINISHED not in stop][:_PER_TEXT]


STOP_AND_LENGTH = Item(
    "stop_and_length",
    "Of a stop text and the length cap in one window, the first one ends the answer.",
    _stop_and_length,
)


def _end_token(facts: Facts) -> Plan:
    ended = yield from _ended(facts)
    if not ended:
        return unverified("no answer ended by itself twice the same")
    for base in ended:
        shows = next((text for _, text in facts.ends if text in base.first.text), None)
        if shows is not None:
            return failed(f"the end token {shows} shows in the text", base)
    tried = [
        (base, made - less)
        for base in ended
        if (made := base.made) is not None
        for less in range(1, _WINDOW + 1)
        if made > less
    ]
    if not tried:
        return unverified("the answers that ended by themselves are empty", ended[0])
    replies = yield from ask_all(base.ask.but(max_tokens=cap) for base, cap in tried)
    for (base, cap), reply in zip(tried, replies, strict=True):
        if base.first.text.startswith(reply.first.text) and reply.first.finish == "stop":
            return failed(
                f"the answer ends by itself within {cap} tokens, and has {base.made} without "
                "that cap: tokens after the end token",
                base,
                reply,
            )
    return passed(f"{len(ended)} answers end with their end token", ended[0], replies[0])


def _ended(facts: Facts) -> Generator[Stage, tuple[Reply, ...], list[Reply]]:
    """Greedy answers that end by themselves and come twice; with likelier ends where none do.

    Greedy alone: a sampled text may depend on its cap, since the windows do.
    """
    found: list[Reply] = []
    for bias in _BIASES if facts.ends else _BIASES[:1]:
        likelier = {"logit_bias": {str(token): bias for token, _ in facts.ends}} if bias else {}
        once = yield from ask_all(
            facts.ask(prompt, _ENDING_TOKENS, **likelier) for prompt in (*SHORT_ANSWERS, PROMPTS[2])
        )
        ended = [r for r in once if r.first.finish == "stop" and (r.made or 0) > 1]
        again = yield from ask_all(reply.ask for reply in ended)
        found += [a for a, b in zip(ended, again, strict=True) if a.first == b.first]
        if len(found) >= _ENOUGH:
            break
    return found


END_TOKEN = Item(
    "end_token",
    "Nothing follows an end token, wherever in a window it was accepted.",
    _end_token,
    compares=True,
)
