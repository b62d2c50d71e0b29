"""All items of the battery, in the order in which they are asked and shown."""

from __future__ import annotations

from gatekeeper.gates.battery import (
    counts,
    endings,
    lengths,
    processors,
    requests,
    streams,
    structure,
)
from gatekeeper.gates.battery.item import Item  # noqa: TC001 - the catalogue's type is read

__all__ = ["ITEMS"]

ITEMS: tuple[Item, ...] = (
    endings.STOP_TEXT,
    endings.END_TOKEN,
    endings.STOP_AND_LENGTH,
    lengths.MIN_TOKENS,
    lengths.MAX_TOKENS,
    lengths.CONTEXT_EDGE,
    processors.LOGIT_BIAS,
    processors.FREQUENCY_PENALTY,
    processors.PRESENCE_PENALTY,
    structure.JSON_SCHEMA,
    structure.REGEX,
    structure.AFTER_REASONING,
    structure.TOOL_CALLS,
    streams.STREAM_EQUALS_WHOLE,
    streams.STREAM_ORDER,
    streams.CANCELLATION,
    requests.SEED_ALONE,
    requests.SEED_IN_BATCH,
    requests.CHOICES,
    requests.CANARIES,
    counts.USAGE,
    counts.LOGPROBS,
)
