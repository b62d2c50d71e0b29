"""OTLP export requests as agents' exporters send them: tasks of model calls and tools, one after
another, in requests of 512 spans. Ids count up, so that no two requests share a span.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Shape", "request"]

START_NS = 1_767_225_600 * 10**9
_SECOND = 10**9

_RESOURCE = {
    "service.name": "support-agent",
    "service.version": "2.3.1",
    "deployment.environment.name": "production",
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": "1.45.2",
}


@dataclass(frozen=True)
class Shape:
    """``spans`` in a request, ``per_task`` in a task; ``content`` bytes of prompt text a call."""

    spans: int = 512
    per_task: int = 32
    content: int = 0


def request(number: int, shape: Shape) -> bytes:
    """Return the protobuf of the request with this number, from 0."""
    message = ExportTraceServiceRequest()
    group = message.resource_spans.add()
    _put(group.resource.attributes, _RESOURCE)
    scope = group.scope_spans.add()
    scope.scope.name = "agent"
    for n in range(number * shape.spans, (number + 1) * shape.spans):
        task, place = divmod(n, shape.per_task)
        root = task * shape.per_task
        begin = START_NS + task * _SECOND + place * _SECOND
        span = scope.spans.add(
            trace_id=(task + 1).to_bytes(16),
            span_id=(n + 1).to_bytes(8),
            parent_span_id=b"" if place == 0 else (root + 1).to_bytes(8),
            start_time_unix_nano=begin,
            end_time_unix_nano=begin + (9 * _SECOND // 10 if place else shape.per_task * _SECOND),
        )
        span.name, attributes = _step(n, place, shape)
        _put(span.attributes, attributes)
    return message.SerializeToString()


def _step(n: int, place: int, shape: Shape) -> tuple[str, Mapping[str, Any]]:
    """Name and attributes: an agent first, then model calls and tools in turn."""
    if place == 0:
        return "invoke_agent planner", {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "planner",
            "gen_ai.conversation.id": f"conversation-{n // shape.per_task}",
        }
    if place % 2 == 0:
        return "execute_tool search", {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": f"call_{n:08d}",
        }
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "my-model",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.max_tokens": 1024,
        "gen_ai.response.model": "my-model-2026",
        "gen_ai.response.id": f"chatcmpl-{n:08d}",
        "gen_ai.response.time_to_first_chunk": 0.21,
        "gen_ai.usage.input_tokens": 1200 + n % 100,
        "gen_ai.usage.output_tokens": 180 + n % 50,
        "server.address": "models.example.com",
        "server.port": 443,
    }
    if shape.content:
        parts = [{"type": "text", "content": "lorem ipsum " * (shape.content // 12)}]
        attributes["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": parts}])
    return "chat my-model", attributes


def _put(target: Any, attributes: Mapping[str, Any]) -> None:  # noqa: ANN401 - repeated message
    for key, value in attributes.items():
        pair = target.add(key=key)
        kind = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(pair.value, kind, value)
