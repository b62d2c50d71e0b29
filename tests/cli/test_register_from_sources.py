"""``artifact register`` with nothing but sources: the engine installed here takes the digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

pytest.importorskip("torch")

from tiny_drafters import TRIMMED, write_tiny_eagle, write_tiny_medusa
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


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle2"])
def test_a_drafter_that_shares_the_targets_rows_needs_nothing_but_its_source(
    kind: str, pair: Path
) -> None:
    write = write_tiny_medusa if kind == "medusa" else write_tiny_eagle
    folder = write(pair.parent / kind, pair.parent / "target", ids=TRIMMED)
    document = yaml.safe_load(pair.read_text())
    parameters = {"tree": [2, 1]} if kind == "medusa" else {}
    document["proposer"] = {"kind": kind, "source": f"file:{folder}", "parameters": parameters}
    pair.write_text(yaml.safe_dump(document))
    digest = run("artifact", "register", str(pair), "--alias", kind)
    stored = yaml.safe_load(run("artifact", "show", kind))["document"]["proposer"]
    assert stored["vocab_size"] == len(TRIMMED)
    assert len(stored["token_map"]) == 64
    assert stored["parameters"] == parameters
    assert digest in run("artifact", "verify", kind)
    write(pair.parent / kind, pair.parent / "target", ids=TRIMMED, seed=9)
    with pytest.raises(EvidenceError, match=r"proposer\.files"):
        run("artifact", "verify", kind)


def test_a_draft_of_another_vocabulary_is_refused(pair: Path) -> None:
    from gatekeeper.errors import GatekeeperError

    write_tiny_llama(pair.parent / "draft", seed=1, vocab=64)
    with pytest.raises(GatekeeperError) as refused:
        run("artifact", "register", str(pair))
    assert refused.value.field is not None
    assert refused.value.field.startswith("proposer")
    assert refused.value.remedy
