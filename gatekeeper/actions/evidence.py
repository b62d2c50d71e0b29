"""Evidence files: received whole or not at all, and handed out as they came."""

from __future__ import annotations

import hashlib
import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from gatekeeper.actions import on_demand
from gatekeeper.errors import EvidenceError, InputError, NotFound, Unavailable
from gatekeeper.store import results, runs
from gatekeeper.store.records import EvidenceRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gatekeeper.store.database import Database

__all__ = ["MAX_BYTES", "Incoming", "receive", "store_table", "table_file"]

MAX_BYTES = 2 * 1024**3
"""Largest table accepted: a full-size run of the reference engine is well below a tenth of it."""

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass
class Incoming:
    """A body on its way to disk: written to a temporary name, hashed as it arrives."""

    path: Path
    handle: IO[bytes]
    size: int = 0
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, chunk: bytes) -> None:
        """Append.

        Raises:
            InputError: the table is too large.
        """
        self.size += len(chunk)
        if self.size > MAX_BYTES:
            raise InputError(
                "is too large",
                field="body",
                value=self.size,
                remedy=f"send up to {MAX_BYTES} bytes",
            )
        self.handle.write(chunk)
        self._hash.update(chunk)

    @property
    def sha256(self) -> str:
        """Digest of what has arrived."""
        return self._hash.hexdigest()


@contextmanager
def receive(folder: Path) -> Iterator[Incoming]:
    """Open a temporary file that is gone afterwards, unless it was renamed meanwhile.

    Raises:
        Unavailable: the evidence folder cannot be written.
    """
    incoming = folder / "incoming"
    path = incoming / secrets.token_hex(16)
    try:
        incoming.mkdir(parents=True, exist_ok=True)
        handle = path.open("xb")
    except OSError as error:
        raise Unavailable(
            f"cannot be written ({error.strerror})",
            field="evidence",
            value=str(folder),
            remedy="free space or correct GATEKEEPER_EVIDENCE",
        ) from error
    try:
        with handle:
            yield Incoming(path, handle)
    finally:
        path.unlink(missing_ok=True)


def store_table(
    db: Database,
    folder: Path,
    incoming: Incoming,
    *,
    run_id: str,
    table: str,
    fence: int,
    expected_sha256: str,
) -> EvidenceRecord:
    """Check a received body, give it its name and record it under the run's fence.

    Raises:
        InputError: the digest differs from the announced one, or the body is not Parquet.
        FencedOut: the run belongs to another worker by now.
    """
    if _TABLE_NAME.fullmatch(table) is None:
        raise InputError(
            "is not a table name", field="table", value=table, remedy="use a-z, 0-9 and _"
        )
    incoming.handle.flush()
    if incoming.sha256 != expected_sha256.lower():
        raise InputError(
            f"differs from the body's digest {incoming.sha256}",
            field="X-Content-SHA256",
            value=expected_sha256,
            remedy="send the body again",
        )
    rows = on_demand.evidence_tables.row_count(incoming.path)
    # The content names the file, so a fenced-out worker can never overwrite another's evidence.
    name = f"runs/{run_id}/{table}-{incoming.sha256}.parquet"
    record = EvidenceRecord(run_id, table, fence, incoming.sha256, name, rows, incoming.size, 0.0)
    target = folder / name
    fresh = not target.exists()
    stored = False
    try:
        with db.write() as session:
            runs.hold(session, run_id, fence)
            replaced = results.add_evidence(session, record)
            target.parent.mkdir(parents=True, exist_ok=True)
            incoming.path.replace(target)  # before the commit: a row never names a missing file
        stored = True
    finally:
        if fresh and not stored:
            target.unlink(missing_ok=True)
    if replaced is not None and replaced.path != name:
        (folder / replaced.path).unlink(missing_ok=True)
    return record


def table_file(db: Database, folder: Path, run_id: str, table: str) -> tuple[EvidenceRecord, Path]:
    """Find a stored table and its file.

    Raises:
        NotFound: the run has no such table.
        EvidenceError: the file is gone.
    """
    with db.read() as session:
        record = results.evidence_table(session, run_id, table)
    if record is None:
        raise NotFound(
            "has no such evidence table",
            field="table",
            value=table,
            remedy="see the run's evidence",
        )
    path = folder / record.path
    if not path.is_file():
        raise EvidenceError("is missing", field=record.path, remedy="restore it from a backup")
    return record, path
