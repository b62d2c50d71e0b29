"""``gatekeeper engine serve`` as a process, and what it refuses before it serves."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from engine_server import HTTP, started, wait_until
from gatekeeper_adapters.engines.reference.provider import PROVIDER

from gatekeeper.cli import cli
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.torch


def ended(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return errors


def test_it_serves_until_it_is_told_to_stop(tiny: Path, tiny_draft: Path) -> None:
    proposers = ("--proposer", "ngram", "--proposer", f"draft_lm=file:{tiny_draft}")
    with started("--target", f"file:{tiny}", *proposers, "--gamma", 3) as (process, url):
        wait_until(lambda: HTTP.get(f"{url}/health").status_code == 200)
        (model,) = HTTP.get(f"{url}/v1/models").json()["data"]
        assert model["id"] == "target"
        assert model["speculation"] == {"gamma": 3, "proposers": ["ngram", "draft_lm"]}
        assert set(model["meta"]["files"]) >= {"config.json", "model.safetensors"}
        texts = set()
        for more in ({}, {"proposer": "draft_lm"}, {"gamma": 0}):
            body = {"prompt": "t5 t6 t7", "max_tokens": 8, "temperature": 0, **more}
            answer = HTTP.post(f"{url}/v1/completions", json=body).json()
            texts.add(answer["choices"][0]["text"])
        assert len(texts) == 1
        body = {"prompt": "t5", "proposer": "medusa"}
        refused = HTTP.post(f"{url}/v1/completions", json=body)
        assert refused.json()["error"]["param"] == "proposer"
        process.send_signal(signal.SIGTERM)
        ended(process)


def test_an_artifact_is_served_with_its_own_window_and_an_idle_server_ends(
    tiny: Path, tmp_path: Path
) -> None:
    document = {
        "schema": 1,
        "target": {"source": f"file:{tiny}"},
        "proposer": {"kind": "ngram", "parameters": {}},
        "gamma": 6,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [{"temperature": 0.0}],
        "engine": {
            "name": "reference",
            "version": PROVIDER.version(),
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(document))
    with started("--artifact", tmp_path / "a.yaml", "--idle-exit", 2) as (process, url):
        wait_until(lambda: HTTP.get(f"{url}/health").status_code == 200)
        (model,) = HTTP.get(f"{url}/v1/models").json()["data"]
        assert model["speculation"]["gamma"] == 6
        ended(process)


def refusal(*arguments: object) -> Any:
    done = CliRunner().invoke(cli, ["engine", "serve", *map(str, arguments)])
    if isinstance(done.exception, GatekeeperError):
        assert done.exception.exit_code == 2
        return str(done.exception)
    assert done.exit_code == 2, done.output
    return done.output


def test_a_busy_port_is_told_before_anything_is_loaded(tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = refusal("--target", f"file:{tiny}", "--port", port)
    assert f"port={port}: cannot be listened on" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--target: is missing"),
        (("--target", "nonsense"), "is not a model source"),
        (("--target", "file:/nowhere"), "holds no config.json"),
        (("--target", "TINY", "--proposer", "guess"), "proposer.kind=guess"),
        (("--target", "TINY", "--proposer", "draft_lm"), "proposer.source"),
        (("--target", "TINY", "--proposer", "ngram", "--proposer", "ngram"), "is given twice"),
        (("--target", "TINY", "--proposer", "ngram?min_match=x"), "is not JSON"),
        (("--target", "TINY", "--proposer", "ngram?depth=2"), "proposer.parameters.depth"),
        (("--target", "TINY", "--otlp", "host:4318", "--port", "0"), "--otlp=host:4318"),
        (("--target", "TINY", "--otlp", "http://u:secret@h", "--port", "0"), "--otlp=http://…@h"),
        (("--artifact", "a.yaml", "--target", "file:x"), "--target is what --artifact says"),
        (("--artifact", "a.yaml", "--proposer", "ngram"), "--proposer is what --artifact says"),
        (("--artifact", "/nowhere.yaml"), "no such file"),
    ],
)
def test_what_cannot_be_served_is_named(tiny: Path, arguments: Any, words: str) -> None:
    found = refusal(*(f"file:{tiny}" if one == "TINY" else one for one in arguments))
    assert words in found
    assert "secret" not in found
