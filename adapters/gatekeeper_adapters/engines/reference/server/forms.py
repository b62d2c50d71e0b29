"""Answers as documents of OpenAI's API: whole, or chunk by chunk; and errors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.documents import check_json
from gatekeeper_adapters.engines.reference.server.text import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from gatekeeper.errors import GatekeeperError
    from gatekeeper_adapters.engines.reference.server.answer import Answer, Piece, Scored

__all__ = ["ChatForm", "CompletionForm", "Form", "error_document", "status_of"]

_MAX_VALUE = 200
_INVALID = 422
_TYPES = {404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error"}
_SERVER = 500


@dataclass(frozen=True)
class Form(ABC):
    """The document around an answer: what stays the same in all of its chunks.

    ``token_ids``: each choice also tells the ids of its tokens.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    token_ids: bool = False

    object = ""
    chunk_object = ""

    @abstractmethod
    def opening(self, choices: int) -> list[dict[str, Any]]:
        """The chunks before any text."""

    @abstractmethod
    def growth(self, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk that carries text."""

    @abstractmethod
    def ending(self, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk that says why the text ended."""

    @abstractmethod
    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice of a whole answer."""

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks for a piece: its text, then its end; none while nothing is certain."""
        out = []
        if piece.text or piece.scored or (self.token_ids and piece.tokens):
            out.append(self._chunk([self.growth(piece) | self._ids(piece.tokens)]))
        if piece.finish is not None:
            out.append(self._chunk([self.ending(piece) | self._ids(())]))
        return out

    async def stream(self, answer: Answer, *, usage: bool) -> AsyncIterator[dict[str, Any]]:
        """Every chunk of an answer; timings on the last that ends a choice, then usage if asked for.

        Raises:
            GatekeeperError: as ``Answer.pieces``.
        """
        extra = {"usage": None} if usage else {}
        opening = self.opening(len(answer.choices))
        async for piece in answer.pieces():
            for chunk in opening:  # with the first token, so that a refusal can still be an error
                yield chunk | extra
            opening = []
            for chunk in self.chunks(piece):
                last = answer.complete and chunk["choices"][0]["finish_reason"] is not None
                yield chunk | extra | ({"timings": timings(answer)} if last else {})
        if usage:
            yield self._chunk([]) | {"usage": _usage(answer)}

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer once it is complete.

        Raises:
            GatekeeperError: as ``Answer.pieces``.
        """
        pieces: list[list[Piece]] = [[] for _ in answer.choices]
        async for piece in answer.pieces():
            pieces[piece.index].append(piece)
        return {
            **self._head(self.object),
            "choices": [
                self.choice(whole) | self._ids(whole.tokens) for whole in map(_joined, pieces)
            ],
            "usage": _usage(answer),
            "timings": timings(answer),
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head(self.chunk_object), "choices": choices}

    def _ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self.token_ids else {}

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChatForm(Form):
    """``chat.completion``."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """The role of each choice."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([_delta(index, delta)]) for index in range(choices)]

    def growth(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        logprobs = _chat_logprobs(piece.scored) if piece.scored else None
        return _delta(piece.index, {"content": piece.text}, logprobs=logprobs)

    def ending(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        return _delta(piece.index, {}, finish=piece.finish)

    def choice(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        return {
            "index": piece.index,
            "message": {"role": "assistant", "content": piece.text},
            "logprobs": _chat_logprobs(piece.scored) if piece.scored else None,
            "finish_reason": piece.finish,
        }


class CompletionForm(Form):
    """``text_completion``."""

    object = chunk_object = "text_completion"

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """Nothing."""
        del choices
        return []

    def growth(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        return self.choice(piece) | {"finish_reason": None}

    def ending(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        return self.choice(piece) | {"text": "", "logprobs": None}

    def choice(self, piece: Piece) -> dict[str, Any]:
        """As in ``Form``."""
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": _list_logprobs(piece.scored) if piece.scored else None,
            "finish_reason": piece.finish,
        }


def timings(answer: Answer) -> dict[str, Any]:
    """Counts and milliseconds, named as llama.cpp has them; null where it did not come to it."""
    times = answer.times
    return {
        "queue_ms": _ms(times.queue_s),
        "prompt_n": answer.prompt_tokens,
        "prompt_ms": _ms(times.prefill_s),
        "predicted_n": answer.tokens,
        "predicted_ms": _ms(times.decode_s),
        "draft_n": answer.drafted,
        "draft_n_accepted": answer.accepted,
    }


def status_of(error: GatekeeperError) -> int:
    """HTTP status of an error: where other APIs of ours say 422, OpenAI says 400."""
    return 400 if error.status == _INVALID else error.status


def error_document(error: GatekeeperError) -> dict[str, Any]:
    """An error in OpenAI's shape; ``param`` is our field, ``value`` and ``remedy`` stand beside."""
    status = status_of(error)
    default = "server_error" if status >= _SERVER else "invalid_request_error"
    return {
        "error": {
            "message": _utf8(str(error)),
            "type": _TYPES.get(status, default),
            "param": None if error.field is None else _utf8(error.field),
            "code": error.title.lower().replace(" ", "_"),
            "value": _shown(error.value),
            "remedy": error.remedy,
        }
    }


def _delta(
    index: int, delta: dict[str, Any], *, logprobs: object = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice as one."""
    last = pieces[-1]
    return type(last)(
        last.index,
        "".join(piece.text for piece in pieces),
        tuple(one for piece in pieces for one in piece.scored),
        last.finish,
        tuple(token for piece in pieces for token in piece.tokens),
    )


def _chat_logprobs(scored: Iterable[Scored]) -> dict[str, Any]:
    return {
        "content": [
            {
                **_named(one.text, one.logprob),
                "top_logprobs": [_named(text, value) for text, value in one.top],
            }
            for one in scored
        ],
        "refusal": None,
    }


def _named(text: str, logprob: float) -> dict[str, Any]:
    # the bytes of an unfinished character cannot be read off its text
    known = None if UNFINISHED in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}


def _list_logprobs(scored: Sequence[Scored]) -> dict[str, Any]:
    return {
        "tokens": [one.text for one in scored],
        "token_logprobs": [one.logprob for one in scored],
        # likeliest first: of two tokens with one text the likelier stays
        "top_logprobs": [dict(reversed(one.top)) for one in scored],
        "text_offset": [one.begin for one in scored],
    }


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _shown(value: object) -> object:
    """The value if it is short JSON, else a cut of its text."""
    try:
        text = json.dumps(value, allow_nan=False)
        check_json(value)
    except (TypeError, ValueError, RecursionError):
        return _utf8(repr(value)[:_MAX_VALUE])
    return value if len(text) <= _MAX_VALUE else text[:_MAX_VALUE]
