"""What the official client may expect of an HTTP engine: ours on a tiny model, llama.cpp on a real one.

The shared part holds for both; what only ours promises stands below it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from byte_models import ASCII, CHARACTERS, write_byte_llama
from engine_server import HTTP, gauge, serving_model, wait_until
from llama import gguf, llama

openai = pytest.importorskip("openai")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["gguf"]

SHARED = [
    pytest.param("engine", marks=pytest.mark.torch),
    pytest.param("llama.cpp", marks=[pytest.mark.model, pytest.mark.timeout(600)]),
]
OURS = pytest.mark.torch
WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs"]


@dataclass(frozen=True)
class Served:
    """A server under test: ``exact`` where an answer does not depend on its neighbours."""

    url: str
    exact: bool = False

    @property
    def client(self) -> Any:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def ask(self, words: str = "Say the alphabet.", **more: Any) -> Any:
        return self.client.chat.completions.create(**asked(words, **more))

    def stream(self, words: str = "Say the alphabet.", **more: Any) -> list[Any]:
        with self.client.chat.completions.create(**asked(words, stream=True, **more)) as chunks:
            return list(chunks)

    def tokens(self, text: str) -> int:
        body = {"content": text, "add_special": False} if not self.exact else {"content": text}
        return len(HTTP.post(f"{self.url}/tokenize", json=body).json()["tokens"])


def asked(words: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": words}]
    return {
        "model": "target",
        "messages": messages,
        "max_tokens": 20,
        "temperature": 0,
        **more,
    }


def text_of(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("torch")
    folder = write_byte_llama(tmp_path_factory.mktemp("served") / "target")
    with serving_model(folder) as (url, _):
        yield Served(url, exact=True)


@pytest.fixture(scope="module", params=SHARED)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "engine":
        yield request.getfixturevalue("ours")
    else:
        with llama(request.getfixturevalue("gguf"), "ngram") as url:
            wait_until(lambda: HTTP.get(f"{url}/health").status_code == 200, seconds=120)
            yield Served(url)


def test_a_stream_says_what_the_whole_answer_says(server: Served) -> None:
    whole = server.ask()
    chunks = server.stream(stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason == "length"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20


def test_usage_counts_what_the_tokenizer_counts(server: Served) -> None:
    usage = server.ask().usage
    text = server.ask().choices[0].message.content
    assert usage.completion_tokens == server.tokens(text)
    more = server.ask("Say the alphabet. Say it again.").usage
    assert more.prompt_tokens - usage.prompt_tokens == server.tokens(" Say it again.")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stop_text_ends_the_answer_before_itself(server: Served) -> None:
    text = server.ask().choices[0].message.content
    stop = text[9:13]
    wanted = text[: text.index(stop)]
    for stops in (stop, ["never in it", stop]):
        answer = server.ask(stop=stops)
        assert answer.choices[0].message.content == wanted
        assert answer.choices[0].finish_reason == "stop"
        chunks = server.stream(stop=stops)
        assert text_of(chunks) == wanted
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].choices[0].delta.content in {None, ""}


def test_a_seed_repeats_a_sampled_answer(server: Served) -> None:
    def say(seed: int) -> str:
        answer = server.ask(temperature=1.0, seed=seed, max_tokens=16)
        text: str = answer.choices[0].message.content
        return text

    assert say(7) == say(7)
    assert len({say(seed) for seed in range(3)}) > 1


def test_log_probabilities_come_with_every_token(server: Served) -> None:
    answer = server.ask(logprobs=True, top_logprobs=3, max_tokens=8)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens == 8
    assert "".join(one.token for one in content) == answer.choices[0].message.content
    for one in content:
        values = [top.logprob for top in one.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert one.token == one.top_logprobs[0].token
        assert one.logprob == pytest.approx(values[0])
        assert one.logprob <= 0
    chunks = server.stream(logprobs=True, top_logprobs=3, max_tokens=8)
    streamed = [
        one
        for c in chunks
        if c.choices and c.choices[0].logprobs
        for one in c.choices[0].logprobs.content
    ]
    assert [one.token for one in streamed] == [one.token for one in content]


def test_an_error_is_the_clients_own(server: Served) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        server.ask(temperature="hot")
    assert refused.value.status_code in {400, 500}
    assert refused.value.body["message"]
    assert server.ask(max_tokens=1).usage.completion_tokens == 1


async def read(client: Any, words: str, *, leave: bool) -> str:
    stream = await client.chat.completions.create(**asked(words, stream=True))
    said = ""
    async for chunk in stream:
        said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if leave and said:
            await stream.close()
            break
    return said


def test_streams_beside_each_other_and_clients_that_leave(server: Served) -> None:
    prompts = [f"Canary {word} {number}: tell me of it." for number, word in enumerate(WORDS[:8])]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(
                *(read(client, p, leave=i % 2 == 1) for i, p in enumerate(prompts))
            )

    found = asyncio.run(together())
    alone = [
        server.ask(prompt).choices[0].message.content for prompt in prompts[: 8 * server.exact]
    ]
    for place, (text, whole) in enumerate(zip(found, alone, strict=False)):
        assert whole.startswith(text) if place % 2 else text == whole
    assert all(found)
    if server.exact:
        assert len(set(alone)) > len(alone) // 2, "answers that do not tell prompts apart"
        wait_until(lambda: gauge(server.url, "num_requests_running") == 0, seconds=5)
        assert gauge(server.url, "num_requests_waiting") == 0
    assert server.ask(max_tokens=2).usage.completion_tokens == 2


@OURS
def test_drafting_changes_nothing_but_the_counts(ours: Served) -> None:
    plain = ours.ask(extra_body={"gamma": 0})
    drafted = ours.ask(extra_body={"gamma": 6, "proposer": "ngram"})
    assert plain.choices[0].message.content == drafted.choices[0].message.content
    assert plain.timings["draft_n"] == 0
    assert drafted.timings["draft_n"] >= drafted.timings["draft_n_accepted"] >= 0
    assert ours.ask(extra_body={"gamma": 4, "adaptive": True}).usage == plain.usage


@OURS
def test_several_choices_are_those_of_their_seeds(ours: Served) -> None:
    several = ours.ask(n=3, seed=5, temperature=1.0)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    for choice in several.choices:
        alone = ours.ask(seed=5 + choice.index, temperature=1.0)
        assert alone.choices[0].message.content == choice.message.content
    assert several.usage.completion_tokens == 60
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens


@OURS
def test_text_completions_and_their_log_probabilities(ours: Served) -> None:
    create = ours.client.completions.create
    body: dict[str, Any] = {
        "model": "target",
        "prompt": "one two",
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = create(**body, logprobs=2)
    assert whole.usage.prompt_tokens == 7
    scored = whole.choices[0].logprobs
    assert "".join(scored.tokens) == whole.choices[0].text
    assert scored.text_offset == list(range(12))
    assert all(len(top) == 2 for top in scored.top_logprobs)
    assert all(t in top for t, top in zip(scored.tokens, scored.top_logprobs, strict=True))
    with create(**body, stream=True) as chunks:
        assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    tokens = HTTP.post(f"{ours.url}/tokenize", json={"content": "one two"}).json()["tokens"]
    assert create(**{**body, "prompt": tokens}).choices[0].text == whole.choices[0].text


@OURS
@pytest.mark.parametrize("seed", range(2))
def test_token_ids_are_told_whole_and_streamed(ours: Served, seed: int) -> None:
    more: dict[str, Any] = {
        "temperature": 1.0,
        "seed": seed,
        "extra_body": {"return_token_ids": True},
    }
    choice = ours.ask(**more).choices[0]
    assert len(choice.token_ids) == 20
    body = {"tokens": choice.token_ids}
    assert (
        HTTP.post(f"{ours.url}/detokenize", json=body).json()["content"] == choice.message.content
    )
    told = [c.choices[0].model_extra or {} for c in ours.stream(**more) if c.choices]
    streamed = [token for extra in told for token in extra.get("token_ids") or ()]
    assert streamed == choice.token_ids
    assert not hasattr(ours.ask().choices[0], "token_ids")


@OURS
def test_limits_of_an_answer(ours: Served) -> None:
    text = ours.ask().choices[0].message.content
    early = ours.ask(stop=text[0], extra_body={"min_tokens": 6})
    assert len(early.choices[0].message.content) >= 6
    banned = {"logit_bias": {str(ours_token(ours, text[0])): -100}}
    assert ours.ask(**banned).choices[0].message.content[0] != text[0]
    assert ours.ask(max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3
    with pytest.raises(openai.BadRequestError, match="512"):
        ours.ask("a" * 600)


def ours_token(served: Served, letter: str) -> int:
    (token,) = HTTP.post(f"{served.url}/tokenize", json={"content": letter}).json()["tokens"]
    return int(token)


@OURS
def test_unknown_fields_and_models_are_named(ours: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ours.ask(extra_body={"tempreature": 1})
    assert refused.value.param == "tempreature"
    assert refused.value.code == "unknown_key"
    with pytest.raises(openai.NotFoundError, match="target"):
        ours.ask(model="gpt")
    assert [m.id for m in ours.client.models.list()] == ["target"]


@OURS
def test_answers_that_must_match(ours: Served) -> None:
    asked_for = {"regex": "[a-f]{3}-[0-9]{2}"}
    text = ours.ask(temperature=1.0, seed=1, extra_body=asked_for).choices[0].message.content
    assert len(text) == 6
    assert text[3] == "-"
    assert text[4:].isdigit()
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = ours.ask(
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(answer.choices[0].message.content)) == {"ok"}
    with pytest.raises(openai.BadRequestError):
        ours.ask(extra_body={"regex": "("})


@OURS
def test_characters_of_several_tokens_are_never_broken(tmp_path: Path) -> None:
    letters = bytes(sorted({*ASCII, *CHARACTERS.encode()}))
    with serving_model(write_byte_llama(tmp_path / "target", letters)) as (url, service):
        served = Served(url, exact=True)
        garbage: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 60}
        garbage["logit_bias"] = {str(t): 2 for t in service.engine.tokenize(CHARACTERS)}
        whole = served.ask("a", **garbage).choices[0].message.content
        assert "\ufffd" in whole
        assert text_of(served.stream("a", **garbage)) == whole
        spelled = {"regex": f"[{CHARACTERS}]{{12}}"}
        body: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 60}
        chunks = served.stream("a", **body, extra_body=spelled)
        assert all(set(text_of([chunk])) <= set(CHARACTERS) for chunk in chunks)
        assert len(text_of(chunks)) == 12
