"""Evidence tables as Parquet bytes: the same table gives the same bytes, hence the same digest."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["decode", "digest", "encode", "round_trip"]


def encode(table: pd.DataFrame) -> bytes:
    """Parquet bytes (zstd), columns in the table's order, no index, nothing about the writer's host."""
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_pandas(table, preserve_index=False), sink, compression="zstd", version="2.6"
    )
    return sink.getvalue()


def decode(data: bytes, *, name: str, sha256: str) -> pd.DataFrame:
    """Read a table that an earlier run stored.

    Raises:
        EvidenceError: the bytes have another digest than recorded, or are no Parquet.
    """
    if digest(data) != sha256:
        raise EvidenceError(
            f"has the digest {digest(data)}",
            field=name,
            value=sha256,
            remedy="restore the evidence of the earlier run from a backup",
        )
    try:
        return pd.read_parquet(io.BytesIO(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EvidenceError(
            f"cannot be read ({error})", field=name, value=sha256, remedy="restore it from a backup"
        ) from error


def digest(data: bytes) -> str:
    """The sha256 that names the bytes in claims and in the store."""
    return hashlib.sha256(data).hexdigest()


def round_trip(
    tables: Mapping[str, pd.DataFrame],
) -> tuple[dict[str, bytes], dict[str, pd.DataFrame]]:
    """Encode tables and read them back: verdicts are computed on what others will read."""
    files = {name: encode(table) for name, table in tables.items()}
    return files, {name: pd.read_parquet(io.BytesIO(data)) for name, data in files.items()}
