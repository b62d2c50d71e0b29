"""Tasks of kind ``extract``: one field of a sentence as a JSON object with one key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gatekeeper.workloads.chat import chat, compact
from gatekeeper.workloads.tasks.task import Task

if TYPE_CHECKING:
    from gatekeeper.workloads.tasks.task import Verifier

__all__ = ["build"]

_ORDERS = (
    ("Ines", 3, "lamps", "Porto"),
    ("Radek", 12, "chairs", "Lima"),
    ("Moira", 7, "kettles", "Bergen"),
    ("Dalia", 40, "tiles", "Cairo"),
    ("Henrik", 2, "ladders", "Turku"),
    ("Samira", 15, "scarves", "Tunis"),
    ("Bogdan", 6, "clocks", "Varna"),
    ("Lucia", 9, "mirrors", "Trento"),
    ("Kenji", 24, "cups", "Osaka"),
    ("Wanda", 5, "benches", "Lublin"),
)
_FIELDS = ("name", "count", "city")


def build() -> tuple[Task, ...]:
    """Return 30 tasks: ten orders, three fields. Each shows another field of another order."""
    found = []
    for number, order in enumerate(_ORDERS):
        shown = _ORDERS[(number + 3) % len(_ORDERS)]
        for position, field in enumerate(_FIELDS):
            other = _FIELDS[(position + 1) % len(_FIELDS)]
            wanted = {field: _value(order, field)}
            turns = [
                ("user", _ask(shown, other)),
                ("assistant", compact({other: _value(shown, other)})),
                ("user", _ask(order, field)),
            ]
            found.append(
                Task(
                    id=f"extract-{number + 1:02d}-{field}",
                    kind="extract",
                    text=chat(turns),
                    answer=compact(wanted),
                    verify=_object(wanted),
                )
            )
    return tuple(found)


def _ask(order: tuple[str, int, str, str], field: str) -> str:
    name, count, item, city = order
    return f"{name} sends {count} {item} to {city}. JSON: {field}"


def _value(order: tuple[str, int, str, str], field: str) -> str | int:
    name, count, _, city = order
    values: dict[str, str | int] = {"name": name, "count": count, "city": city}
    return values[field]


def _object(wanted: dict[str, Any]) -> Verifier:
    """Accept one JSON document equal to ``wanted``: same key, same type of value, no other text."""

    def verify(text: str) -> bool:
        try:
            found = json.loads(text, object_pairs_hook=list)
        except (ValueError, RecursionError):
            return False
        # Pairs, not a dict: a key given twice is not the object that was asked for.
        return bool(found == list(wanted.items()) and _types(found) == _types(wanted.items()))

    return verify


def _types(pairs: Any) -> list[type]:  # noqa: ANN401 - any list of pairs
    return [type(value) for _, value in pairs]
