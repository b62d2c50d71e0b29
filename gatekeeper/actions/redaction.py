"""What spans lose before anything of them is stored: prompt and completion text, and whatever
the configuration names.

Only text is content: numbers and truth values stay, whatever their attribute is called. Of chat
messages the ids of tool calls stay, since they say which call caused which tool; roles and
finish reasons stay too.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from gatekeeper.core.documents import check

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from gatekeeper.core.traces import Span, SpanEvent

__all__ = ["CONTENT", "CONTENT_EVENTS", "MARK", "AttributeRule", "Redaction", "Redactor"]

KEEP, DROP, HASH = "keep", "drop", "hash"

MARK = "gatekeeper.redacted"
"""Attribute of a span that lost something: how many attributes were dropped or hashed."""

CONTENT: tuple[str, ...] = (
    # OpenTelemetry GenAI, today's names and the older ones (OpenLLMetry writes these, flattened).
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "gen_ai.retrieval.query*",
    "gen_ai.retrieval.documents*",
    "gen_ai.evaluation.explanation",
    "gen_ai.prompt",
    "gen_ai.prompt.*",
    "gen_ai.completion",
    "gen_ai.completion.*",
    "gen_ai.content.*",
    "gen_ai.event.content",
    "gen_ai.request.messages*",
    "gen_ai.response.messages*",
    # OpenLLMetry.
    "traceloop.entity.input",
    "traceloop.entity.output",
    "traceloop.prompt.*",
    "llm.request.functions.*",
    "llm.prompts*",
    "llm.completions*",
    # OpenInference.
    "input.value",
    "output.value",
    "llm.input_messages*",
    "llm.output_messages*",
    "llm.prompt_template.*",
    "llm.function_call",
    "llm.tools*",
    "message.*",
    "tool.parameters",
    "tool.json_schema",
    "tool_call.function.arguments",
    "retrieval.documents*",
    "reranker.query",
    "reranker.*documents*",
    "embedding.embeddings*",
    "embedding.text",
    "document.content",
    # Vercel AI SDK.
    "ai.prompt*",
    "ai.response.text",
    "ai.response.reasoning",
    "ai.response.object",
    "ai.response.toolCalls",
    "ai.response.files",
    "ai.result.*",
    "ai.toolCall.args",
    "ai.toolCall.result",
    "ai.value",
    "ai.values",
    "ai.schema*",
    # Langfuse, MLflow, LangSmith, Haystack, Pydantic AI and Logfire, Claude Code, file formats.
    "langfuse.*input",
    "langfuse.*output",
    "mlflow.*Inputs",
    "mlflow.*Outputs",
    "mlflow.chat.*",
    "langsmith.*inputs*",
    "langsmith.*outputs*",
    "haystack.*.input*",
    "haystack.*.output*",
    "*all_messages*",
    "request_data",
    "response_data",
    "final_result",
    "tool_arguments",
    "tool_response",
    "user_prompt",
    "system_prompt*",
    "prompt_text",
    "new_context",
    "tool_input",
    "tool_output",
    "tool_result",
    "response.model_output",
    # Whatever its dialect, these last words name text.
    *(
        pattern
        for word in (
            "content", "completion", "prompt", "prompts", "input", "inputs", "output", "outputs",
            "messages", "message", "arguments", "instructions", "thinking", "reasoning",
        )
        for pattern in (word, f"*.{word}")
    ),
    "http.request.body",
    "http.response.body",
    "exception.stacktrace",  # it ends in the exception's message, which quotes what was refused
)  # fmt: skip
"""Attributes that hold what people and models wrote, as patterns; ``*`` matches dots too."""

CONTENT_EVENTS: tuple[str, ...] = (
    "gen_ai.content.*",
    "gen_ai.*.message",
    "gen_ai.choice",
    "gen_ai.client.inference.operation.details",
    "tool.output",
    "*.prompt",
    "*.completion",
)
"""Span events all of whose text is content."""

_STRUCTURE = re.compile(
    r"(^|\.)(role|finish_reason|tool_call_id|tool_call\.id|prompt\.(id|name|version)|"
    r"tool_calls\.\d+\.(tool_call\.)?(function\.)?(id|name))$"
)
_PLAIN = re.compile(r"[\w.:/+-]{1,100}")
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{6,100}")
_IDS = ("tool_call_id", "toolCallId", "tool_use_id", "call_id")
_CALLS = frozenset(
    ("tool_call", "tool_call_response", "tool_use", "tool-call", "tool-result", "function",
     "function_call", "server_tool_use")
)  # fmt: skip
_INNER = ("parts", "content", "tool_calls", "toolCalls", "message", "messages", "choices", "kwargs")
_LIKELY = re.compile(r"tool|function|call_id")
_MOST_KEYS = 8192


@dataclass(frozen=True)
class AttributeRule:
    """What becomes of attributes whose name matches: ``keep``, ``drop`` or ``hash``.

    ``hash`` leaves a digest, so that equal values stay equal: it hides no value that can be
    guessed. ``attribute`` is a pattern with ``*`` and ``?``, for span, resource and event
    attributes alike.
    """

    attribute: str
    action: str

    def __post_init__(self) -> None:
        good = self.action in (KEEP, DROP, HASH)
        check([("attributes.action", self.action, good, "use keep, drop or hash")])


@dataclass(frozen=True)
class Redaction:
    """``attributes`` in the order in which they are tried, then ``content``: ``drop`` or ``keep``."""

    content: str = DROP
    attributes: tuple[AttributeRule, ...] = ()

    def __post_init__(self) -> None:
        check([("content", self.content, self.content in (KEEP, DROP), "use drop or keep")])


class _Fate(NamedTuple):
    """What happens to an attribute, by which pattern, and whether only to text."""

    action: str
    rule: str
    text_only: bool


class _Fates(dict[str, "_Fate | None"]):
    """Fate by attribute name, found once a name."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._rules = [_Fate(r.action, r.attribute, text_only=False) for r in redaction.attributes]
        if redaction.content == DROP:
            self._rules += [_Fate(DROP, pattern, text_only=True) for pattern in CONTENT]

    def __missing__(self, key: str) -> _Fate | None:
        name = key.removeprefix("resource.")
        found = next((f for f in self._rules if fnmatchcase(name, f.rule)), None)
        fate = None if found is None or found.action == KEEP else found
        if len(self) < _MOST_KEYS:  # names come from outside: without end, where one counts up
            self[key] = fate
        return fate


class Redactor:
    """Applies a redaction to spans; safe to use from several threads."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        chosen = redaction or Redaction()
        self._fates = _Fates(chosen)
        self._events = CONTENT_EVENTS if chosen.content == DROP else ()

    def __call__(self, span: Span, lost: Counter[str]) -> Span:
        """Return the span without what must not be stored, and count that in ``lost`` by rule."""
        attributes, count = self._without(span.attributes, lost)
        events = span.events
        if events:
            kept = [self._event(event, lost) for event in events]
            events = tuple(event for event, _ in kept)
            count += sum(n for _, n in kept)
        if not count:
            return span
        return replace(span, attributes={**attributes, MARK: count}, events=events)

    def _event(self, event: SpanEvent, lost: Counter[str]) -> tuple[SpanEvent, int]:
        rule = next((p for p in self._events if fnmatchcase(event.name, p)), None)
        other = None if rule is None else _Fate(DROP, f"event {rule}", text_only=True)
        kept, count = self._without(event.attributes, lost, other)
        return (replace(event, attributes=kept) if count else event), count

    def _without(
        self, attributes: Mapping[str, Any], lost: Counter[str], other: _Fate | None = None
    ) -> tuple[Mapping[str, Any], int]:
        fates = self._fates
        hit = {key: fate for key in attributes if (fate := fates[key] or other) is not None}
        return _applied(attributes, hit, lost) if hit else (attributes, 0)


def _applied(
    attributes: Mapping[str, Any], hit: Mapping[str, _Fate], lost: Counter[str]
) -> tuple[Mapping[str, Any], int]:
    kept = dict(attributes)
    count = 0
    for key, fate in hit.items():
        value = attributes[key]
        if fate.text_only and not _is_content(key, value):
            continue
        count += 1
        lost[fate.rule] += 1
        ids = tool_call_ids(value) if fate.text_only else []
        if fate.action == HASH:
            kept[key] = _hashed(value)
        elif ids:
            kept[key] = ids
        else:
            del kept[key]
    return kept, count


def _is_content(key: str, value: object) -> bool:
    """Whether a value is text, and not just a role, an id or a name that structures a message."""
    if isinstance(value, str):
        return not (_STRUCTURE.search(key) and _PLAIN.fullmatch(value))
    return isinstance(value, (list, dict)) and bool(value)


def _hashed(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]


def tool_call_ids(value: object) -> list[str]:
    """Ids of tool calls and their answers in messages, as JSON text or as values; each once."""
    if isinstance(value, str):
        if value[:1] not in ("[", "{") or not _LIKELY.search(value):
            return []
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    found: dict[str, None] = {}
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found.update(dict.fromkeys(_ids_of(one)))
            # Arguments and results are content, whatever their keys are called.
            waiting += [one[key] for key in reversed(_INNER) if key in one]
        elif isinstance(one, list):
            waiting += reversed(one)
    return list(found)


def _ids_of(message: Mapping[str, Any]) -> Iterable[str]:
    values = [message.get(key) for key in _IDS]
    kind = message.get("type")
    if (isinstance(kind, str) and kind in _CALLS) or "function" in message:
        values.append(message.get("id"))
    return (v for v in values if isinstance(v, str) and _CALL_ID.fullmatch(v))
