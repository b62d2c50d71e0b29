"""Reading fields of foreign JSON: each failure names the field, the value and the remedy."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["an_object", "integer", "iso_ns", "listed", "name_of", "objects", "text_id"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(
    r"(?P<whole>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?"
    r"(?P<zone>Z|z|[+-]\d\d:?\d\d)?"
)
_SHOWN = 9


def listed(values: Iterable[Any], *inside: str) -> list[dict[str, Any]]:
    """Return the objects of a document: bare, in an array, or one a line. Others are left out.

    Args:
        values: the document's values.
        inside: names under which an export holds a list of them; an object that has a ``type`` of
            its own is one of them and no export.
    """
    found: list[dict[str, Any]] = []
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                lists = [one[name] for name in inside if isinstance(one.get(name), list)]
                within = lists[0] if lists and "type" not in one else [one]
                found.extend(item for item in within if isinstance(item, dict))
    return found


def objects(value: object, field: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects; absent (None) is the empty list.

    Raises:
        TraceError: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TraceError(
            "must be a list of objects",
            field=field,
            value=value,
            remedy="export the trace again",
        )
    return value


def an_object(value: object, field: str) -> dict[str, Any]:
    """Return a JSON object; absent (None) is the empty one.

    Raises:
        TraceError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TraceError(
            "must be an object", field=field, value=value, remedy="export the trace again"
        )
    return value


def text_id(value: object, field: str) -> str:
    """Return a non-empty id as text.

    Raises:
        TraceError: it is absent, empty or not text.
    """
    if not isinstance(value, str) or not value.strip():
        raise TraceError(
            "is not an id",
            field=field,
            value="absent" if value is None else value,
            remedy="every span needs its own non-empty text id and that of its trace",
        )
    return value


def name_of(value: object) -> str:
    """Return a span name fit for a terminal; spans without one are shown as unnamed."""
    if not isinstance(value, str) or not value:
        return "(unnamed)"
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)


def integer(value: object, field: str) -> int:
    """Return an integer that JSON holds as a number or, for 64 bits, as text.

    Raises:
        TraceError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,20}", value.strip()):
        return int(value)
    raise TraceError(
        "is not a whole number",
        field=field,
        value="absent" if value is None else value,
        remedy="write it as a JSON number or as text of digits",
    )


def iso_ns(value: object, field: str) -> tuple[int, bool]:
    """Return an ISO 8601 time as nanoseconds since the epoch, and whether its zone was missing.

    A time without a zone is read as UTC. All digits of the fraction count, up to nanoseconds.

    Raises:
        TraceError: it is no such time.
    """
    match = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        zone = match["zone"] or "Z"
        try:
            moment = datetime.fromisoformat(match["whole"] + zone.upper())
        except ValueError:
            moment = None
        if moment is not None:
            delta = moment - _EPOCH
            fraction = (match["fraction"] or "")[:_SHOWN].ljust(_SHOWN, "0")
            seconds = delta.days * 86_400 + delta.seconds
            return seconds * 10**9 + int(fraction), match["zone"] is None
    raise TraceError(
        "is not an ISO 8601 time",
        field=field,
        value="absent" if value is None else value,
        remedy="write times like 2026-01-31T12:00:00.000Z",
    )
