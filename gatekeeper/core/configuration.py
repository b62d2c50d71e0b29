"""Configuration as documents: what each kind says, and how two states of one thing differ."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping  # noqa: TC003 - documents.read looks at the types of fields
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.documents import mapping, plain, read
from gatekeeper.core.economics import Economics
from gatekeeper.core.names import check_name
from gatekeeper.core.policies import Policy, Slo
from gatekeeper.core.ramp import Rollout
from gatekeeper.core.routing import Rule as Matching
from gatekeeper.core.schedules import Rule
from gatekeeper.core.task_assignment import TaskRules
from gatekeeper.errors import GatekeeperError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "ADD",
    "ALIAS",
    "CHANGE",
    "ECONOMICS",
    "KEEP",
    "KINDS",
    "POLICY",
    "REMOVE",
    "ROUTE",
    "SCHEDULE",
    "AliasDocument",
    "Change",
    "Declared",
    "FieldChange",
    "RouteDocument",
    "declared",
    "digest",
    "document_of",
    "field_changes",
    "located",
]

POLICY, ECONOMICS, ALIAS, ROUTE, SCHEDULE = "policy", "economics", "alias", "route", "schedule"
KINDS = (POLICY, ECONOMICS, ALIAS, ROUTE, SCHEDULE)
"""In the order in which they are applied: each refers to those before it alone."""

ADD, CHANGE, REMOVE, KEEP = "add", "change", "remove", "keep"
"""What applying does to a thing; ``keep`` is what pruning leaves, and says why."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class AliasDocument:
    """Where an alias points: the digest of a registered artifact."""

    digest: str

    def __post_init__(self) -> None:
        if _SHA256.fullmatch(self.digest) is None:
            raise InputError(
                "is not a digest",
                field="digest",
                value=self.digest,
                remedy="use the 64 hexadecimal digits that artifact register printed",
            )


@dataclass(frozen=True)
class RouteDocument:
    """What a route serves, as ``gatekeeper route set --file`` reads it.

    A ``rollout`` that is left out stays as it is, and null ends it: a ramp must not end by omission.
    """

    slice: str
    artifact: str
    policy: str
    rules: tuple[Mapping[str, Any], ...] = ()
    slo: Mapping[str, Any] | None = None
    sampling: tuple[Mapping[str, Any], ...] = ()
    task_rules: Mapping[str, Any] | None = None
    economics: str | None = None
    rollout: Mapping[str, Any] | None = None


_CLASSES: dict[str, Any] = {ALIAS: AliasDocument, ROUTE: RouteDocument, SCHEDULE: Rule}


@dataclass(frozen=True)
class Declared:
    """One thing that a document declares; ``spec`` is all that the document may say, in full."""

    kind: str
    name: str
    file: str
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class FieldChange:
    """A field by its path before and after; one that is absent on a side has no such key there."""

    field: str
    sides: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"field": self.field, **self.sides}


@dataclass(frozen=True)
class Change:
    """What applying does to one thing; ``why`` is for what is kept."""

    kind: str
    name: str
    change: str
    file: str | None = None
    fields: tuple[FieldChange, ...] = field(default=())
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {**asdict(self), "fields": [one.to_dict() for one in self.fields]}


def declared(document: Mapping[str, Any], *, file: str) -> Declared:
    """Check a document by itself.

    A policy and economics are recognised without ``kind`` too, as they are shipped.

    Raises:
        InputError: of the kind that was found; its field has the file before it.
    """
    with located(file):
        body = dict(mapping(document, field=""))
        kind = body.pop("kind", None) or _recognised(body)
        if kind not in KINDS:
            raise InputError(
                "is missing" if kind is None else "is not a kind",
                field="kind",
                value=kind,
                remedy=f"use one of {', '.join(KINDS)}",
            )
        name = body.get("name")
        if not isinstance(name, str):
            raise InputError("is missing", field="name", value=name, remedy="name it")
        check_name("name", name)
        return Declared(kind, name, file, _spec(kind, name, body))


def _recognised(body: Mapping[str, Any]) -> str | None:
    if "mandatory_gates" in body:
        return POLICY
    return ECONOMICS if "currency" in body else None


def _spec(kind: str, name: str, body: dict[str, Any]) -> Mapping[str, Any]:
    spec: dict[str, Any]
    if kind in (POLICY, ECONOMICS):
        spec = plain((Policy if kind == POLICY else Economics).from_dict(body).to_dict())
        return spec
    del body["name"]
    spec = plain(read(_CLASSES[kind], body, field=""))
    if kind == ROUTE and "rollout" not in body:
        del spec["rollout"]
    elif kind == ROUTE and spec["rollout"] is not None:
        spec["rollout"] = Rollout.from_dict(spec["rollout"]).to_dict()
    if kind == ROUTE:
        spec["rules"] = [
            Matching.from_dict(rule, route=name, field=f"rules[{i}]").to_dict()
            for i, rule in enumerate(spec["rules"])
        ]
        for i, settings in enumerate(spec["sampling"]):
            _ = SamplingSettings.from_dict(settings, field=f"sampling[{i}]")
        if spec["slo"] is not None:
            spec["slo"] = plain(read(Slo, spec["slo"], field="slo"))
        if spec["task_rules"] is not None:
            spec["task_rules"] = plain(TaskRules.from_dict(spec["task_rules"]))
    return spec


def document_of(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that declares a thing, without what it need not say."""
    if kind in (POLICY, ECONOMICS):
        return {"kind": kind, **spec}
    unset: dict[str, Any] = {"rules": [], "sampling": [], "jitter_s": 0.0, "priority": 0}
    unset["on_new_version"] = False
    body = {k: v for k, v in spec.items() if v is not None and v != unset.get(k)}
    if "rules" in body:
        own = [
            {k: v for k, v in rule.items() if (k, v) != ("route", name)} for rule in body["rules"]
        ]
        body["rules"] = own
    return {"kind": kind, "name": name, **body}


class located:  # noqa: N801 - reads as what it does, as contextlib's do
    """Put the file before the field of an error of its document."""

    def __init__(self, file: str | None) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, GatekeeperError) and self._file is not None:
            where = f"{self._file}: {error.field}" if error.field else self._file
            raise type(error)(
                error.message, field=where, value=error.value, remedy=error.remedy
            ) from error


def field_changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[FieldChange, ...]:
    """Fields that differ, by their paths: in the order of the later state, then those it lacks."""
    old, new = dict(_leaves(before or {})), dict(_leaves(after or {}))
    found = []
    for path in dict.fromkeys((*new, *sorted(old))):  # PostgreSQL keeps no order of keys
        same = path in old and path in new and _equal(old[path], new[path])
        if not same:
            sides = {"before": old.get(path), "after": new.get(path)}
            there = {"before": path in old, "after": path in new}
            found.append(FieldChange(path, {k: v for k, v in sides.items() if there[k]}))
    return tuple(found)


def _equal(one: object, other: object) -> bool:
    """Whether two scalars are the same in a document, where 1 is not true."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every scalar and every empty collection; None is as good as absent."""
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif value is not None and value != []:
        yield path, value


def digest(changes: Sequence[Change]) -> str:
    """The sha256 of a plan: what is applied is what was looked at, or nothing."""
    shown = [{**one.to_dict(), "file": None} for one in changes]
    text = json.dumps(shown, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
