"""How long an answer may and must be: the cap, the minimum, and the edge of the context."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from gatekeeper.gates.battery.facts import token_ids
from gatekeeper.gates.battery.item import Item, ask_all, failed, passed, unfit, unverified
from gatekeeper.gates.battery.texts import PROMPTS, SHORT_ANSWERS

if TYPE_CHECKING:
    from gatekeeper.gates.battery.exchange import Reply
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan, Verdict

__all__ = ["CONTEXT_EDGE", "MAX_TOKENS", "MIN_TOKENS"]

_CAPS = range(1, 13)
_LONGEST_CONTEXT = 4096
_ROOM = 7
_SEEDS = range(1, 9)
_LEAST, _MOST = 12, 24


def _max_tokens(facts: Facts) -> Plan:
    asks = [facts.ask(prompt, cap) for prompt in PROMPTS[:2] for cap in _CAPS]
    replies = yield from ask_all(asks)
    capped = 0
    for reply in replies:
        cap, made = (reply.ask.body or {})["max_tokens"], reply.made
        if made is not None and made > cap:
            return failed(f"{made} tokens where {cap} were the most", reply)
        if reply.first.finish == "length":
            capped += 1
            if made is not None and made < cap:
                return failed(f"says length after {made} of {cap} tokens", reply)
    told = [reply for reply in replies if reply.made is not None]
    if not told or not capped:
        return unverified("no answer with a token count reached its cap", replies[0])
    for start in (0, len(_CAPS)):
        for one, two in pairwise(replies[start : start + len(_CAPS)]):
            short, long = one.first.text, two.first.text
            cut = len(short) > len(long) and short.startswith(long)
            if cut and two.first.finish == "length":
                return failed("a larger cap gives a shorter text", one, two)
    return passed(f"{capped} answers of 1 to {len(_CAPS)} tokens end at their cap", replies[-1])


MAX_TOKENS = Item("max_tokens", "No answer has more tokens than its cap.", _max_tokens)


def _min_tokens(facts: Facts) -> Plan:
    biases: list[dict[str, object]] = [{}]
    if facts.ends:
        biases.append({"logit_bias": {str(token): 6 for token, _ in facts.ends}})
    settings = [{"temperature": 1, "seed": seed, **bias} for bias in biases for seed in _SEEDS]
    plain_asks = [facts.ask(SHORT_ANSWERS[0], _MOST, **fields) for fields in settings]
    plain = yield from ask_all(plain_asks)
    early = [
        (fields, reply)
        for fields, reply in zip(settings, plain, strict=True)
        if reply.first.finish == "stop" and reply.made is not None and reply.made < _LEAST
    ]
    if not early:
        return unverified(f"no answer ended before {_LEAST} tokens by itself", plain[0])
    replies = yield from ask_all(
        facts.ask(SHORT_ANSWERS[0], _MOST, min_tokens=_LEAST, **fields) for fields, _ in early
    )
    same = [r for (_, p), r in zip(early, replies, strict=True) if r.first == p.first]
    if len(same) == len(replies):
        return unfit("min_tokens is ignored: every answer is the one without it", same[0])
    for reply in replies:
        if reply.made is not None and reply.made < _LEAST:
            return failed(f"{reply.made} tokens where {_LEAST} were the least", reply)
    return passed(
        f"{len(replies)} answers that ended early have {_LEAST} tokens or more", replies[0]
    )


MIN_TOKENS = Item("min_tokens", "No answer ends by itself before its minimum length.", _min_tokens)


def _context_edge(facts: Facts) -> Plan:
    limit = facts.context
    if limit is None or limit > _LONGEST_CONTEXT:
        told = "is not told (max_model_len, n_ctx)" if limit is None else f"has {limit} tokens"
        return unverified(f"the context {told}: nothing that a check can fill")
    if not facts.tokenises or not facts.completions:
        return unverified("needs /tokenize and text completions to fill the context")
    unit = " one two three"
    (counted,) = yield from ask_all([facts.count_ask(unit * 8)])
    per_unit = max(1, len(token_ids(counted) or ()) // 8)
    units = (limit - _ROOM) // per_unit
    asks = (facts.ask(unit * units, 4 * _ROOM), facts.ask(unit * (2 * units), 4))
    near, beyond = yield from ask_all(replace(ask, may_refuse=True) for ask in asks)
    if beyond.good and (beyond.usage.get("prompt_tokens") or 0) > limit:
        return failed(f"answers a prompt longer than its context of {limit} tokens", beyond)
    if near.refused:
        return passed("refuses an answer that might not fit", near)
    return _at_the_edge(near, limit)


def _at_the_edge(reply: Reply, limit: int) -> Verdict:
    prompt, made = reply.usage.get("prompt_tokens"), reply.made
    if prompt is None or made is None or reply.first.finish != "length":
        return unverified("the answer ended before the context did, or has no usage", reply)
    if prompt + made > limit + 1:  # the last token need not be read any more
        return failed(f"{prompt} + {made} tokens in a context of {limit}", reply)
    return passed(f"{prompt} + {made} tokens end at the context of {limit}", reply)


CONTEXT_EDGE = Item(
    "context_edge",
    "An answer ends at the edge of the context, drafts included, and a longer prompt is refused.",
    _context_edge,
)
