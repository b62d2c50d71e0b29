"""Events of an Inspect AI log, and what they say as span attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.traces.session_attributes import CALL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Event", "call_of", "kept", "part"]

_PLACED = frozenset({"timestamp", "completed", "span_id", "parent_id", "events"})


@dataclass(frozen=True)
class Event:
    """An event that is no edge of a span: where it was, when, and the id of the span around it."""

    raw: Mapping[str, Any]
    at: str
    time_ns: int
    around: str

    @property
    def kind(self) -> str:
        """What happened, such as ``model`` or ``tool``; empty where it does not say."""
        kind = self.raw.get("event")
        return kind if isinstance(kind, str) else ""

    @property
    def key(self) -> str:
        """Id of the span that it becomes."""
        own = self.raw.get("uuid")
        return own if isinstance(own, str) and own else f"{self.kind} at {self.at}"

    @property
    def holds(self) -> bool:
        """Whether events that happened inside it are in it, as in older logs."""
        return self.kind in ("tool", "subtask") and bool(self.raw.get("events"))

    @property
    def call(self) -> str:
        """Id of the tool call that it is, or that it decides on; empty where it names none."""
        call_id = (
            part(self.raw, "call").get("id") if self.kind == "approval" else self.raw.get("id")
        )
        return call_id if isinstance(call_id, str) else ""


def kept(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of an event that has no place in a span, under ``inspect.``."""
    return {f"inspect.{k}": v for k, v in raw.items() if k not in _PLACED and v is not None}


def call_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a model event says, in the names of OpenTelemetry's GenAI conventions."""
    output = part(raw, "output")
    usage = part(output, "usage")
    made = {
        **CALL,
        "gen_ai.request.model": raw.get("model"),
        "gen_ai.response.model": output.get("model"),
        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
        "gen_ai.usage.cache_read.input_tokens": usage.get("input_tokens_cache_read"),
        "gen_ai.usage.reasoning.output_tokens": usage.get("reasoning_tokens"),
    }
    return {key: value for key, value in made.items() if value is not None}


def part(value: object, key: str) -> Mapping[str, Any]:
    """Return the object under a key; the empty one where there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
