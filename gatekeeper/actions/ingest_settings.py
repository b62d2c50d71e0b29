"""The ingest document: what one server takes on at a time, and what it leaves out of spans."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from gatekeeper.actions.redaction import Redaction
from gatekeeper.core.documents import check, read
from gatekeeper.core.yaml_documents import from_yaml
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IngestLimits", "IngestSettings"]

_MIB = 1024**2


@dataclass(frozen=True)
class IngestLimits:
    """Bounds of one server process.

    ``body_bytes`` and ``unpacked_bytes``: largest request, as it travels and after unpacking; more
    is answered 413. ``requests`` and ``held_bytes``: most trace requests, and bytes of their
    bodies, in flight at a time; what comes on top is answered 429. ``threads``: requests that are
    decoded and stored at a time, together no more than ``unpacked_bytes``. ``body_s``: how long a
    body may take to arrive, since it holds a place meanwhile. ``patience_s``: how long a request
    waits for its turn, and then for the database; exporters give up after 10 s by default. What
    takes longer is answered 503. ``retry_after_s``: what 429 and 503 tell the sender.
    """

    body_bytes: int = 16 * _MIB
    unpacked_bytes: int = 32 * _MIB
    requests: int = 64
    held_bytes: int = 64 * _MIB
    threads: int = 4
    body_s: float = 60.0
    patience_s: float = 4.0
    retry_after_s: int = 5

    def __post_init__(self) -> None:
        least = {"patience_s": 0.0, "body_s": 0.0}
        check(
            [
                (f"limits.{f.name}", value, value >= least.get(f.name, 1), "use a larger number")
                for f in fields(self)
                for value in [getattr(self, f.name)]
            ]
        )
        fits = self.held_bytes >= self.body_bytes
        check([("limits.held_bytes", self.held_bytes, fits, "hold one body_bytes at least")])


@dataclass(frozen=True)
class IngestSettings:
    """``limits`` and ``redaction``; what a document leaves out keeps its default."""

    limits: IngestLimits = field(default_factory=IngestLimits)
    redaction: Redaction = field(default_factory=Redaction)

    @classmethod
    def load(cls, path: Path | None) -> IngestSettings:
        """Read a YAML or JSON file; the defaults where there is none to read.

        Raises:
            InputError: it cannot be read, has an unknown key, or a value out of range.
        """
        if path is None:
            return cls()
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})",
                field="ingest",
                value=str(path),
                remedy="name a YAML file with --ingest or GATEKEEPER_INGEST",
            ) from error
        return read(cls, from_yaml(data, file=str(path)), field="")
