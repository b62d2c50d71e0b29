"""Evidence files as tables, read only when their digest holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gatekeeper.errors import EvidenceError, InputError
from gatekeeper.store import pricing, results

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.store.database import Database

__all__ = ["EvidenceFolder", "row_count"]

_CHUNK = 1 << 20


def row_count(path: Path) -> int:
    """Return the rows of a file.

    Raises:
        InputError: it is not Parquet.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"is not a Parquet file ({error})", field="body", remedy="send Parquet"
        ) from error


@dataclass(frozen=True)
class EvidenceFolder:
    """Evidence as DataFrames, each file's digest checked once while this object lives."""

    folder: Path
    db: Database
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    _failures: dict[str, EvidenceError] = field(default_factory=dict, repr=False)

    def load(self, table: str, sha256: str | None) -> pd.DataFrame:
        """Return the evidence with this digest.

        Raises:
            EvidenceError: no file is recorded under the digest, it is gone, or its bytes changed.
        """
        if sha256 is None:
            raise EvidenceError("names no evidence", field=table, remedy="run the gate again")
        if sha256 in self._failures:
            raise self._failures[sha256]
        if sha256 not in self._tables:
            try:
                self._tables[sha256] = self._read(table, sha256)
            except EvidenceError as error:
                self._failures[sha256] = error
                raise
        return self._tables[sha256]

    def _read(self, table: str, sha256: str) -> pd.DataFrame:
        with self.db.read() as session:
            paths = [record.path for record in results.evidence_of(session, sha256)]
            paths += pricing.paths_of(session, sha256)
        if not paths:
            raise EvidenceError(
                "no evidence with this digest is recorded",
                field=table,
                value=sha256,
                remedy="run the gate again",
            )
        for name in paths:
            path = self.folder / name
            if not path.is_file():
                raise EvidenceError(
                    f"the file {name} is missing",
                    field=table,
                    remedy="restore it from a backup",
                )
            actual = file_sha256(path)
            if actual != sha256:
                raise EvidenceError(
                    f"the file {name} was changed: its digest is now {actual}",
                    field=table,
                    value=sha256,
                    remedy="restore it from a backup, or run the gate again",
                )
        try:
            return pd.read_parquet(self.folder / paths[0])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise EvidenceError(
                f"the file {paths[0]} cannot be read ({error})",
                field=table,
                value=sha256,
                remedy="run the gate again",
            ) from error


def file_sha256(path: Path) -> str:
    """Digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
