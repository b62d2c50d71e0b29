"""``artifact register`` with nothing but sources: the engine installed here takes the digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

pytest.importorskip("torch")

from tiny_models import write_tiny_llama

from gatekeeper.cli import cli
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer

pytestmark = [pytest.mark.torch, pytest.mark.parametrize("db", ["sqlite"], indirect=True)]


@pytest.fixture
def pair(live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEKEEPER_URL", live_server.url)
    monkeypatch.setenv("GATEKEEPER_TOKEN", live_server.tokens["operator"])
    monkeypatch.setenv("GATEKEEPER_HOME", str(tmp_path / "home"))
    write_tiny_llama(tmp_path / "target")
    write_tiny_llama(tmp_path / "draft", seed=1, num_hidden_layers=1)
    document = {
        "schema": 1,
        "target": {"source": f"file:{tmp_path / 'target'}"},
        "proposer": {"kind": "draft_lm", "source": f"file:{tmp_path / 'draft'}", "parameters": {}},
        "gamma": 2,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 1.0}],
        "engine": {
            "name": "reference",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    path = tmp_path / "pair.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_digests_are_taken_where_the_files_are_and_hold_until_a_file_changes(pair: Path) -> None:
    digest = run("artifact", "register", str(pair), "--alias", "tiny")
    assert len(digest) == 64
    assert run("artifact", "register", str(pair)) == digest
    assert "target, proposer" in run("artifact", "verify", "tiny")
    write_tiny_llama(pair.parent / "draft", seed=2, num_hidden_layers=1)
    with pytest.raises(EvidenceError, match=r"proposer\.files"):
        run("artifact", "verify", "tiny")


def test_a_draft_of_another_vocabulary_is_refused(pair: Path) -> None:
    from gatekeeper.errors import GatekeeperError

    write_tiny_llama(pair.parent / "draft", seed=1, vocab=64)
    with pytest.raises(GatekeeperError) as refused:
        run("artifact", "register", str(pair))
    assert refused.value.field is not None
    assert refused.value.field.startswith("proposer")
    assert refused.value.remedy
