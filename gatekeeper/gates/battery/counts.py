"""What is told beside the text: usage, and log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.facts import token_ids
from gatekeeper.gates.battery.item import Item, ask_all, failed, passed, unverified
from gatekeeper.gates.battery.texts import PROMPTS, SHORT_ANSWERS, steady

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper.gates.battery.exchange import Reply
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan

__all__ = ["LOGPROBS", "USAGE"]

_LENGTH = 24
_AGAIN = 8
_TOP = 5
_CLOSE, _SAME = 0.3, 1e-3
"""Nats between two forwards of one model, bfloat16 included; and between two words for one number."""

_UNFINISHED = "\ufffd"


def _usage(facts: Facts) -> Plan:
    prompts = (*PROMPTS, SHORT_ANSWERS[0])
    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    whole = yield from ask_all(facts.ask(p, _LENGTH) for p in prompts)
    streams = yield from ask_all(facts.ask(p, _LENGTH, **streamed) for p in prompts)
    scored = [facts.ask(p, _LENGTH, logprobs=1) for p in prompts]
    listed = yield from ask_all(replace(ask, may_refuse=True) for ask in scored)
    for one, two in zip(whole, streams, strict=True):
        if one.first.text == two.first.text and one.made != two.made:
            return failed(f"one text is {one.made} tokens whole, {two.made} in a stream", two, one)
    replies, names = (*whole, *streams), (*listed, *listed)
    counted: Sequence[Reply | None] = [None] * len(replies)
    if facts.tokenises:
        counted = yield from ask_all(facts.count_ask(reply.first.text) for reply in replies)
    checked = 0
    for reply, tokens, count in zip(replies, names, counted, strict=True):
        ids = None if count is None else token_ids(count)
        wrong = _miscounted(reply, tokens, None if ids is None else len(ids))
        if wrong:
            return failed(wrong, reply)
        checked += wrong is not None
    if not checked:
        return unverified("neither /tokenize nor log-probabilities tell the tokens", whole[0])
    return passed(f"usage of {checked} answers is their number of tokens", whole[0])


def _miscounted(reply: Reply, scored: Reply, size: int | None) -> str | None:
    """What is wrong with the usage of an answer, empty for nothing; None where it cannot be told.

    ``scored`` lists the tokens of the same request; ``size`` is how many the text has, read anew:
    it may be written in fewer tokens than the model chose, never in more.
    """
    made, prompt = reply.made, reply.usage.get("prompt_tokens")
    total = reply.usage.get("total_tokens")
    tokens = scored.first.tokens if scored.first.text == reply.first.text else ()
    if made is None or prompt is None:
        return "the answer has no usage"
    if total not in (None, prompt + made):
        return f"{prompt} + {made} tokens are told as {total}"
    if size is not None and _agrees(size, made):
        return ""
    if tokens:
        listed = len(tokens)
        return "" if _agrees(listed, made) else f"{made} tokens are told, and {listed} are listed"
    return f"{made} tokens are told for a text of {size}" if (size or 0) > made else None


def _agrees(seen: int, told: int) -> bool:
    """Whether a count is the text's, the end token counted or not."""
    return told - seen in (0, 1)


USAGE = Item(
    "usage",
    "Usage counts the tokens of the text, alike whole and streamed.",
    _usage,
    windowed=False,
)


def _logprobs(facts: Facts) -> Plan:
    bases = yield from steady(facts, _AGAIN, logprobs=_TOP)
    if not bases:
        return unverified("no greedy answer came twice the same")
    for base in bases:
        wrong = _incoherent(base.reply)
        if wrong is not None:
            return failed(wrong, base.reply)
    if not facts.completions or not facts.tokenises:
        return unverified(
            "present; needs text completions and /tokenize to ask for them again", bases[0].reply
        )
    compared, shown = 0, None
    for base in bases:
        tokens = base.reply.first.tokens
        starts = [base.prompt + "".join(t.text for t in tokens[:i]) for i in range(len(tokens))]
        counts = yield from ask_all(facts.count_ask(text) for text in starts)
        sizes = [len(token_ids(count) or ()) for count in counts]
        fresh = yield from ask_all(facts.ask(text, 1, logprobs=_TOP) for text in starts)
        for place, (token, reply) in enumerate(zip(tokens, fresh, strict=True)):
            alone = reply.first.tokens[0] if reply.first.tokens else None
            same_tokens = sizes[place] == sizes[0] + place
            if alone is None or not same_tokens or alone.text != token.text:
                continue  # the text so far is other tokens when read anew
            compared += 1
            if abs(alone.logprob - token.logprob) > _CLOSE:
                return failed(
                    f"token {place}, {token.text!r}, has {token.logprob:.3f} in the answer and "
                    f"{alone.logprob:.3f} when the text before it is a prompt",
                    base.reply,
                    reply,
                )
            shown = shown or reply
    if not compared or shown is None:
        return unverified("no token of an answer could be asked for again", bases[0].reply)
    return passed(
        f"{compared} log-probabilities are those of ordinary decoding", bases[0].reply, shown
    )


def _incoherent(reply: Reply) -> str | None:
    """What is wrong with the log-probabilities of one greedy answer by themselves."""
    tokens = reply.first.tokens
    if not tokens:
        return "log-probabilities were asked for, and none came"
    if reply.made is not None and reply.made - len(tokens) not in (0, 1):
        return f"{len(tokens)} log-probabilities for {reply.made} tokens"
    for place, token in enumerate(tokens):
        if not token.top:
            return f"token {place} has no alternatives, and {_TOP} were asked for"
        if token.logprob > _SAME or any(value > _SAME for _, value in token.top):
            return f"token {place} has a probability above 1"
        named = [value for text, value in token.top if text == token.text]
        if (
            named
            and _UNFINISHED not in token.text
            and min(abs(value - token.logprob) for value in named) > _SAME
        ):
            return (
                f"token {place}, {token.text!r}, has {token.logprob:.3f} by itself and "
                f"{named[0]:.3f} among the likeliest"
            )
    return None


LOGPROBS = Item(
    "logprobs",
    "Log-probabilities come with every token, and are those of the target.",
    _logprobs,
)
