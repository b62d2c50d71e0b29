"""The policies that are shipped, as documents to change: each is read once, since reading is slow."""

from __future__ import annotations

import copy
import functools
from typing import Any

import yaml

from gatekeeper.config import data_dir


def shipped_policy(name: str) -> dict[str, Any]:
    """A copy of ``policies/NAME.yaml``; prices are ``economics/NAME``."""
    return copy.deepcopy(_read(name))


@functools.cache
def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((data_dir("policies") / f"{name}.yaml").read_text())
    return found
