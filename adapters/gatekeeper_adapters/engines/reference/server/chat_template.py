"""A conversation as the text that the model was trained on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gatekeeper.errors import InputError
from gatekeeper.workloads.chat import chat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gatekeeper_adapters.engines.reference.server.wire import Message

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """The template beside a tokenizer, or ChatML where there is none.

    Templates are Jinja as ``transformers`` renders them; they come with model files, so they run in
    a sandbox.
    """

    def __init__(self, source: str | None, names: dict[str, str]) -> None:
        self._names = names
        self._template: jinja2.Template | None = None
        if source is not None:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals.update(raise_exception=_refuse, strftime_now=_now)
            environment.filters["tojson"] = _tojson
            self._template = environment.from_string(source)

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Read the template of a model's folder.

        Raises:
            InputError: it is no template.
        """
        config: dict[str, Any] = {}
        if (folder / "tokenizer_config.json").is_file():
            config = json.loads((folder / "tokenizer_config.json").read_text())
        file = folder / "chat_template.jinja"
        source = file.read_text() if file.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several by name, as older folders have them
            source = {one["name"]: one["template"] for one in source}.get("default")
        names = {
            name: token["content"] if isinstance(token, dict) else str(token)
            for name in ("bos_token", "eos_token")
            if (token := config.get(name))
        }
        try:
            return cls(source if isinstance(source, str) else None, names)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(
                f"is no template ({error})",
                field="chat_template",
                value=str(folder),
                remedy="correct it in the model's folder",
            ) from error

    @property
    def builtin(self) -> bool:
        """Whether conversations are written as ChatML for want of a template."""
        return self._template is None

    def render(self, turns: Sequence[Message]) -> str:
        """The conversation up to where the assistant is to speak.

        Raises:
            InputError: the template refuses this conversation.
        """
        if self._template is None:
            return chat((turn.role, turn.content) for turn in turns)
        said = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._template.render(
                messages=said, add_generation_prompt=True, tools=None, **self._names
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InputError(
                f"is refused by the model's chat template ({error})",
                field="messages",
                value=[turn.role for turn in turns],
                remedy="use the order of roles that this model knows",
            ) from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
