"""What all tables share: one metadata with its naming convention, and the column types."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Integer, MetaData, String
from sqlalchemy.dialects.postgresql import JSONB

__all__ = ["NAME", "SHA256", "Json", "Serial", "metadata"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# SQLite numbers rows by itself only for INTEGER PRIMARY KEY.
Serial = BigInteger().with_variant(Integer(), "sqlite")
SHA256 = String(64)
NAME = String(200)
