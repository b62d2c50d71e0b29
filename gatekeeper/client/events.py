"""Server-sent events, read from parts of an answer as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Event", "events"]


@dataclass(frozen=True)
class Event:
    """One event; a comment, which only says that the stream is alive, has no name and no data."""

    name: str
    data: bytes


def events(parts: Iterable[bytes], *, most: int) -> Iterator[Event]:
    """Read events.

    Raises:
        ValueError: one has more than ``most`` bytes.
    """
    buffer = b""
    for part in parts:
        buffer += part
        while (end := buffer.find(b"\n\n")) >= 0:
            block, buffer = buffer[:end], buffer[end + 2 :]
            yield _read(block)
        if len(buffer) > most:
            raise ValueError(f"an event has more than {most} bytes")


def _read(block: bytes) -> Event:
    name, data = "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"data":
            data.append(value)
    return Event(name, b"\n".join(data))
