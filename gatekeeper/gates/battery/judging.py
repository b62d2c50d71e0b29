"""One item put to one server, and its verdict beside that of a server that decodes alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gatekeeper.gates.battery.exchange import Ask, Reply, Stage
from gatekeeper.gates.battery.item import Item, State, Verdict, failed, unfit, unverified

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gatekeeper.gates.battery.facts import Facts

__all__ = ["Finding", "beside", "put"]

_TIE = 0.25
"""Largest gap, in nats, between two tokens that rounding may put in either order (engines in bfloat16)."""

_OPEN = State.NOT_VERIFIED

_PLAIN = {"model", "prompt", "messages", "max_tokens", "temperature", "seed", "logprobs"}
_PLAIN |= {"top_logprobs", "stop", "stream", "stream_options"}
"""Fields that leave the target's own order of tokens as it is."""


@dataclass(frozen=True)
class Finding:
    """What became of an item at one server. ``drafted`` and ``accepted`` are None where not told."""

    item: Item
    verdict: Verdict
    replies: tuple[Reply, ...] = ()

    @property
    def drafts(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted over all requests; None where the server does not tell."""
        told = [reply.drafts for reply in self.replies if reply.drafts is not None]
        return (sum(d for d, _ in told), sum(a for _, a in told)) if told else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        drafted, accepted = self.drafts or (None, None)
        return {
            "id": self.item.id,
            "claim": self.item.claim,
            **self.verdict.to_dict(),
            "requests": len(self.replies),
            "drafted": drafted,
            "accepted": accepted,
        }


def put(
    item: Item, facts: Facts, *, speculates: bool = True
) -> Generator[Stage, tuple[Reply, ...], Finding]:
    """Ask what an item asks; what compares texts and fails is asked again, and has to fail again.

    ``speculates`` False is for a baseline, which has no windows to see.
    """
    found = yield from _put(item, facts)
    if found.verdict.state is State.FAIL and item.compares:
        again = yield from _put(item, facts)
        if again.verdict.state is not State.FAIL:
            detail = f"failed once and not again: {found.verdict.detail}"
            return replace(found, verdict=replace(found.verdict, state=_OPEN, detail=detail))
    return _with_evidence(found) if speculates else found


def _put(item: Item, facts: Facts) -> Generator[Stage, tuple[Reply, ...], Finding]:
    """Run a plan. What no item reads ends it: refusals, failures, silence."""
    plan = item.plan(facts)
    heard: list[Reply] = []
    try:
        stage = next(plan)
        while True:
            replies = yield stage
            heard += replies
            ended = _ended(replies)
            if ended is not None:
                plan.close()
                return Finding(item, ended, tuple(heard))
            stage = plan.send(replies)
    except StopIteration as done:
        return Finding(item, done.value, tuple(heard))


def _ended(replies: Sequence[Reply]) -> Verdict | None:
    for reply in replies:
        ask = reply.ask
        if reply.good or ask.may_be_missing or (ask.leave_after is not None and reply.events):
            continue
        if reply.refused:
            if ask.may_refuse:
                continue
            return unfit(f"the server refuses it ({reply.why})", reply)
        if reply.busy:
            return unverified(f"the server is busy ({reply.why})", reply)
        if reply.trouble is not None and reply.trouble.startswith("timeout"):
            return unverified(f"no whole answer in time ({reply.why})", reply)
        return failed(f"the answer broke off ({reply.why})", reply)
    return None


def _with_evidence(found: Finding) -> Finding:
    """Take back a pass of an item on windows where the server says that no draft was accepted."""
    drafts, verdict = found.drafts, found.verdict
    if verdict.state is not State.PASS or not found.item.windowed:
        return found
    if drafts is None:
        detail = f"{verdict.detail} (the server does not tell whether drafts were accepted)"
        return replace(found, verdict=replace(verdict, detail=detail))
    if drafts[1]:
        return found
    detail = f"no draft was accepted, so nothing was seen of windows: {verdict.detail}"
    return replace(found, verdict=replace(verdict, state=_OPEN, detail=detail))


def beside(own: Finding, base: Finding) -> Generator[Stage, tuple[Reply, ...], Finding]:
    """Read a finding beside the baseline's: greedy texts have to be alike, ties apart.

    The stages that this yields are for the baseline.
    """
    verdict = own.verdict
    if verdict.state is not State.PASS:
        told = "fails it too" if base.verdict.state is verdict.state is State.FAIL else None
        more = f"the baseline {told}" if told else f"the baseline: {base.verdict.state}"
        return replace(own, verdict=replace(verdict, detail=f"{verdict.detail}; {more}"))
    pairs, hidden = _pairs(own.replies, base.replies), None
    for mine, theirs in pairs:
        if (mine.first.text, mine.first.finish) == (theirs.first.text, theirs.first.finish):
            continue
        gap = yield from _gap(mine, theirs)
        if gap is not None and gap > _TIE:
            why = f"the text leaves the baseline's where its best token leads by {gap:.2f} nats"
            return replace(own, verdict=failed(why, mine, theirs))
        hidden = hidden or ((mine, theirs) if gap is None else None)
    if hidden is not None:
        why = "the text differs from the baseline's, and a near tie cannot be excluded"
        return replace(own, verdict=unverified(why, *hidden))
    if not pairs:
        return own
    detail = f"{verdict.detail}; {len(pairs)} greedy answers are the baseline's, near ties apart"
    return replace(own, verdict=replace(verdict, detail=detail))


def _pairs(own: Sequence[Reply], base: Sequence[Reply]) -> list[tuple[Reply, Reply]]:
    """Whole greedy answers of both servers to the same request, each once."""
    known = {key: reply for reply in base if (key := _key(reply)) is not None}
    mine = {key: reply for reply in own if (key := _key(reply)) is not None}
    return [(reply, known[key]) for key, reply in mine.items() if key in known]


def _key(reply: Reply) -> str | None:
    body = reply.ask.body or {}
    if not reply.good or not reply.choices or body.get("temperature") != 0 or reply.ask.stream:
        return None
    rest = {key: value for key, value in body.items() if key != "model"}
    return json.dumps([reply.ask.path, rest], sort_keys=True)


def _gap(mine: Reply, theirs: Reply) -> Generator[Stage, tuple[Reply, ...], float | None]:
    """By how much the baseline's best token leads where the texts part; None where unknown."""
    body = dict(theirs.ask.body or {})
    if not body.keys() <= _PLAIN or mine.first.text == theirs.first.text:
        return None  # told before penalties and bias, the gap after them is not known
    scored = {"logprobs": True, "top_logprobs": 5} if "messages" in body else {"logprobs": 5}
    ask = Ask(theirs.ask.path, body | scored, may_be_missing=True)
    (again,) = yield Stage((ask,))
    if again.first.text != theirs.first.text:
        return None
    so_far = ""
    for token in again.first.tokens:
        so_far += token.text
        if not mine.first.text.startswith(so_far):
            values = [value for _, value in token.top[:2]]
            return values[0] - values[1] if len(values) > 1 else None
    return None
