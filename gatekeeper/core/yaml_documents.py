"""Reading one strict mapping from YAML; apart, so that the request-time client needs no YAML."""

from __future__ import annotations

from typing import Any

import yaml

from gatekeeper.core.documents import check_json, mapping
from gatekeeper.errors import InputError

__all__ = ["from_yaml"]


def from_yaml(data: bytes, *, file: str) -> dict[str, Any]:
    """Read one mapping of plain JSON values from YAML or JSON.

    Raises:
        InputError: it is not YAML, not a mapping, or holds what JSON cannot (dates, NaN, sets).
    """
    try:
        document = yaml.safe_load(data.decode())
        check_json(document)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"is not YAML or JSON of plain values ({error})",
            field="file",
            value=file,
            remedy="correct it; quote what is text, such as dates",
        ) from error
    return mapping(document, field=file)
