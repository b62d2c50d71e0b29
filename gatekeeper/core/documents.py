"""Reading a plain document into a frozen dataclass, strictly: every key known, every type right."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from decimal import Decimal
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from gatekeeper.errors import InputError, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "check",
    "check_json",
    "compared",
    "counted",
    "in_full",
    "is_number",
    "leaves",
    "mapping",
    "plain",
    "read",
    "refuse_unknown",
    "signed",
]

_T = TypeVar("_T")

_MOST_DIGITS = 17
"""Significant digits that tell any two floats apart."""


def read(cls: type[_T], document: object, *, field: str) -> _T:
    """Build the frozen dataclass ``cls`` from a mapping; ``field`` prefixes names in errors.

    Annotations may be bool, int, float, str, ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]``,
    ``Any``, another such dataclass, or a class with its own ``from_dict(document, *, field)``. A
    field with a default may be left out. An int is accepted where a float is wanted, never a bool
    for a number.

    Raises:
        UnknownKey: a key that no field reads.
        InputError: a missing key or a wrong type, named by its dotted field.
    """
    document = mapping(document, field=field)
    declared = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    refuse_unknown(document, declared, field=field)
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, declaration in declared.items():
        path = f"{field}.{name}" if field else name
        if name in document:
            values[name] = _convert(hints[name], document[name], path)
        elif declaration.default is MISSING and declaration.default_factory is MISSING:
            raise InputError("is missing", field=path, remedy="add it")
    return cls(**values)


def check_json(document: object) -> None:
    """Raise ValueError or TypeError where JSON in UTF-8 cannot hold the document."""
    json.dumps(document, allow_nan=False, ensure_ascii=False).encode()


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every scalar of a JSON document with its path, such as ``regions[0].speedup.low``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def mapping(document: object, *, field: str) -> dict[str, Any]:
    """``document`` as a dict with string keys.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InputError("is not a mapping", field=field, value=document, remedy="use key: value")
    return document


def refuse_unknown(document: Mapping[str, Any], known: Iterable[str], *, field: str) -> None:
    """Raise ``UnknownKey`` for the first key of ``document`` not in ``known``."""
    names = list(known)
    for key in document:
        if key not in names:
            raise UnknownKey(
                "is not known here",
                field=f"{field}.{key}" if field else key,
                value=document[key],
                remedy=f"use {', '.join(names)}" if names else "leave it out",
            )


def in_full(money: float, significant: int = 6) -> str:
    """An amount as people write it: 0.000094 rather than 9.4e-05, with a true minus sign."""
    return _written(f"{Decimal(f'{money:.{significant}g}'):,f}")


def compared(first: float, second: float, significant: int = 6) -> tuple[str, str]:
    """Two amounts that a sentence compares, in so many digits that they read in their true order.

    ``first`` has ``significant`` digits and ``second`` six, each more where rounding would make
    different amounts alike, or the smaller one the larger.
    """
    for more in range(_MOST_DIGITS):
        digits = [min(wanted + more, _MOST_DIGITS) for wanted in (significant, 6)]
        told = [float(f"{x:.{d}g}") for x, d in zip((first, second), digits, strict=True)]
        if (told[0] < told[1], told[0] > told[1]) == (first < second, first > second):
            break
    return in_full(first, digits[0]), in_full(second, digits[1])


def signed(value: float, decimals: int) -> str:
    """A difference with so many decimals, its sign always shown."""
    return _written(f"{value:+,.{decimals}f}")


def counted(value: float) -> str:
    """A whole number, thousands apart."""
    return _written(f"{value:,.0f}")


def _written(text: str) -> str:
    """True minus sign, narrow space between thousands: as `gatekeeper.reports.number_forms` has it."""
    return text.replace("-", "−").replace(",", "\u202f")


def check(checks: Sequence[tuple[str, object, bool, str]]) -> None:
    """Raise ``InputError`` for the first (field, value, good, remedy) that is not good."""
    for field, value, good, remedy in checks:
        if not good:
            raise InputError("is out of range", field=field, value=value, remedy=remedy)


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON is any
    """Dataclasses to dicts and tuples to lists, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _convert(hint: Any, value: Any, field: str) -> Any:  # noqa: ANN401 - types are values here
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or (value is None and NoneType in arguments):
        return value
    if origin is UnionType:
        (hint,) = (a for a in arguments if a is not NoneType)
        return _convert(hint, value, field)
    if origin is not None:
        return _collection(origin, arguments, value, field)
    if hasattr(hint, "from_dict"):
        return hint.from_dict(mapping(value, field=field), field=field)
    if is_dataclass(hint):
        return read(cast("type", hint), value, field=field)
    return _scalar(hint, value, field)


def _collection(origin: type, arguments: tuple[Any, ...], value: object, field: str) -> object:
    if issubclass(origin, Mapping):
        found = mapping(value, field=field)
        return {k: _convert(arguments[1], v, f"{field}[{k}]") for k, v in found.items()}
    if not isinstance(value, (list, tuple)):
        raise InputError("is not a list", field=field, value=value, remedy="use [a, b]")
    return tuple(_convert(arguments[0], v, f"{field}[{i}]") for i, v in enumerate(value))


_SHOWN = {
    float: "use a number, such as 0.5",
    int: "use a whole number, such as 2",
    str: 'use text, quoted where it looks like a number: "1"',
    bool: "use true or false",
}


def _scalar(hint: Any, value: Any, field: str) -> Any:  # noqa: ANN401 - as _convert
    if hint is float and is_number(value):
        if not abs(value) <= sys.float_info.max:  # NaN, and a whole number that no float holds
            raise InputError("is not finite", field=field, value=value, remedy="use a number")
        return float(value)
    good = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    if not good:
        raise InputError(
            f"is not of type {hint.__name__}",
            field=field,
            value=value,
            remedy=_SHOWN.get(hint, "correct it"),
        )
    return value
