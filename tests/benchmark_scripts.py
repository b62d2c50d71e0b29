"""Loads a script of ``benchmarks/`` as a module, to test its parts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "benchmarks"

if str(FOLDER) not in sys.path:  # scripts import their neighbours
    sys.path.append(str(FOLDER))


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
