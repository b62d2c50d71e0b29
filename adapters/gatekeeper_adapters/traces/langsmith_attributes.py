"""What a LangSmith run says of itself, as span attributes.

Its own fields stay under ``langsmith.``; what the core understands is written beside them in the
names of OpenTelemetry's GenAI conventions:

    run_type llm, tool, retriever, embedding, chain   gen_ai.operation.name
    ls_model_name, invocation parameters, inputs      gen_ai.request.model
    usage_metadata, token_usage, completion_tokens    gen_ai.usage.*
    metadata session_id, thread_id, conversation_id   gen_ai.conversation.id
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.traces.fields import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["kept", "normalised", "part"]

_PLACED = frozenset(
    {
        "id",
        "trace_id",
        "parent_run_id",
        "dotted_order",
        "name",
        "start_time",
        "end_time",
        "events",
        "extra",
        "child_runs",
    }
)
_OPERATIONS = {
    "llm": "chat",
    "tool": "execute_tool",
    "retriever": "retrieval",
    "embedding": "embeddings",
    "chain": "invoke_workflow",
}
"""Run types and the operation each is in OpenTelemetry's words; prompt and parser have none."""

_THREAD = ("session_id", "thread_id", "conversation_id")
"""Metadata keys that put runs into one thread."""


def kept(run: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a run that has no place in a span, under ``langsmith.``."""
    found = {
        f"langsmith.{key}": value
        for key, value in run.items()
        if key not in _PLACED and value is not None
    }
    extra = run.get("extra")
    if not isinstance(extra, dict):
        return found if extra is None else {**found, "langsmith.extra": extra}
    for key, value in extra.items():
        if key == "metadata" and isinstance(value, dict):
            found.update({f"langsmith.metadata.{name}": one for name, one in value.items()})
        else:
            found[f"langsmith.extra.{key}"] = value
    return found


def normalised(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the run says, in the names of OpenTelemetry's GenAI conventions."""
    extra, inputs, outputs = (part(run, key) for key in ("extra", "inputs", "outputs"))
    metadata, asked = part(extra, "metadata"), part(extra, "invocation_params")
    answered = part(outputs, "llm_output")
    kind = run.get("run_type")
    operation = _OPERATIONS.get(kind) if isinstance(kind, str) else None
    made = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _text(metadata.get("ls_provider")),
        "gen_ai.request.model": _text(
            metadata.get("ls_model_name"),
            asked.get("model"),
            asked.get("model_name"),
            inputs.get("model"),
        ),
        "gen_ai.response.model": _text(outputs.get("model"), answered.get("model_name")),
        "gen_ai.conversation.id": _text(*(metadata.get(key) for key in _THREAD)),
        **_usage(run, metadata, outputs),
    }
    if operation == "execute_tool":
        made["gen_ai.tool.name"] = name_of(run.get("name"))
        result = part(outputs, "output")
        made["gen_ai.tool.call.id"] = _text(
            result.get("tool_call_id"), part(result, "kwargs").get("tool_call_id")
        )
    return {key: value for key, value in made.items() if value is not None}


def _usage(
    run: Mapping[str, Any], metadata: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, int | None]:
    """Token counts; totals that LangSmith sums up on parents are checked against the calls."""
    told = [
        part(outputs, "usage_metadata"),
        part(metadata, "usage_metadata"),
        part(part(outputs, "llm_output"), "token_usage"),
        *_generated(outputs),
        part(outputs, "usage"),
        run,
    ]
    return {
        "gen_ai.usage.input_tokens": _count(told, "input_tokens", "prompt_tokens"),
        "gen_ai.usage.output_tokens": _count(told, "output_tokens", "completion_tokens"),
        "gen_ai.usage.cache_read.input_tokens": _count(
            [part(one, "input_token_details") for one in told], "cache_read"
        ),
        "gen_ai.usage.reasoning.output_tokens": _count(
            [part(one, "output_token_details") for one in told], "reasoning"
        ),
    }


def _generated(outputs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Usage on LangChain's messages: ``generations[][].message.kwargs.usage_metadata``."""
    batches = outputs.get("generations")
    for batch in batches if isinstance(batches, list) else ():
        for one in batch if isinstance(batch, list) else [batch]:
            message = part(one, "message") if isinstance(one, dict) else {}
            yield part(message, "usage_metadata") or part(part(message, "kwargs"), "usage_metadata")


def _count(told: Iterable[Mapping[str, Any]], *keys: str) -> int | None:
    """First count of at least 1; exporters write 0 for what they do not know."""
    values = (one.get(key) for one in told for key in keys)
    return next(
        (v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 1), None
    )


def part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key; the empty one where there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _text(*values: object) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)
