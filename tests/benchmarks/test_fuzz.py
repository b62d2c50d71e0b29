"""Five seconds of what ``make verify STAGE=fuzz`` does for ten minutes."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from benchmark_scripts import script

from gatekeeper.core.trace_documents import Document, decode
from gatekeeper.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

fuzz = script("fuzz")
SECONDS = 5.0


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "FOUND", tmp_path)


def test_every_installed_format_has_documents_to_start_from() -> None:
    found, seeds = fuzz.formats(), script("trace_seeds").seeds()
    assert set(seeds) == set(found) == set(fuzz.parts())
    for name, documents in seeds.items():
        for data in documents:
            assert found[name].accepts(decode(data)), name
            assert found[name].read(decode(data))


@pytest.mark.parametrize("name", sorted(fuzz.formats()))
def test_no_parser_raises_what_it_did_not_declare(name: str) -> None:
    found = fuzz.run(name, SECONDS / len(fuzz.formats()))
    assert found["holds"], found["failures"]
    assert found["taken"] > 0


class Planted:
    """A format that forgets what JSON may hold."""

    name = "planted"

    def accepts(self, document: Document) -> bool:
        return document.values is not None

    def read(self, document: Document) -> Any:
        first = (document.values or ("",))[0]
        if isinstance(first, dict) and "a" not in first:
            raise TraceError("has no a")
        if isinstance(first, dict) and isinstance(first["a"], list):
            threading.Event().wait(0.3)
        return [][first["a"] + 1 :]


def test_a_planted_fault_and_a_planted_wait_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "SLOW_S", 0.1)
    planted = Planted()
    within = [__file__]
    trial = partial(fuzz.trial, planted, [planted])
    fuzzer = fuzz.Fuzzer(trial, [json.dumps({"a": 1, "b": [1]}).encode()], within=within)
    fuzzer.run(2.0)
    kinds = " ".join(fuzzer.failures)
    assert "TypeError" in kinds
    assert "TooSlow" in kinds
    kept = fuzzer.failures[next(k for k in fuzzer.failures if "TypeError" in k)]
    with pytest.raises(TypeError):
        planted.read(decode(fuzz.Path(kept["file"]).read_bytes()))
    assert len(fuzzer.lines) > 3
