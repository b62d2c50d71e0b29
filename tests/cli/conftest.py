"""Run commands in this process, against a live server where one is needed."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from look_up_artifact import look_up_artifact
from value_rollout import Rollout, add_tasks

from gatekeeper.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from live import LiveServer


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def gatekeeper(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run ``gatekeeper ARGUMENTS`` with only the given GATEKEEPER_ settings."""
    for name in ("HOME", "DATABASE_URL", "EVIDENCE", "URL", "TOKEN", "PORT", "HOST", "EXECUTOR"):
        monkeypatch.delenv(f"GATEKEEPER_{name}", raising=False)

    def run(*arguments: object, **settings: object) -> Done:
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"GATEKEEPER_{name}", str(value))
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        status = ended.value.code
        return Done(status if isinstance(status, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def enabled(live_server: LiveServer) -> Iterator[Rollout]:
    """A server with one route that is enabled for its value."""
    with ExitStack() as stack:
        clients = {
            role: stack.enter_context(live_server.client(role)) for role in live_server.tokens
        }
        rollout = Rollout(clients)
        rollout.apply()
        admin = clients["admin"]
        digest = admin.post("/v1/artifacts", json=look_up_artifact("reference")).json()["digest"]
        body = {"slice": "prose", "artifact": digest, "policy": "priced"}
        assert admin.put("/v1/routes/prose", json=body).is_success
        add_tasks(live_server.db)
        rollout.gates()
        yield rollout
