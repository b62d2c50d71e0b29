from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from models import smollm2
from tiny_models import write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["smollm2"]

KEEP = (*range(0, 97, 2), 1, 3, 5)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="session")
def tiny_draft(tiny: Path) -> Path:
    from gatekeeper_adapters.engines.reference.cut import cut_layers

    return cut_layers(tiny, [0], KEEP, tiny.parent / "draft")


@pytest.fixture(scope="session")
def open_tiny(tiny: Path, tiny_draft: Path) -> Callable[..., Any]:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    def build(kind: str = "ngram", folder: Path | None = None, **options: Any) -> Any:
        draft = {"draft_lm": tiny_draft, "self": tiny}.get(kind)
        return load_engine(
            folder or tiny,
            {"kind": "ngram" if kind == "ngram" else "draft_lm"},
            draft,
            version="test",
            dtype=options.pop("dtype", "float32"),
            options=Options(**{"max_batch": 8, "max_context": 256, **options}),
        )

    return build
