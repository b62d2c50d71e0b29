"""gatekeeper's own attributes: set by hand, and the last word."""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect
from gatekeeper.core.segment_kinds import KINDS, MODEL

__all__ = ["DIALECT"]

_MEANING = {kind: kind for kind in (*KINDS, MODEL)}

DIALECT = Dialect(
    name="gatekeeper",
    kind_by_value={"gatekeeper.kind": _MEANING, "gatekeeper.segment.kind": _MEANING},
)
