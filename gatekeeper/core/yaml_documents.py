"""Reading one strict mapping from YAML; apart, so that the request-time client needs no YAML."""

from __future__ import annotations

from typing import Any

import yaml

from gatekeeper.core.documents import check_json, mapping
from gatekeeper.errors import InputError

__all__ = ["all_from_yaml", "from_yaml"]

_MAX_VALUES = 100_000

# The same language, read ten times faster where PyYAML was built with libyaml, as its wheels are.
_SAFE: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):  # type: ignore[misc,valid-type] # chosen above
    """Refuses a key given twice: YAML does too, PyYAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as PyYAML has it
        given: set[str] = set()
        for key, _ in node.value:
            if key.value in given:
                where = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"the key {key.value!r} is given twice, again in {where}")
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                given.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def from_yaml(data: bytes, *, file: str) -> dict[str, Any]:
    """Read one mapping of plain JSON values from YAML or JSON.

    Raises:
        InputError: it is not YAML, not a mapping, gives a key twice, or holds what JSON cannot
            (dates, NaN, sets).
    """
    return mapping(_load(data, file, several=False), field=file)


def all_from_yaml(data: bytes, *, file: str) -> dict[str, dict[str, Any]]:
    """Read the mappings of a file, by ``file`` or, where ``---`` parts several, by ``file#2``.

    Raises:
        InputError: as ``from_yaml``; or there is none.
    """
    found = [one for one in _load(data, file, several=True) if one is not None]
    if not found:
        raise InputError("holds no document", field="file", value=file, remedy="write one")
    names = [file] + [f"{file}#{number}" for number in range(2, len(found) + 1)]
    return {name: mapping(one, field=name) for name, one in zip(names, found, strict=True)}


def _load(data: bytes, file: str, *, several: bool) -> Any:  # noqa: ANN401 - YAML holds anything
    try:
        text = data.decode()
        if several:
            document = list(yaml.load_all(text, Loader=_Loader))
        else:
            document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        _check_size(document)
        check_json(document)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"is not YAML or JSON of plain values ({_why(error)})",
            field="file",
            value=file,
            remedy="correct it; quote what is text, such as dates",
        ) from error
    return document


def _why(error: Exception) -> str:
    """What is wrong and where, without the name that the parser gives a text."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).replace('in "<unicode string>", ', "at ")
    parts = ((error.context, error.context_mark), (error.problem, error.problem_mark))
    told = [
        what if mark is None else f"{what} at line {mark.line + 1}, column {mark.column + 1}"
        for what, mark in parts
        if what
    ]
    return ": ".join(told)


def _check_size(document: object) -> None:
    """Raise ValueError where aliases of aliases expand to more than anybody wrote."""
    waiting, count = [document], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        if count + len(waiting) > _MAX_VALUES:
            raise ValueError(f"has more than {_MAX_VALUES} values, or refers to itself")
