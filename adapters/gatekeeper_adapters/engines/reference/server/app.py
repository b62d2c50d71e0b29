"""The application: OpenAI's endpoints, what operators look at, and errors in OpenAI's shape."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gatekeeper.errors import GatekeeperError, InputError, NotFound, TooLarge, Unavailable
from gatekeeper_adapters.engines.reference.server.answer import Answer, Times
from gatekeeper_adapters.engines.reference.server.forms import (
    ChatForm,
    CompletionForm,
    error_document,
    status_of,
)
from gatekeeper_adapters.engines.reference.server.reading import (
    document_of,
    read_text,
    read_tokens,
)
from gatekeeper_adapters.engines.reference.server.reply import Reply
from gatekeeper_adapters.engines.reference.server.spans import caller_of, request_span
from gatekeeper_adapters.engines.reference.server.wire import ChatBody, CompletionBody, read_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from gatekeeper_adapters.engines.reference.server.forms import Form
    from gatekeeper_adapters.engines.reference.server.service import Service
    from gatekeeper_adapters.engines.reference.server.wire import Body

__all__ = ["create_app"]

MAX_BYTES = 8 * 1024**2
"""Largest body that is read."""

_RETRY_S = "1"


def create_app(service: Service) -> Starlette:
    """Build the application around an engine that is loaded."""
    endpoints = _Endpoints(service)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
            Route("/tokenize", endpoints.tokenize, methods=["POST"]),
            Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        ],
        lifespan=lambda _: service.running(),
        exception_handlers={
            GatekeeperError: endpoints.on_error,
            HTTPException: endpoints.on_http_error,
            ClientDisconnect: endpoints.on_disconnect,
            Exception: endpoints.on_defect,
        },
    )
    app.state.service = service
    return app


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Reply:
        """``POST /v1/chat/completions``."""
        arrived = self._service.clock(), time.time_ns()
        body = read_body(ChatBody, await _document(request))
        self._check_name(body.model)
        text = self._service.template.render(body.turns())
        prompt = await self._service.tokens(text)
        return self._reply(request, body, prompt, arrived, form=ChatForm, operation="chat")

    async def completions(self, request: Request) -> Reply:
        """``POST /v1/completions``."""
        arrived = self._service.clock(), time.time_ns()
        body = read_body(CompletionBody, await _document(request))
        self._check_name(body.model)
        given = body.text_or_tokens()
        prompt = await self._service.tokens(given) if isinstance(given, str) else given
        return self._reply(
            request, body, prompt, arrived, form=CompletionForm, operation="text_completion"
        )

    async def models(self, _request: Request) -> Response:
        """``GET /v1/models``."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/NAME``."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model())

    async def health(self, _request: Request) -> Response:
        """``GET /health``: whether answers can be expected."""
        failure = self._service.bridge.failure
        if failure is not None:
            raise Unavailable(
                failure, field="engine", remedy="look at the server's log, and start it again"
            )
        return JSONResponse({"status": "ok"})

    async def version(self, _request: Request) -> Response:
        """``GET /version``."""
        return JSONResponse({"version": self._service.engine.info.version})

    async def metrics(self, _request: Request) -> Response:
        """``GET /metrics``."""
        text = self._service.metrics.render()
        return Response(text, media_type="text/plain; version=0.0.4")

    async def tokenize(self, request: Request) -> Response:
        """``POST /tokenize``."""
        tokens = await self._service.tokens(read_text(await _document(request)))
        limit = self._service.engine.info.max_context
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """``POST /detokenize``: the text under both names that servers give it."""
        info = self._service.engine.info
        tokens = read_tokens(await _document(request), vocab_size=info.vocab_size)
        text = self._service.engine.detokenize(tokens)
        return JSONResponse({"content": text, "prompt": text})

    async def on_error(self, _request: Request, error: Exception) -> Response:
        """Answer an error of ours."""
        if not isinstance(error, GatekeeperError):
            raise error
        headers = {"retry-after": _RETRY_S} if isinstance(error, Unavailable) else None
        return self._refused(status_of(error), error_document(error), headers)

    async def on_http_error(self, _request: Request, error: Exception) -> Response:
        """Answer an unknown path or method."""
        if not isinstance(error, HTTPException):
            raise error
        found = NotFound(str(error.detail), remedy="use a path and method of the documentation")
        headers = dict(error.headers or {})
        return self._refused(error.status_code, error_document(found), headers)

    async def on_disconnect(self, _request: Request, _error: Exception) -> Response:
        """Nobody is there any more: this is for the log."""
        return Response(status_code=499)

    async def on_defect(self, _request: Request, _error: Exception) -> Response:
        """Answer a defect; it is logged behind this."""
        error = GatekeeperError("the server has a defect", remedy="report it with the server's log")
        return self._refused(error.status, error_document(error), None)

    def _refused(
        self, status: int, document: dict[str, Any], headers: Mapping[str, str] | None
    ) -> Response:
        self._service.metrics.errors.labels(str(status)).inc()
        return JSONResponse(document, status_code=status, headers=headers)

    def _reply(
        self,
        request: Request,
        body: Body,
        prompt: tuple[int, ...],
        arrived: tuple[float, int],
        *,
        form: type[Form],
        operation: str,
    ) -> Reply:
        service, (at, at_ns) = self._service, arrived
        _check_length(prompt, service.defaults.max_context)
        answer_id = f"{'chatcmpl' if form is ChatForm else 'cmpl'}-{secrets.token_hex(12)}"
        answer = Answer(
            service.bridge,
            body.requests(answer_id, prompt, service.defaults, seed=secrets.randbits(63)),
            service.engine.detokenize,
            Times(at),
        )
        caller = caller_of(request.headers.get("traceparent"))

        def leave(problem: str | None) -> None:
            service.metrics.ended(answer, problem)
            if service.sender is not None:
                span = request_span(
                    answer,
                    caller,
                    operation=operation,
                    model=service.card.name,
                    began_ns=at_ns,
                    ended_ns=at_ns + round(1e9 * (service.clock() - at)),
                    error=problem,
                )
                service.sender.add(span)

        card = service.card
        created, ids = at_ns // 10**9, body.return_token_ids
        head = form(answer_id, created, card.name, card.fingerprint, token_ids=ids)
        return Reply(answer, head, body.stream, body.include_usage, leave)

    def _check_name(self, name: str | None) -> None:
        card = self._service.card
        if name is not None and name not in {card.name, *card.aliases}:
            raise NotFound(
                "is not served here", field="model", value=name, remedy=f"use {card.name}"
            )

    def _model(self) -> dict[str, Any]:
        card = self._service.card
        return {
            "id": card.name,
            "object": "model",
            "created": self._service.created,
            "owned_by": "gatekeeper",
            "aliases": list(card.aliases),
            "max_model_len": self._service.engine.info.max_context,
            "meta": dict(card.weights),
            "speculation": dict(card.speculation),
        }


async def _document(request: Request) -> dict[str, Any]:
    """The request's body; a web page cannot send this type elsewhere without being asked first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InputError(
            "is not what is read here",
            field="content-type",
            value=kind,
            remedy="send application/json",
        )
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise TooLarge(
                f"is larger than {MAX_BYTES} bytes", field="body", remedy="send a shorter prompt"
            )
        parts.append(part)
    return document_of(b"".join(parts))


def _check_length(prompt: tuple[int, ...], limit: int) -> None:
    if not 0 < len(prompt) < limit:
        raise InputError(
            f"has {len(prompt)} tokens; the context holds {limit}, answer included",
            field="prompt",
            value=len(prompt),
            remedy=f"use 1 to {limit - 1} tokens",
        )
