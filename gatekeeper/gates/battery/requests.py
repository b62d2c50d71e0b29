"""Each request is its own: its seed, its choices, and no text of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.item import (
    Item,
    ask_all,
    ask_together,
    failed,
    passed,
    unfit,
    unverified,
)
from gatekeeper.gates.battery.texts import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.gates.battery.exchange import Reply
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan, Verdict

__all__ = ["CANARIES", "CHOICES", "SEED_ALONE", "SEED_IN_BATCH"]

_OPEN = "Once upon a time there was a"
_LENGTH = 24
_SEEDS = (11, 12, 13, 14)
_SAMPLED: dict[str, Any] = {"temperature": 1}
_WORDS = ("xqzvkw", "jwpyfg", "hbdmtu", "vnrlks")
"""Code words that no model writes by itself."""


def _seed_alone(facts: Facts) -> Plan:
    asks = [facts.ask(_OPEN, _LENGTH, **_SAMPLED | {"seed": seed}) for seed in _SEEDS]
    once = yield from ask_all(asks)
    again = yield from ask_all(asks)
    if len({reply.first.text for reply in (*once, *again)}) == 1:
        return unverified("every seed gives the same text, so none can be told apart", *once[:2])
    moved = _moved(once, again)
    if moved:
        return _of_moved(moved, len(asks), "a seed gives another text when asked again")
    return passed(f"{len(once)} seeds give their text twice", once[0], again[0])


def _moved(before: Sequence[Reply], now: Sequence[Reply]) -> list[tuple[Reply, Reply]]:
    pairs = zip(now, before, strict=True)
    return [(new, old) for new, old in pairs if new.first.text != old.first.text]


def _of_moved(moved: list[tuple[Reply, Reply]], count: int, what: str) -> Verdict:
    """A seed that is not kept moves most texts; rounding moves few."""
    if 2 * len(moved) > count:
        return failed(f"{what} ({len(moved)} of {count})", *moved[0])
    return unverified(f"{what}, but only {len(moved)} of {count}: it may be rounding", *moved[0])


SEED_ALONE = Item("seed_alone", "A seed repeats its text.", _seed_alone, compares=True)


def _seed_in_batch(facts: Facts) -> Plan:
    seeded = [facts.ask(_OPEN, _LENGTH, **_SAMPLED | {"seed": seed}) for seed in _SEEDS]
    greedy = [facts.ask(prompt, _LENGTH) for prompt in (PROMPTS[0], PROMPTS[2])]
    others = [
        facts.ask(PROMPTS[1], _LENGTH, temperature=1, top_p=0.9, seed=7),
        facts.ask(PROMPTS[0], _LENGTH // 2, temperature=0.5, seed=8),
        facts.ask(_OPEN, _LENGTH, presence_penalty=1.0),
    ]
    asks = [*seeded, *greedy]
    alone = yield from ask_all([*asks, *asks])
    once, again = alone[: len(asks)], alone[len(asks) :]
    mixed = yield from ask_together([*asks, *others])
    count = len(seeded)
    if any(one.first.text != two.first.text for one, two in zip(once, again, strict=True)):
        return unverified("a request does not repeat its text alone either", once[0], again[0])
    if len({reply.first.text for reply in once[:count]}) == 1:
        return unverified("every seed gives the same text, so none can be told apart", *once[:2])
    moved = _moved(once, mixed[: len(asks)])
    if any(not (now.ask.body or {})["temperature"] for now, _ in moved):
        return unverified(
            "greedy text depends on the batch too: the server's numbers do, not its seeds",
            *moved[-1],
        )
    if moved:
        return _of_moved(moved, count, "a seed gives another text beside other requests")
    return passed(f"{count} seeds give their text among {len(mixed)} requests", mixed[0])


SEED_IN_BATCH = Item(
    "seed_in_batch",
    "A seed repeats its text beside requests of other settings.",
    _seed_in_batch,
    compares=True,
)


def _choices(facts: Facts) -> Plan:
    count = 2  # llama.cpp takes no more than it has slots
    asks = [
        facts.ask(_OPEN, _LENGTH, n=count, stream=stream, **_SAMPLED) for stream in (False, True)
    ]
    replies = yield from ask_all(asks)
    for reply in replies:
        if len(reply.choices) == 1:
            return unfit("n is ignored: one answer came", reply)
        if len(reply.choices) != count:
            return failed(f"{len(reply.choices)} answers where {count} were asked for", reply)
        if any(choice.finish is None for choice in reply.choices):
            return failed("an answer has no end", reply)
        if len({choice.text for choice in reply.choices}) == 1:
            return failed("all sampled answers are the same", reply)
        if reply.made is not None and reply.made > count * _LENGTH:
            return failed(f"{reply.made} tokens in {count} answers of {_LENGTH}", reply)
    return passed(f"{count} answers of their own, whole and streamed", *replies)


CHOICES = Item("choices", "n answers are n draws, each whole.", _choices)


def _canaries(facts: Facts) -> Plan:
    asks = [
        facts.ask(f"The code is {word}. Again: {word}. Again: {word}. Again:", _LENGTH, stream=True)
        for word in _WORDS
    ]
    alone = yield from ask_all(asks)
    if len({reply.first.text for reply in alone}) == 1:
        return unverified("all requests have the same answer, so they cannot be told apart", *alone)
    rounds = []
    for order in (asks, asks[::-1]):
        replies = yield from ask_together(order)
        rounds.append({str(reply.ask.body): reply for reply in replies})
    own_words = same = 0
    for word, ask, before in zip(_WORDS, asks, alone, strict=True):
        for at_once in rounds:
            reply = at_once[str(ask.body)]
            text = reply.first.text
            strange = next((w for w in _WORDS if w != word and w in text), None)
            if strange is not None:
                return failed(f"the code word {strange!r} is another request's", reply)
            other = next((o for o in alone if o is not before and o.first.text == text), None)
            if text != before.first.text and other is not None:
                return failed("the answer is another request's", reply, other)
            own_words += word in text
            same += text == before.first.text
    total = len(asks) * len(rounds)
    if same == total:
        return passed(f"{total} answers at once are those given alone", alone[0])
    if own_words:
        return passed(
            f"{own_words} of {total} answers hold their own code word, none another", alone[0]
        )
    return unverified("no answer holds its code word or is the one given alone", alone[0])


CANARIES = Item(
    "canaries",
    "Requests at once never hold each other's text, in whatever order they come.",
    _canaries,
)
