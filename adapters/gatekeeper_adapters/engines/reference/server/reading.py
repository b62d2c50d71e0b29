"""Bodies as JSON, and the small ones of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from gatekeeper.core.documents import check_json, mapping
from gatekeeper.errors import InputError, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["are_tokens", "document_of", "read_text", "read_tokens", "unknown"]


def document_of(data: bytes) -> dict[str, Any]:
    """Read a body.

    Raises:
        InputError: it is not a JSON object in UTF-8, or holds a number that JSON does not know.
    """
    try:
        document = json.loads(data.decode(), parse_constant=_no_number, parse_float=_finite)
        if b"\\u" in data:
            check_json(document)  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not JSON ({error})", field="body", remedy="send one JSON object in UTF-8"
        ) from error
    return mapping(document, field="body")


def read_text(document: Mapping[str, Any]) -> str:
    """The text of a ``/tokenize`` body: ``content`` as llama.cpp, or ``prompt`` as vLLM has it.

    Raises:
        UnknownKey: a field that nothing reads.
        InputError: there is no text.
    """
    for name in document:
        if name not in {"model", "content", "prompt", "add_special_tokens"}:
            unknown(name, "use content")
    text = document.get("content", document.get("prompt"))
    if not isinstance(text, str):
        raise InputError("is not a text", field="content", value=text, remedy="give a text")
    return text


def read_tokens(document: Mapping[str, Any], *, vocab_size: int) -> tuple[int, ...]:
    """The token ids of a ``/detokenize`` body.

    Raises:
        UnknownKey: a field that nothing reads.
        InputError: they are no list of ids of this vocabulary.
    """
    for name in document:
        if name not in {"model", "tokens"}:
            unknown(name, "use tokens")
    tokens = document.get("tokens")
    if not are_tokens(tokens) or not all(token < vocab_size for token in tokens):
        raise InputError(
            "is not a list of token ids",
            field="tokens",
            value=tokens,
            remedy=f"use whole numbers below {vocab_size}",
        )
    return tuple(tokens)


def are_tokens(value: object) -> TypeGuard[list[int]]:
    """Whether a JSON value is a list of token ids, at least one."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(token) is int and token >= 0 for token in value)
    )


def unknown(field: str, remedy: str) -> NoReturn:
    """Refuse a field that nothing reads."""
    raise UnknownKey("is not known here", field=field, remedy=remedy)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")  # json reports ValueError alike


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _no_number(text)
    return number
