"""The reference engine: batched, exact speculative decoding in torch; heavy imports in ``open``."""

from __future__ import annotations

from gatekeeper_adapters.engines.reference.provider import PROVIDER

__all__ = ["PROVIDER"]
