"""One short request to a server tells its API and whether it gives usage and log-probabilities."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.core.decoding import GREEDY, DecodeRequest
from gatekeeper.errors import InputError, Unavailable
from gatekeeper.protocols import ServerInfo, ServerRequest
from gatekeeper_adapters.engines.openai_http.token_ids import TOKEN_PATHS, answer, token_body
from gatekeeper_adapters.engines.openai_http.wire import (
    CHAT,
    COMPLETIONS,
    PATHS,
    UNREADABLE,
    Reader,
    body,
    counters,
    document_of,
    event_of,
)

if TYPE_CHECKING:
    from gatekeeper.protocols import Delta

__all__ = ["Probe"]

_TEXT = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
_CHAT_IS_MISSING = (400, 404, 405, 501)
_PROBED = 2


@dataclass(frozen=True)
class Probe:
    """Questions to one server; ``field`` and ``url`` name it in errors."""

    client: httpx.Client
    field: str
    url: str

    def learn(self, listed: dict[str, Any], model: str | None) -> ServerInfo:
        """Return what the server says and offers; ``listed`` is its ``/v1/models``.

        Raises:
            InputError: it has not the model, or gives no usage in a stream.
            Unavailable: it fails on a request of four tokens.
        """
        name = self._model(listed, model)
        api, reader = CHAT, self._ask(CHAT, name, top=0)
        if reader is None:
            api, reader = COMPLETIONS, self._ask(COMPLETIONS, name, top=0)
        if reader is None:
            raise InputError(
                "answers neither chat nor text completions",
                field=self.field,
                value=self.url,
                remedy=f"check that it serves {PATHS[CHAT]} or {PATHS[COMPLETIONS]}",
            )
        if reader.ending().tokens is None or reader.ending().prompt_tokens is None:
            raise InputError(
                "gives no usage at the end of a stream, and TPOT needs the tokens it counted",
                field=self.field,
                value=self.url,
                remedy='use a server that honours stream_options {"include_usage": true}',
            )
        scored = self._ask(api, name, top=5)
        return ServerInfo(
            url=self.url,
            model=name,
            api=api,
            readings=self._readings(listed, name, reader),
            logprobs=scored is not None and bool(scored.scored),
            retokenises=False,
            counters=counters(self._text("/metrics")) is not None,
            token_ids=self._tells_ids(name),
        )

    def _model(self, listed: dict[str, Any], wanted: str | None) -> str:
        names = [str(m["id"]) for m in listed["data"] if isinstance(m, dict) and "id" in m]
        aliases = [
            str(alias)
            for m in listed["data"]
            if isinstance(m, dict)
            for alias in _list(m.get("aliases"))
        ]
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted is not None and wanted in {*names, *aliases}:
            return wanted
        raise InputError(
            f"is not served at {self.url}" if wanted else f"must be named: {self.url} has several",
            field="model",
            value=wanted,
            remedy=f"use --model with one of {', '.join(names) or 'none'}",
        )

    def _ask(self, api: str, model: str, *, top: int) -> _Heard | None:
        """Answer to a request of four tokens; None where the server has no such API."""
        request = ServerRequest("probe", _TEXT, 4, GREEDY, top=top)
        heard = _Heard()
        try:
            with self.client.stream(
                "POST", PATHS[api], json=body(request, model=model, api=api)
            ) as response:
                if response.status_code in _CHAT_IS_MISSING:
                    return None
                if not response.is_success:
                    response.read()
                    raise self._fails(f"answers {response.status_code}: {response.text[:120]}")
                for line in response.iter_lines():
                    heard.hear(line)
        except (httpx.TransportError, *UNREADABLE) as error:
            raise self._fails(f"{type(error).__name__}: {error}") from error
        if not heard.ending().complete and top == 0:
            raise self._fails(f"the stream ended as {heard.ending().reason}")
        return heard

    def _tells_ids(self, model: str) -> str | None:
        """The first path that answers two given token ids in token ids, as many as were asked for."""
        request = DecodeRequest("probe", prompt=(1, 1), max_tokens=_PROBED)
        for path in TOKEN_PATHS:
            try:
                response = self.client.post(path, json=token_body(request, model=model, path=path))
                if response.is_success:
                    found = answer(document_of(response.text), request, path=path)
                    if 0 < len(found.tokens) <= _PROBED:
                        return path
            except (httpx.HTTPError, *UNREADABLE, LookupError):
                continue
        return None

    def _fails(self, why: str) -> Unavailable:
        return Unavailable(
            f"fails on a request of four tokens ({why})",
            field=self.field,
            value=self.url,
            remedy="look at the server's own log",
        )

    def _readings(self, listed: dict[str, Any], name: str, heard: _Heard) -> dict[str, str]:
        """Own words of the server, by name; absent where it says nothing."""
        mine = next((m for m in listed["data"] if isinstance(m, dict) and m.get("id") == name), {})
        found = {"model": name, "owned_by": mine.get("owned_by"), "fingerprint": heard.fingerprint}
        version = self._json("/version").get("version")
        props = self._json("/props")
        found["version"] = version or props.get("build_info")
        found["weights"] = json.dumps(mine["meta"], sort_keys=True) if mine.get("meta") else None
        return {key: str(value) for key, value in found.items() if value}

    def _json(self, path: str) -> dict[str, Any]:
        try:
            document = document_of(self._text(path) or "{}")
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def _text(self, path: str) -> str:
        """A page's text, empty where it is not there."""
        try:
            response = self.client.get(path)
        except httpx.TransportError:
            return ""
        return response.text if response.is_success else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class _Heard(Reader):
    """A reader that also keeps the fingerprint and whether tokens were scored."""

    fingerprint: str | None = None
    scored: bool = False

    def hear(self, line: str) -> None:
        event = event_of(line)
        if event is None:
            return
        self.fingerprint = event.get("system_fingerprint") or self.fingerprint
        piece: Delta | None = self.read(event)
        self.scored = self.scored or (piece is not None and bool(piece.tokens))
