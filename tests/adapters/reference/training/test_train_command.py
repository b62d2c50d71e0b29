from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from gatekeeper_adapters.engines.reference import provider
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.sources import DRAFTERS
from tiny_models import write_tiny_llama

from gatekeeper import plugins, workloads
from gatekeeper.cli import cli
from gatekeeper.errors import GatekeeperError, MissingExtra, NotFound

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.torch
def test_a_drafter_is_trained_judged_and_ready_to_register(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("GATEKEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(workloads, "SLICES", ("prose",))
    target = write_tiny_llama(tmp_path / "target", vocab=400, max_position_embeddings=2048)
    command = [f"--target=file:{target}", "--tokens=300", "--rows=90", "--seed=5", "--steps=3"]
    out = tmp_path / "made" / "medusa"
    result = CliRunner().invoke(
        cli, ["train", "medusa", *command, "--heads=2", f"--out={out}", "--json"]
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["steps"] == 3
    assert len(document["conditional_acceptance"]) == 4
    assert document["conditional_acceptance"][2:] == [None, None]  # two heads reach no third depth
    assert "sampled" in result.stderr
    assert "step 3/3" in result.stderr
    config = json.loads((out / "config.json").read_text())
    assert (config["heads"], config["draft_vocab_size"]) == (2, 90)
    assert config["provenance"]["target"]["source"] == f"file:{target}"
    pair = json.loads((tmp_path / "made" / "medusa.pair.json").read_text())
    assert pair["proposer"]["source"] == f"file:{out}"
    manifest = provider.PROVIDER.manifest(pair["proposer"]["source"], cache=tmp_path)
    assert manifest["files"].keys() == {"config.json", "model.safetensors"}

    second = CliRunner().invoke(
        cli, ["train", "eagle", *command, f"--out={tmp_path / 'made' / 'eagle'}"]
    )
    assert second.exit_code == 0, second.output
    assert "reading texts-" in second.stderr
    assert "bigram" in second.stdout
    assert f"gatekeeper artifact register {tmp_path / 'made' / 'eagle.pair.json'}" in second.stdout


def test_without_torch_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "NEEDED", ("a-package-nobody-has",))
    result = CliRunner().invoke(cli, ["train", "eagle", "--target=file:x", "--out=y"])
    assert isinstance(result.exception, MissingExtra)
    assert result.exception.exit_code == 2
    assert result.exception.remedy == "pip install gatekeeper[torch]"


def test_the_command_arrives_by_its_entry_point() -> None:
    assert "train" in plugins.names("gatekeeper.commands")
    bad = CliRunner().invoke(cli, ["train", "eagle", "--target=x", "--out=y", "--layers=first"])
    assert bad.exit_code == 2
    assert "no list of layer numbers" in bad.output


def test_an_existing_folder_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("GATEKEEPER_HOME", str(tmp_path / "home"))
    target = write_tiny_llama(tmp_path / "target")
    result = CliRunner().invoke(
        cli, ["train", "eagle", f"--target=file:{target}", f"--out={tmp_path}", "--steps=1"]
    )
    assert isinstance(result.exception, GatekeeperError)
    assert result.exception.field == "out"


def test_an_unknown_shipped_drafter_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        prepare("shipped:nobody", tmp_path)
    assert caught.value.value == "shipped:nobody"
    assert all(path.name in (caught.value.remedy or "") for path in DRAFTERS.iterdir())
