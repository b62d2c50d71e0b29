"""Rules on the next token, at every position: bias and forbidden tokens, and both penalties.

Penalties are judged by the log-probabilities that come with the answer: before penalties they are
the target's, so what greedy decoding has to choose after them can be computed. A token that the
prompt holds may be penalised for that too; servers differ, so it is left out as a rival.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.facts import token_ids
from gatekeeper.gates.battery.item import Item, ask_all, failed, passed, unverified
from gatekeeper.gates.battery.texts import PROMPTS, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gatekeeper.gates.battery.exchange import Reply, Token
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Plan

__all__ = ["FREQUENCY_PENALTY", "LOGIT_BIAS", "PRESENCE_PENALTY"]

_LENGTH = 32
_FORBIDDEN = 4
_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1, "seed": 2})
_BIAS_LENGTH = 16
_SLACK = 0.1
"""Nats that rounding may move a log-probability by, bfloat16 included."""

_UNFINISHED = "\ufffd"


def _logit_bias(facts: Facts) -> Plan:
    if not facts.tokenises:
        return unverified("needs the ids of tokens, and the server has no /tokenize")
    bases = yield from steady(facts, _BIAS_LENGTH, logprobs=1)
    counted = yield from ask_all(facts.count_ask(base.text) for base in bases)
    bans = []
    for base, count in zip(bases, counted, strict=True):
        known = Counter(_named(base.reply.first.tokens, token_ids(count)))
        if known:
            bans.append((base.prompt, dict(name for name, _ in known.most_common(_FORBIDDEN))))
    if not bans:
        return unverified("no answer came twice the same with tokens that tell themselves apart")
    asks = [
        (facts.ask(prompt, _BIAS_LENGTH, logprobs=1, logit_bias=bias, **more), ban)
        for prompt, ban in bans
        for bias in ({str(token): -100 for token in ban}, {str(next(iter(ban))): 100})
        for more in _SETTINGS
    ]
    replies = yield from ask_all(ask for ask, _ in asks)
    for (ask, ban), reply in zip(asks, replies, strict=True):
        wrong = _against_bias(reply, (ask.body or {})["logit_bias"], ban)
        if wrong is not None:
            return failed(wrong, reply)
    seen = sum(len(reply.first.tokens) for reply in replies)
    if not seen:
        return unverified("the answers tell no tokens", replies[0])
    return passed(f"{seen} tokens: none forbidden, or only the forced one", replies[0], replies[-1])


def _against_bias(reply: Reply, bias: dict[str, int], texts: dict[int, str]) -> str | None:
    """The first token that a bias excludes; None where there is none."""
    named = {texts[int(token)]: value for token, value in bias.items()}
    forced = {text for text, value in named.items() if value > 0}
    for place, token in enumerate(reply.first.tokens):
        if forced and token.text not in forced:
            return f"token {place} is {token.text!r}, and a bias of +100 forces {forced}"
        if not forced and token.text in named:
            return f"token {place} is {token.text!r}, which a bias of -100 forbids"
    return None


def _named(tokens: Sequence[Token], ids: list[int] | None) -> list[tuple[int, str]]:
    """Ids with texts, where the answer's own tokens are those of its text."""
    if ids is None or len(ids) != len(tokens):
        return []
    texts = [token.text for token in tokens]
    by_text: dict[str, set[int]] = {}
    for token, text in zip(ids, texts, strict=True):
        by_text.setdefault(text, set()).add(token)
    return [
        (token, text)
        for token, text in zip(ids, texts, strict=True)
        if len(by_text[text]) == 1 and text and _UNFINISHED not in text
    ]


LOGIT_BIAS = Item(
    "logit_bias",
    "Logit bias holds at every position: accepted, corrected and bonus tokens alike.",
    _logit_bias,
)


@dataclass(frozen=True)
class _Judged:
    """Positions of answers: where a penalty decided, and where the wrong token was emitted."""

    decided: int
    wrong: tuple[tuple[Reply, str], ...]


def _penalty(
    field: str, strength: float, of_count: Callable[[int], float]
) -> Callable[[Facts], Plan]:
    def plan(facts: Facts) -> Plan:
        asks = [facts.ask(p, _LENGTH, logprobs=facts.most_logprobs) for p in PROMPTS]
        plain = yield from ask_all(asks)
        replies = yield from ask_all(ask.but(**{field: strength}) for ask in asks)
        if not any(reply.first.tokens and reply.first.tokens[0].top for reply in replies):
            return unverified("judged by log-probabilities, which the server does not give")
        judged = _judge(replies, lambda count: strength * of_count(count))
        changed = [
            one for one, two in zip(replies, plain, strict=True) if one.first.text != two.first.text
        ]
        if judged.wrong and not judged.decided and changed:
            return unverified(
                "log-probabilities are told after penalties, so the target's are not known",
                changed[0],
            )
        if judged.wrong:
            reply, why = judged.wrong[0]
            return failed(f"{len(judged.wrong)} tokens are not the likeliest: {why}", reply)
        if not judged.decided:
            return unverified(f"{field} {strength:g} decided no token", replies[0])
        return passed(f"{judged.decided} tokens are what the penalty makes likeliest", replies[0])

    return plan


def _judge(replies: Sequence[Reply], penalty: Callable[[int], float]) -> _Judged:
    decided, wrong = 0, []
    for reply in replies:
        body = reply.ask.body or {}
        prompt = str(body.get("prompt", body.get("messages")))
        seen: Counter[str] = Counter()
        for place, token in enumerate(reply.first.tokens):
            values = {text: value for text, value in reversed(token.top) if _whole(text)}
            own = values.pop(token.text, token.logprob)
            decided += any(value > own + _SLACK for value in values.values())
            kept = own - penalty(seen[token.text]) + _SLACK
            better = next(
                (
                    (text, value)
                    for text, value in values.items()
                    if text.strip() not in prompt and value - penalty(seen[text]) > kept
                ),
                None,
            )
            if better is not None and _whole(token.text):
                rival, value = better
                why = f"token {place} is {token.text!r} ({own:.2f}, seen {seen[token.text]} times)"
                wrong.append((reply, f"{why}, not {rival!r} ({value:.2f}, seen {seen[rival]})"))
            seen[token.text] += 1
    return _Judged(decided, tuple(wrong))


def _whole(text: str) -> bool:
    """Whether a text names one token: bytes of an unfinished character do not."""
    return _UNFINISHED not in text


FREQUENCY_PENALTY = Item(
    "frequency_penalty",
    "The frequency penalty grows with each repetition, those within a window included.",
    _penalty("frequency_penalty", 1.2, float),
)

PRESENCE_PENALTY = Item(
    "presence_penalty",
    "The presence penalty counts every token of the answer so far, and once.",
    _penalty("presence_penalty", 2.0, lambda count: float(count > 0)),
)
