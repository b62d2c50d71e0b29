"""A proxy before a sound server that plants one fault at a time: what comes back is all a client sees.

It sits where the client's connection would be, so no second socket is needed. Answers of the sound server
are kept by request: a fault costs only the requests that it changes. One token is one character here
(``byte_models``), and a window holds ``STEP`` tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
from byte_models import ASCII, SPECIAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["FAULTS", "STEP", "ProxiedServer"]

STEP = 5
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
CALL = '{"colour": "(red|green|blue)", "days": [0-9]{1,2}}'.replace("{", "\\{", 1)

Body: TypeAlias = dict[str, Any]
Fault: TypeAlias = Callable[["Proxy", str, Body], Awaitable[Any]]
"""Answers a request: a whole answer's document, or the events of a stream."""


class Refused(Exception):
    """What the sound server refuses, with its status, a faulty one refuses too."""


@dataclass
class Proxy(httpx.AsyncBaseTransport):
    """Forwards to the server at ``url``; ``fault`` answers in its place where it wants to."""

    url: str
    kept: dict[str, Any]
    fault: Fault | None = None
    number: int = 0
    flying: list[Body] = field(default_factory=list)
    reads_on: bool = False
    _server: httpx.AsyncClient | None = None
    _reading: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def server(self) -> httpx.AsyncClient:
        if self._server is None:
            limits = httpx.Limits(max_connections=32, max_keepalive_connections=0)
            self._server = httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits)
        return self._server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path not in {CHAT, TEXT}:
            return await self._aside(request.method, path, await request.aread())
        body = json.loads(await request.aread())
        if _is_left(body):
            return await self._live(path, body)
        self.flying.append(body)
        try:
            status, answer = 200, None
            if self.fault is not None:
                answer = await self.fault(self, path, body)
            if answer is None:
                status, answer = await self.answer(path, body)
        except Refused as refused:
            status, answer = refused.args
        finally:
            self.flying.remove(body)
        return httpx.Response(status, content=_bytes(answer))

    async def changes(self, path: str, body: Body) -> bool:
        """Whether the fault would answer a request, if another came just before it."""
        assert self.fault is not None
        if _is_left(body):
            return self.fault is reads_on
        self.flying = [dict(body), body]
        try:
            answer = await self.fault(self, path, body)
        except Refused:
            return False
        finally:
            self.flying = []
        return answer is not None

    async def answer(self, path: str, body: Body) -> tuple[int, Any]:
        """What the sound server says; with a fault planted, from memory where it said it before."""
        if "tools" in body:
            return 200, await self._with_tools(body)
        key = json.dumps([path, body], sort_keys=True)
        if self.fault is None or key not in self.kept:
            found = await self.server.post(path, json=body)
            self.kept[key] = found.status_code, _read(found)
        status, answer = self.kept[key]
        return status, json.loads(json.dumps(answer))

    async def sound(self, path: str, body: Body, **changes: Any) -> Any:
        """The same for a changed body; None takes a field away."""
        changed = {k: v for k, v in (body | changes).items() if v is not None}
        if not changed.get("stream"):
            changed.pop("stream_options", None)
        status, answer = await self.answer(path, changed)
        if status != 200:
            raise Refused(status, answer)
        return answer

    async def _with_tools(self, body: Body, *, lossy: bool = False) -> Any:
        """Tools as a server offers them: the answer is bound to a call, and read as one."""
        rest = {"tools": None, "tool_choice": None, "stream": None}
        whole = await self.sound(CHAT, body, **rest, regex=CALL)
        choice = whole["choices"][0]
        text = choice["message"].pop("content")
        choice["finish_reason"] = "tool_calls"
        call = {"name": "count_colour", "arguments": text}
        if not body.get("stream"):
            choice["message"]["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
            return whole
        parts = [text[i : i + STEP] for i in range(0, len(text), STEP)]
        if lossy:
            parts = [part.lstrip() for part in parts]
        deltas: list[Any] = [{"role": "assistant"}]
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts
        ]
        deltas[1]["tool_calls"][0]["function"]["name"] = call["name"]
        return [_event(whole, delta) for delta in deltas] + [_event(whole, {}, finish="tool_calls")]

    async def _aside(self, method: str, path: str, content: bytes) -> httpx.Response:
        key = f"{path} {content.decode()}"
        if self.fault is None or key not in self.kept or path == "/metrics":
            kind = {"content-type": "application/json"}
            found = await self.server.request(method, path, content=content, headers=kind)
            self.kept[key] = found.status_code, found.content
        status, text = self.kept[key]
        return httpx.Response(status, content=text)

    async def _live(self, path: str, body: Body) -> httpx.Response:
        request = self.server.build_request("POST", path, json=body)
        upstream = await self.server.send(request, stream=True)
        if not self.reads_on:
            return httpx.Response(200, stream=_Live(upstream))
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def read() -> None:
            async for part in upstream.aiter_raw():
                lines.put_nowait(part)
            lines.put_nowait(None)

        task = asyncio.create_task(read())
        self._reading.add(task)
        return httpx.Response(200, stream=_Queued(lines))


class _Live(httpx.AsyncByteStream):
    def __init__(self, upstream: httpx.Response) -> None:
        self._upstream = upstream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._upstream.aiter_raw():
            yield part

    async def aclose(self) -> None:
        await self._upstream.aclose()


class _Queued(httpx.AsyncByteStream):
    def __init__(self, lines: asyncio.Queue[bytes | None]) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._lines.get()) is not None:
            yield part


@dataclass(frozen=True)
class ProxiedServer:
    """What ``examine`` is given in place of a server."""

    proxy: Proxy
    model: str = "target"

    @property
    def info(self) -> Any:
        return SimpleNamespace(model=self.model, url=self.proxy.url)

    @asynccontextmanager
    async def connect(self, at_most: int) -> AsyncIterator[Any]:
        client = httpx.AsyncClient(transport=self.proxy, base_url=self.proxy.url)
        yield SimpleNamespace(client=client)


def _is_left(body: Body) -> bool:
    """Whether this is a stream that somebody leaves: too long for anything else."""
    return bool(body.get("stream")) and body["max_tokens"] >= 300


def _read(found: httpx.Response) -> Any:
    """A document, or the events of a stream without the last."""
    if not found.headers["content-type"].startswith("text/event-stream"):
        return found.json()
    *lines, last = [line for line in found.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def _bytes(answer: Any) -> bytes:
    if isinstance(answer, dict):
        return json.dumps(answer).encode()
    lines = [json.dumps(event) for event in answer] + ["[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _event(whole: Any, delta: Any, *, finish: str | None = None) -> Any:
    choice: Any = {"index": 0, "finish_reason": finish}
    choice |= {"delta": delta} if whole["object"].startswith("chat") else {"text": "", **delta}
    return {"id": whole["id"], "object": whole["object"], "choices": [choice]}


def _shaped(body: Body, whole: Any) -> Any:
    """A whole answer as the request wants it: as it is, or as the events of a stream."""
    if not body.get("stream"):
        return whole
    choice = whole["choices"][0]
    chat = "message" in choice
    text = _text(whole)
    events = [_event(whole, {"role": "assistant"})] if chat else []
    events += [_event(whole, {"content" if chat else "text": text})]
    events += [_event(whole, {}, finish=choice["finish_reason"])]
    if body.get("stream_options"):
        events.append({"id": whole["id"], "choices": [], "usage": whole["usage"]})
    return events


def _text(whole: Any) -> str:
    choice = whole["choices"][0]
    found: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return found


def _say(whole: Any, text: str, *, finish: str | None = None, made: int | None = None) -> Any:
    """Change what a whole answer says."""
    choice, usage = whole["choices"][0], whole["usage"]
    if "message" in choice:
        choice["message"]["content"] = text
    else:
        choice["text"] = text
    choice["finish_reason"] = finish or choice["finish_reason"]
    if made is not None:
        usage["completion_tokens"] = made
        usage["total_tokens"] = usage["prompt_tokens"] + made
    return whole


def _step_end(place: int) -> int:
    return -(-place // STEP) * STEP


def _stops(body: Body) -> list[str]:
    given = body.get("stop") or []
    return [given] if isinstance(given, str) else given


async def _without_stop(proxy: Proxy, path: str, body: Body) -> tuple[Any, int | None]:
    """The answer that no stop text ends, and where the first of them is complete in it."""
    whole = await proxy.sound(path, body, stop=None, stream=None)
    text = _text(whole)
    ends = [text.find(stop) + len(stop) for stop in _stops(body) if stop in text]
    return whole, min(ends, default=None)


async def stop_at_the_end_of_a_step(proxy: Proxy, path: str, body: Body) -> Any:
    if not _stops(body):
        return None
    whole, end = await _without_stop(proxy, path, body)
    if end is None:
        return None
    text = _text(whole)[: _step_end(end)]
    return _shaped(body, _say(whole, text, finish="stop", made=len(text)))


async def cap_before_stop(proxy: Proxy, path: str, body: Body) -> Any:
    if not _stops(body):
        return None
    whole, end = await _without_stop(proxy, path, body)
    reached = whole["choices"][0]["finish_reason"] == "length"
    if end is None or not reached or _step_end(end) < len(_text(whole)):
        return None
    return _shaped(body, whole)


def _is_free(body: Body) -> bool:
    """Whether nothing but end tokens and the cap ends the answer."""
    bound = {"stop", "regex", "response_format", "tools", "n"}
    return not bound & body.keys()


async def tokens_after_the_end(proxy: Proxy, path: str, body: Body) -> Any:
    if not _is_free(body) or "logprobs" in body:
        return None
    whole = await proxy.sound(path, body, stream=None)
    made = whole["usage"]["completion_tokens"]
    more = min(_step_end(made), body["max_tokens"]) - made
    if whole["choices"][0]["finish_reason"] != "stop" or not more:
        return None
    return _shaped(body, _say(whole, _text(whole) + "~" * more, made=made + more))


async def minimum_by_whole_steps(proxy: Proxy, path: str, body: Body) -> Any:
    least = body.get("min_tokens")
    if least is None:
        return None
    return await proxy.sound(path, body, min_tokens=least // STEP * STEP)


async def first_step_ignores_the_cap(proxy: Proxy, path: str, body: Body) -> Any:
    if not _is_free(body) or "logit_bias" in body or body["max_tokens"] >= STEP:
        return None
    return await proxy.sound(path, body, max_tokens=STEP)


async def drafts_past_the_context(proxy: Proxy, path: str, body: Body) -> Any:
    if path != TEXT or len(body["prompt"]) < 512:
        return None
    whole = await proxy.sound(path, body)
    return _say(whole, _text(whole), made=whole["usage"]["completion_tokens"] + STEP)


async def _by_steps(
    proxy: Proxy, body: Body, changes: Callable[[str], list[tuple[int, Body]]]
) -> Any:
    """An answer made of short ones: ``changes`` of the text so far gives their sizes and settings."""
    text, made, rows = "", 0, []
    while True:
        for size, more in changes(body["prompt"] + text):
            count = min(size, body["max_tokens"] - made)
            asked = {"max_tokens": count, "stream": None, "prompt": body["prompt"] + text}
            whole = await proxy.sound(TEXT, body, **asked, **more)
            text += _text(whole)
            made += whole["usage"]["completion_tokens"]
            rows.append(whole["choices"][0]["logprobs"])
            if whole["choices"][0]["finish_reason"] == "stop" or made == body["max_tokens"]:
                if all(rows):
                    whole["choices"][0]["logprobs"] = {
                        name: [one for row in rows for one in row[name]] for name in rows[0]
                    }
                return _shaped(body, _say(whole, text, made=made))


async def bias_on_the_bonus_only(proxy: Proxy, path: str, body: Body) -> Any:
    if path != TEXT or {abs(bias) for bias in body.get("logit_bias", {}).values()} != {100}:
        return None
    return await _by_steps(proxy, body, lambda _: [(STEP - 1, {"logit_bias": None}), (1, {})])


async def penalty_once_a_step(proxy: Proxy, path: str, body: Body) -> Any:
    strength = body.get("frequency_penalty")
    if strength is None:
        return None

    def frozen(text: str) -> list[tuple[int, Body]]:
        counts = Counter(text)
        bias = {str(len(SPECIAL) + ASCII.index(ord(c))): -strength * n for c, n in counts.items()}
        return [(STEP, {"logit_bias": bias, "frequency_penalty": None})]

    return await _by_steps(proxy, body, frozen)


def ignores(name: str) -> Fault:
    async def answer(proxy: Proxy, path: str, body: Body) -> Any:
        return await proxy.sound(path, body, **{name: None}) if name in body else None

    return answer


async def _unmasked(proxy: Proxy, path: str, body: Body, name: str, *, behind: str = "") -> Any:
    """The bound answer, some of its characters from the free one: the last of each step, or those
    between ``behind`` and the end of its step.
    """
    whole = await proxy.sound(path, body)
    free = await proxy.sound(path, body, **{name: None})
    text, other = _text(whole), _text(free).ljust(len(_text(whole)), "~")
    places = set(range(STEP - 1, len(text), STEP))
    if behind:
        end = text.find(behind) + len(behind)
        places = set(range(end, min(_step_end(end), len(text))))
    return _say(whole, "".join(other[i] if i in places else c for i, c in enumerate(text)))


async def schema_not_on_the_bonus(proxy: Proxy, path: str, body: Body) -> Any:
    if "response_format" not in body:
        return None
    return await _unmasked(proxy, path, body, "response_format")


async def regex_not_on_the_bonus(proxy: Proxy, path: str, body: Body) -> Any:
    if "regex" not in body or "</think>" in body["regex"]:
        return None
    return await _unmasked(proxy, path, body, "regex")


async def mask_from_the_step_after_the_tag(proxy: Proxy, path: str, body: Body) -> Any:
    if "</think>" not in body.get("regex", ""):
        return None
    return await _unmasked(proxy, path, body, "regex", behind="</think>")


async def tool_parser_by_pieces(proxy: Proxy, path: str, body: Body) -> Any:
    if "tools" not in body or not body.get("stream"):
        return None
    return await proxy._with_tools(body, lossy=True)


async def text_parser_by_pieces(proxy: Proxy, path: str, body: Body) -> Any:
    if not body.get("stream") or body.get("stream_options") or "tools" in body or "n" in body:
        return None
    whole = await proxy.sound(path, body, stream=None)
    text = _text(whole)
    steps = [text[i : i + STEP] for i in range(0, len(text), STEP)]
    lost = "".join(step[:-1] if len(step) == STEP else step for step in steps)
    return _shaped(body, _say(whole, lost))


async def end_before_the_last_text(proxy: Proxy, path: str, body: Body) -> Any:
    if not body.get("stream_options"):
        return None
    events = await proxy.sound(path, body)
    ends = [i for i, e in enumerate(events) if e["choices"] and e["choices"][0]["finish_reason"]]
    events[ends[0] - 1 : ends[0] + 1] = events[ends[0] - 1 : ends[0] + 1][::-1]
    return events


async def reads_on(proxy: Proxy, path: str, body: Body) -> Any:
    proxy.reads_on = True


async def seed_ignored(proxy: Proxy, path: str, body: Body) -> Any:
    if not body["temperature"]:
        return None
    proxy.number += 1
    return await proxy.sound(path, body, seed=proxy.number % 3)


async def seed_from_the_batch(proxy: Proxy, path: str, body: Body) -> Any:
    place = len(proxy.flying) - 1  # how many were there before it
    await asyncio.sleep(0.002)
    if not body["temperature"] or body.get("stream") or not place:
        return None
    return await proxy.sound(path, body, seed=body["seed"] + 100 * place)


async def choices_alike(proxy: Proxy, path: str, body: Body) -> Any:
    if "n" not in body:
        return None
    answer = await proxy.sound(path, body, stream=None)
    first, *others = answer["choices"]
    for other in others:
        other |= {"text": first["text"]}
    if not body.get("stream"):
        return answer
    return [
        _event(answer, delta, finish=finish) | {"choices": [{**choice, "text": text}]}
        for choice in answer["choices"]
        for delta, finish, text in (({}, None, choice["text"]),)
    ]


async def crosses_requests(proxy: Proxy, path: str, body: Body) -> Any:
    before = [one for one in proxy.flying[:-1] if one.get("stream")]
    await asyncio.sleep(0.002)
    if not body.get("stream") or "tools" in body or not before:
        return None
    return await proxy.sound(path, before[-1])


async def usage_counts_steps(proxy: Proxy, path: str, body: Body) -> Any:
    if not body.get("stream_options"):
        return None
    events = await proxy.sound(path, body)
    usage = events[-1]["usage"]
    usage["completion_tokens"] = _step_end(usage["completion_tokens"]) // STEP
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return events


def logprobs_of_the_draft(*, top: bool) -> Fault:
    async def answer(proxy: Proxy, path: str, body: Body) -> Any:
        penalised = {"frequency_penalty", "presence_penalty"} & body.keys()
        if path != TEXT or not body.get("logprobs") or penalised:
            return None
        whole = await proxy.sound(path, body)
        given = whole["choices"][0]["logprobs"]
        for place in range(1, len(given["tokens"])):
            if place % STEP:
                given["token_logprobs"][place] -= 0.5
                if top:
                    row = given["top_logprobs"][place]
                    given["top_logprobs"][place] = {k: v - 0.5 for k, v in row.items()}
        return whole

    return answer


FAULTS: dict[str, tuple[str, Fault]] = {
    "stop looked for at the end of a step": ("stop_text", stop_at_the_end_of_a_step),
    "tokens after the end token": ("end_token", tokens_after_the_end),
    "length cap checked before stop": ("stop_and_length", cap_before_stop),
    "minimum length by whole steps": ("min_tokens", minimum_by_whole_steps),
    "first step ignores the cap": ("max_tokens", first_step_ignores_the_cap),
    "drafts past the context": ("context_edge", drafts_past_the_context),
    "logit bias on the bonus only": ("logit_bias", bias_on_the_bonus_only),
    "logit bias ignored": ("logit_bias", ignores("logit_bias")),
    "penalties once per step": ("frequency_penalty", penalty_once_a_step),
    "frequency penalty ignored": ("frequency_penalty", ignores("frequency_penalty")),
    "presence penalty ignored": ("presence_penalty", ignores("presence_penalty")),
    "bonus row without grammar mask": ("json_schema", schema_not_on_the_bonus),
    "bonus row without regex mask": ("regex", regex_not_on_the_bonus),
    "mask from the step after the close tag": ("after_reasoning", mask_from_the_step_after_the_tag),
    "tool parser depends on chunking": ("tool_calls", tool_parser_by_pieces),
    "streaming parser depends on chunking": ("stream_equals_whole", text_parser_by_pieces),
    "the end before the last text": ("stream_order", end_before_the_last_text),
    "a request goes on when its client leaves": ("cancellation", reads_on),
    "per-request seed ignored": ("seed_alone", seed_ignored),
    "seed depends on the batch": ("seed_in_batch", seed_from_the_batch),
    "choices are copies": ("choices", choices_alike),
    "tokens cross requests": ("canaries", crosses_requests),
    "usage counts steps": ("usage", usage_counts_steps),
    "log-probability of the draft": ("logprobs", logprobs_of_the_draft(top=False)),
    "log-probabilities of the draft": ("logprobs", logprobs_of_the_draft(top=True)),
}
"""By name: the one item that has to turn red, and the fault."""
