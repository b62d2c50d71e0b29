from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from gatekeeper import plugins
from gatekeeper.errors import InputError, MissingExtra, NotFound

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that these entry points are the installed ones."""

    def pretend(**values: Any) -> None:
        points = {k: EntryPoint(k, v, "gatekeeper.engines") for k, v in values.items()}
        monkeypatch.setattr(plugins, "_found", lambda group: points)

    return pretend


def test_shipped_trace_formats_are_found() -> None:
    shipped = [
        "claude_transcripts",
        "inspect_ai",
        "jaeger",
        "kv_cache",
        "langfuse",
        "langsmith",
        "managed_agents",
        "mlflow",
        "otlp",
    ]
    assert list(plugins.names("gatekeeper.traces")) == shipped
    assert [f.name for f in plugins.load_all("gatekeeper.traces").values()] == shipped


def test_unknown_group_and_unknown_name() -> None:
    with pytest.raises(InputError, match=r"group=gatekeeper\.nothing"):
        plugins.names("gatekeeper.nothing")
    with pytest.raises(NotFound, match=r"trace=kineto.*installed: .*jaeger, kv_cache, langfuse"):
        plugins.load("gatekeeper.traces", "kineto")


def test_missing_library_names_the_install_line(
    installed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_torch_xyz.py").write_text("import torch_that_is_not_there\n")
    (tmp_path / "needs_gguf_xyz.py").write_text("raise ModuleNotFoundError('x', name='gguf.sub')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed(other="needs_torch_xyz:X", heavy="needs_gguf_xyz:X")
    with pytest.raises(MissingExtra, match=r"engine=heavy.*pip install gatekeeper\[torch\]"):
        plugins.load("gatekeeper.engines", "heavy")
    with pytest.raises(MissingExtra, match="pip install torch_that_is_not_there"):
        plugins.load("gatekeeper.engines", "other")


def test_broken_installation_is_not_called_a_missing_extra(installed: Any) -> None:
    installed(broken="gatekeeper_adapters.never_written:X")
    with pytest.raises(ModuleNotFoundError):
        plugins.load("gatekeeper.engines", "broken")
