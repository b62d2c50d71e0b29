"""A small OpenAI server on a loopback port, with faults: the deltas come from a table of words.

The text for a prompt is a pseudo-random walk, the same at every server; ``Faults`` switches on what can
go wrong with a real one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request

WORDS = (" red", " green", " blue", " one", " two", " three", " sun", " rain")


@dataclass(frozen=True)
class Faults:
    """How a server differs from a sound one that decodes alone."""

    token_s: float = 0.002
    first_token_s: float = 0.0
    speculates: bool = False
    usage_factor: float = 1.0
    no_usage: bool = False
    drops: bool = False
    loading: int = 0
    error_after: int | None = None
    lossy: bool = False
    tie_every: int = 0
    logprobs: bool = True
    chat: bool = True
    models: tuple[str, ...] = ("fake",)
    key: str | None = None
    metrics: bool = True
    counts_drafts: bool = False


@dataclass
class FakeServer:
    """Counts what it served; ``faults`` may be changed while it runs."""

    faults: Faults = field(default_factory=Faults)
    url: str = ""
    answered: int = 0
    drafts: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def set(self, **changes: Any) -> None:
        self.faults = replace(self.faults, **changes)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/metrics", self._metrics),
                Route("/version", self._version),
            ]
        )

    async def _models(self, request: Request) -> Response:
        if self.faults.loading > 0:
            self.set(loading=self.faults.loading - 1)
            return JSONResponse({"error": {"message": "Loading model"}}, 503)
        if self.faults.key and request.headers.get("authorization") != f"Bearer {self.faults.key}":
            return JSONResponse({"error": "no"}, 401)
        return JSONResponse({"object": "list", "data": [{"id": m} for m in self.faults.models]})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": "7"})

    async def _metrics(self, request: Request) -> Response:
        if not self.faults.metrics:
            return Response(status_code=404)
        n = self.drafts
        return PlainTextResponse(
            f'# HELP x\nvllm:spec_decode_num_drafts_total{{model="fake"}} {n}\n'
            f'vllm:spec_decode_num_draft_tokens_total{{model="fake"}} {4 * n}.0\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{model="fake"}} {2 * n}.0\n'
            if self.faults.speculates or self.faults.counts_drafts
            else "up 1\n"
        )

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"tokens": list(range(len(body["content"].split())))})

    async def _chat(self, request: Request) -> Response:
        if not self.faults.chat:
            return JSONResponse({"error": "no chat template"}, 400)
        body = await request.json()
        return self._answer(body, json.dumps(body["messages"]), chat=True)

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        if isinstance(body["prompt"], list):
            return JSONResponse({"error": "token ids are not taken"}, 400)
        return self._answer(body, body["prompt"], chat=False)

    def _answer(self, body: dict[str, Any], prompt: str, *, chat: bool) -> Response:
        self.bodies.append(body)
        self.answered += 1
        limit = self.faults.error_after
        if limit is not None and self.answered > limit:
            return JSONResponse({"error": "overloaded"}, 503)
        return StreamingResponse(
            self._events(body, prompt, chat=chat), media_type="text/event-stream"
        )

    async def _events(self, body: dict[str, Any], prompt: str, *, chat: bool) -> AsyncIterator[str]:
        faults, count = self.faults, body["max_tokens"]
        await asyncio.sleep(faults.first_token_s)
        if chat:
            yield _event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        step = 2 if faults.speculates else 1
        for begin in range(0, count, step):
            await asyncio.sleep(faults.token_s)
            places = range(begin, min(count, begin + step))
            words = [self._word(prompt, place) for place in places]
            self.drafts += faults.speculates
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            text = "".join(words)
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            top = body.get("top_logprobs") or (body.get("logprobs") if not chat else 0)
            if top and faults.logprobs:
                rows = [_top(prompt, place) for place in places]
                choice["logprobs"] = _chat_form(rows) if chat else _list_form(rows)
            yield _event({"choices": [choice]})
            if faults.drops and begin >= count // 2:
                return
        end = {"delta": {}} if chat else {"text": ""}
        yield _event({"choices": [{"index": 0, "finish_reason": "length", **end}]})
        if not faults.no_usage:
            usage = {
                "prompt_tokens": len(prompt.split()),
                "completion_tokens": round(count * faults.usage_factor),
            }
            yield _event({"choices": [], "usage": usage, "system_fingerprint": "fp"})
        yield "data: [DONE]\n\n"

    def _word(self, prompt: str, place: int) -> str:
        first, second = (token for token, _ in _top(prompt, place)[:2])
        if self.faults.lossy and place == 5:
            return WORDS[(WORDS.index(first) + 5) % len(WORDS)]
        if self.faults.tie_every and place == 3 and _number(prompt, 0) % self.faults.tie_every == 0:
            return second
        return first


def _number(prompt: str, place: int) -> int:
    return int(hashlib.sha256(f"{place} {prompt}".encode()).hexdigest()[:8], 16)


def _top(prompt: str, place: int) -> list[tuple[str, float]]:
    """Likeliest first; at place 3 the first two are nearly as likely."""
    at = _number(prompt, place) % len(WORDS)
    gaps = (0.1, 0.3) if place == 3 else (0.1, 3.0)
    others = [WORDS[(at + i) % len(WORDS)] for i in (1, 2, 3)]
    return [(WORDS[at], -gaps[0]), *((w, -gaps[1] - i) for i, w in enumerate(others))]


def _chat_form(rows: list[list[tuple[str, float]]]) -> dict[str, Any]:
    return {
        "content": [
            {
                "token": top[0][0],
                "logprob": top[0][1],
                "top_logprobs": [{"token": t, "logprob": v} for t, v in top],
            }
            for top in rows
        ]
    }


def _list_form(rows: list[list[tuple[str, float]]]) -> dict[str, Any]:
    return {
        "tokens": [top[0][0] for top in rows],
        "token_logprobs": [top[0][1] for top in rows],
        "top_logprobs": [dict(top) for top in rows],
    }


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


@contextmanager
def fake_server(faults: Faults | None = None) -> Iterator[FakeServer]:
    """Serve until the block ends."""
    fake = FakeServer(faults or Faults())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(fake.app(), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 30
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.started
            yield fake
        finally:
            server.should_exit = True
            thread.join()
