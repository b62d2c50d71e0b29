"""Names of routes, policies, aliases, economics and schedules."""

from __future__ import annotations

import re

from gatekeeper.errors import InputError

__all__ = ["check_name", "check_same_name"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_name(field: str, name: str) -> None:
    """Raise ``InputError`` for what is no name."""
    # Names travel in URLs and OFREP keys; one that looks like a digest would hide an artifact.
    if _NAME.fullmatch(name) is None or _DIGEST.fullmatch(name) is not None:
        raise InputError(
            "is not a name",
            field=field,
            value=name,
            remedy="use a-z, 0-9, '.', '_' and '-', up to 100, beginning with a letter or digit",
        )


def check_same_name(found: str, name: str) -> None:
    """Raise ``InputError`` where ``name`` is none, or the document that it is applied to has another."""
    check_name("name", name)
    if found != name:
        raise InputError(
            f"differs from the name {name} it is applied under",
            field="name",
            value=found,
            remedy="use one name",
        )
