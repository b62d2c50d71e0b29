"""The battery's judgement alone: replies are written here, and no server is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper.gates.battery import (
    counts,
    facts,
    lengths,
    processors,
    requests,
    streams,
    structure,
)
from gatekeeper.gates.battery.catalog import ITEMS
from gatekeeper.gates.battery.exchange import Ask, Choice, Reply, Stage, Token
from gatekeeper.gates.battery.facts import Facts, learn
from gatekeeper.gates.battery.item import Item, State, Verdict, ask_all, failed, passed
from gatekeeper.gates.battery.judging import Finding, beside, put

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FACTS = Facts("m", completions=True, chat=True)
WORDS = "abcdefghijklmnopqrstuvwxyz0123456789"


def drive(plan: Generator[Stage, tuple[Reply, ...], Any], answer: Callable[[Ask], Reply]) -> Any:
    try:
        stage = next(plan)
        while True:
            stage = plan.send(tuple(answer(ask) for ask in stage.asks))
    except StopIteration as done:
        return done.value


def whole(ask: Ask, text: str, finish: str = "length", **more: Any) -> Reply:
    """A whole text completion; one character is one token."""
    usage = {"prompt_tokens": 3, "completion_tokens": len(text), "total_tokens": 3 + len(text)}
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish,
        "logprobs": more.pop("scores", None),
    }
    return Reply(ask, 200, {"choices": [choice], "usage": usage, **more})


def scores(text: str, tops: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "tokens": list(text),
        "token_logprobs": [top[token] for token, top in zip(text, tops, strict=True)],
        "top_logprobs": tops,
    }


def plain(ask: Ask) -> Reply:
    """Always the same letters, as many as are asked for."""
    assert ask.body is not None
    return whole(ask, WORDS[: ask.body["max_tokens"]])


def one_ask(**timings: Any) -> tuple[Item, Callable[[Ask], Reply]]:
    """An item that passes on whatever comes, and answers with these timings."""

    def plan(facts: Facts) -> Any:
        (reply,) = yield from ask_all([facts.ask("x", 4)])
        return passed("seen", reply)

    more = {"timings": timings} if timings else {}
    return Item("one", "It is answered.", plan), lambda ask: whole(ask, "abcd", **more)


def test_every_item_has_its_own_name_and_claim() -> None:
    assert len({item.id for item in ITEMS}) == len({item.claim for item in ITEMS}) == len(ITEMS)
    assert all(item.claim.endswith(".") for item in ITEMS)


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ({"status": 400, "document": {"error": {"message": "no such field"}}}, "not applicable"),
        ({"status": 404, "text": "Not Found"}, "not applicable"),
        ({"status": 501}, "not applicable"),
        ({"status": 429}, "not verified"),
        ({"status": 503}, "not verified"),
        ({"status": 0, "trouble": "timeout: no whole answer within 1 s"}, "not verified"),
        ({"status": 500, "text": "oh"}, "fail"),
        ({"status": 0, "trouble": "RemoteProtocolError: gone"}, "fail"),
        ({"status": 200, "events": ({"error": {"message": "x"}},)}, "fail"),
    ],
)
def test_what_no_item_reads_ends_it(reply: dict[str, Any], state: str) -> None:
    item, _ = one_ask()
    found = drive(put(item, FACTS), lambda ask: Reply(ask, **reply))
    assert found.verdict.state == state
    ((ask, said),) = found.verdict.shown
    assert ask.to_dict()["body"]["prompt"] == "x"
    assert said
    if "document" in reply:
        assert "no such field" in found.verdict.detail


@pytest.mark.parametrize(
    ("timings", "windowed", "state", "words"),
    [
        ({"draft_n": 8, "draft_n_accepted": 5}, True, State.PASS, "seen"),
        ({"draft_n": 8, "draft_n_accepted": 0}, True, State.NOT_VERIFIED, "no draft was accepted"),
        ({"draft_n": 8, "draft_n_accepted": 0}, False, State.PASS, "seen"),
        ({}, True, State.PASS, "does not tell whether drafts were accepted"),
    ],
)
def test_a_pass_without_accepted_drafts_says_nothing_of_windows(
    timings: dict[str, int],
    windowed: bool,  # noqa: FBT001 - a parameter of the test
    state: State,
    words: str,
) -> None:
    item, answer = one_ask(**timings)
    found = drive(put(replace(item, windowed=windowed), FACTS), answer)
    assert found.verdict.state is state
    assert words in found.verdict.detail
    assert found.to_dict()["accepted"] == timings.get("draft_n_accepted")


@pytest.mark.parametrize(
    ("compares", "texts", "state"),
    [
        (True, "bbbb", State.FAIL),
        (True, "baaa", State.NOT_VERIFIED),
        (False, "baaa", State.FAIL),
    ],
)
def test_what_compares_texts_has_to_fail_twice(
    compares: bool,  # noqa: FBT001 - a parameter of the test
    texts: str,
    state: State,
) -> None:
    said = iter(texts)

    def plan(facts: Facts) -> Any:
        (reply,) = yield from ask_all([facts.ask("x", 1)])
        return passed("a", reply) if reply.first.text == "a" else failed("b", reply)

    item = Item("one", "It says a.", plan, compares=compares)
    found = drive(put(item, FACTS), lambda ask: whole(ask, next(said)))
    assert found.verdict.state is state
    assert ("failed once and not again" in found.verdict.detail) is (state is State.NOT_VERIFIED)


@pytest.mark.parametrize(("kept", "state"), [(0, "fail"), (1, "fail"), (3, "not verified")])
def test_one_seed_that_moves_may_be_rounding(kept: int, state: str) -> None:
    asked: list[int] = []

    def answer(ask: Ask) -> Reply:
        assert ask.body is not None
        seed = ask.body["seed"]
        moved = asked.count(seed) % 2 and seed % 4 >= kept
        asked.append(seed)
        return whole(ask, f"{seed}{'x' if moved else 'y'}")

    assert drive(requests.SEED_ALONE.plan(FACTS), answer).state == state


def test_a_baseline_has_no_windows_to_see() -> None:
    item, answer = one_ask(draft_n=0, draft_n_accepted=0)
    assert drive(put(item, FACTS, speculates=False), answer).verdict.state is State.PASS


def finding(verdict: Verdict, *replies: Reply) -> Finding:
    return Finding(one_ask()[0], verdict, replies)


def beside_baseline(
    text: str, base_text: str, *, gap: float | None, **fields: Any
) -> tuple[Finding, list[Ask]]:
    """A candidate's and a baseline's greedy answer; the baseline's lead is ``gap`` nats everywhere."""
    asked: list[Ask] = []
    ask = FACTS.ask("x", 4, **fields)
    own, base = whole(ask, text), whole(ask, base_text)

    def again(asked_again: Ask) -> Reply:
        asked.append(asked_again)
        tops = [{token: -0.1, "!": -0.1 - (gap or 0)} for token in base_text]
        return whole(
            asked_again, base_text, scores=None if gap is None else scores(base_text, tops)
        )

    pair = (finding(passed("seen"), own), finding(passed("seen"), base))
    return drive(beside(*pair), again), asked


def test_greedy_texts_are_the_baselines_near_ties_apart() -> None:
    same, asked = beside_baseline("abcd", "abcd", gap=None)
    assert same.verdict.state is State.PASS
    assert "1 greedy answers are the baseline's" in same.verdict.detail
    assert not asked
    tie, asked = beside_baseline("abzz", "abcd", gap=0.2)
    assert tie.verdict.state is State.PASS
    assert asked[0].body is not None
    assert asked[0].body["logprobs"] == 5
    other, _ = beside_baseline("abzz", "abcd", gap=1.5)
    assert other.verdict.state is State.FAIL
    assert "1.50 nats" in other.verdict.detail
    assert len(other.verdict.shown) == 2
    hidden, _ = beside_baseline("abzz", "abcd", gap=None)
    assert hidden.verdict.state is State.NOT_VERIFIED
    biased, _ = beside_baseline("abzz", "abcd", gap=1.5, logit_bias={"3": 1})
    assert biased.verdict.state is State.NOT_VERIFIED
    sampled, _ = beside_baseline("abzz", "abcd", gap=1.5, temperature=1)
    assert sampled.verdict.detail == "seen"


def test_the_baseline_is_told_beside_what_did_not_pass() -> None:
    reply = whole(FACTS.ask("x", 4), "abcd")
    own, base = finding(failed("bad", reply)), finding(failed("bad too", reply))
    assert drive(beside(own, base), plain).verdict.detail == "bad; the baseline fails it too"
    good = finding(passed("fine", reply))
    assert drive(beside(own, good), plain).verdict.detail == "bad; the baseline: pass"


def test_fields_without_effect_are_not_applicable() -> None:
    found = drive(structure.REGEX.plan(FACTS), plain)
    assert found.state is State.NOT_APPLICABLE
    assert "regex is ignored" in found.detail
    assert "grammar is ignored" in found.detail

    def ends_early(ask: Ask) -> Reply:
        return whole(ask, "yes", "stop")

    found = drive(lengths.MIN_TOKENS.plan(FACTS), ends_early)
    assert found.state is State.NOT_APPLICABLE
    assert drive(requests.CHOICES.plan(FACTS), plain).state is State.NOT_APPLICABLE


def test_a_field_that_each_dialect_refuses_is_named() -> None:
    def refuses(ask: Ask) -> Reply:
        if {"regex", "structured_outputs", "guided_regex"} & (ask.body or {}).keys():
            return Reply(ask, 400, {"error": "no"})
        return plain(ask)

    found = drive(put(structure.REGEX, FACTS), refuses).verdict
    assert found.state is State.NOT_APPLICABLE
    assert "structured_outputs is refused" in found.detail


def test_nothing_to_see_is_never_a_pass() -> None:
    """A server that answers everything with an empty text."""
    everything = replace(FACTS, context=64, tokenises=True, ends=((2, "<e>"),), counts_running=True)

    def empty(ask: Ask) -> Reply:
        if ask.path == "/tokenize":
            return Reply(ask, 200, {"tokens": []})
        if ask.stream:
            return Reply(ask, 200, None, ({"id": "a", "choices": []},), closed=True)
        return Reply(ask, 200, {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})

    for item in ITEMS:
        verdict = drive(put(item, everything), empty).verdict
        assert verdict.state is not State.PASS, (item.id, verdict)


def test_penalties_are_computed_from_the_log_probabilities() -> None:
    item = processors.PRESENCE_PENALTY
    # after "a", the penalty of 2 makes "b" likelier although "a" leads by 1.5
    tops = [{"a": -0.5, "b": -1.5, "c": -4.0}, {"a": -0.5, "b": -2.0, "c": -4.0}]

    def answers(text: str, plain_text: str = "aa") -> Verdict:
        def answer(ask: Ask) -> Reply:
            said = text if "presence_penalty" in (ask.body or {}) else plain_text
            return whole(ask, said, scores=scores(said, tops))

        found: Verdict = drive(item.plan(FACTS), answer)
        return found

    assert answers("ab").state is State.PASS
    assert answers("aa").state is State.FAIL
    assert answers("ac").state is State.FAIL  # "b" beats it with or without the penalty
    # the likeliest everywhere, and yet another text than without: told after penalties
    assert answers("aa", "ab").state is State.NOT_VERIFIED


def test_log_probabilities_have_to_cohere() -> None:
    def answer(own: float, top: float) -> Verdict:
        def one(ask: Ask) -> Reply:
            row = scores("a", [{"a": top, "b": -3.0}]) | {"token_logprobs": [own]}
            return whole(ask, "a", scores=row)

        found: Verdict = drive(counts.LOGPROBS.plan(FACTS), one)
        return found

    assert answer(-0.5, -0.5).state is State.NOT_VERIFIED  # nothing asks for them again
    assert answer(-0.9, -0.5).state is State.FAIL
    assert answer(0.5, 0.5).state is State.FAIL
    assert drive(counts.LOGPROBS.plan(FACTS), plain).state is State.FAIL


def stream(*rows: dict[str, Any], **more: Any) -> Callable[[Ask], Reply]:
    events = tuple({"id": "a", "choices": [row]} for row in rows)
    usage: dict[str, Any] = {"id": "a", "choices": [], "usage": {"completion_tokens": 2}}
    return lambda ask: Reply(
        ask, 200, None, (*events, usage), **{"closed": True, "after_done": 0, **more}
    )


TEXT_A, END = {"index": 0, "text": "a"}, {"index": 0, "text": "", "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stream(TEXT_A, END), None),
        (stream(TEXT_A), "0 events say why"),
        (stream(TEXT_A, END, END), "2 events say why"),
        (stream(END, TEXT_A), "text follows the end"),
        (stream(TEXT_A, END, closed=False), "[DONE]"),
        (stream(TEXT_A, END, after_done=1), "1 events follow [DONE]"),
        (
            stream({"delta": {"content": "a"}}, {"delta": {"role": "assistant"}}, END),
            "the role comes after the text",
        ),
    ],
)
def test_the_order_of_a_stream(answer: Callable[[Ask], Reply], words: str | None) -> None:
    verdict = drive(streams.STREAM_ORDER.plan(FACTS), answer)
    assert verdict.state is (State.PASS if words is None else State.FAIL)
    assert words is None or words in verdict.detail


def test_pieces_of_any_server_are_put_together() -> None:
    def call(place: int, **function: str) -> dict[str, Any]:
        return {"delta": {"tool_calls": [{"index": place, "function": function}]}}

    rows = [
        {"delta": {"role": "assistant", "content": None}},
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1}]}},
        call(0, name="f", arguments="{"),
        call(1, name="g", arguments="[]"),
        call(0, arguments="}"),
        {"delta": {}, "finish_reason": "tool_calls"},
        "no row",
    ]
    events = tuple({"choices": [row]} for row in rows)
    found = Reply(Ask("/", {"stream": True}), 200, None, events).first
    calls = (("f", "{}"), ("g", "[]"))
    assert found == Choice("a", "hm", "tool_calls", (Token("a", -1.0),), calls)
    odd = {"choices": [{"text": 3, "logprobs": {"tokens": ["a"], "token_logprobs": []}}, None]}
    assert Reply(Ask("/", {}), 200, odd).first == Choice("3", "", None, (), ())
    assert Reply(Ask("/", {}), 200, ["no", "answer"]).choices == ()


def test_facts_of_a_server_that_offers_little() -> None:
    def chat_alone(ask: Ask) -> Reply:
        if ask.path != facts.CHAT:
            return Reply(ask, 404, text="Not Found")
        return Reply(
            ask, 200, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
        )

    found = drive(learn("m"), chat_alone)
    assert found == Facts("m", completions=False, chat=True)
    ask = found.ask("words", 3, logprobs=2)
    assert ask.path == facts.CHAT
    assert ask.body is not None
    assert ask.body["messages"] == [{"role": "user", "content": "words"}]
    assert (ask.body["logprobs"], ask.body["top_logprobs"]) == (True, 2)


def test_facts_of_a_server_that_offers_all() -> None:
    pages = {
        "/v1/models": {"data": [{"id": "other", "max_model_len": 9}, {"id": "m"}]},
        "/props": {"default_generation_settings": {"n_ctx": 2048}},
        "/metrics": None,
    }

    def answer(ask: Ask) -> Reply:
        body = ask.body or {}
        if ask.path == "/tokenize":
            ids = {"one two": [5, 6], "</s>": [2], "<|end|>": [8]}
            return Reply(ask, 200, {"tokens": ids.get(body["content"], [1, 1])})
        if ask.path in pages:
            return Reply(ask, 200, pages[ask.path], text='vllm:num_requests_running{a="b"} 2.0\n')
        return whole(ask, "", "stop") if body.get("logit_bias") == {"2": 100} else plain(ask)

    found = drive(learn("m"), answer)
    assert found.context == 2048
    assert found.tokenises
    assert found.counts_running
    assert found.ends == ((2, "</s>"),)  # a bias towards the other token ends nothing
