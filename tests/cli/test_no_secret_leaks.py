"""Planted tokens, passwords and prompts: neither logs nor a dump of the database hold any of them."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from look_up_artifact import look_up_artifact
from shipped_policies import shipped_policy

from gatekeeper.actions.identity import ROLES, SYSTEM, create_token
from gatekeeper.store.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).parents[1] / "worker_process.py"
PROMPT = "canary prompt: my mother's maiden name"
PASSWORD = "canary-database-password"
ELSEWHERE = "canary-password-of-an-engine"
WRONG = "gk_canary" + "w" * 40
START = 1_767_225_600 * 10**9


@dataclass
class World:
    """A server as a process, everything that processes have printed, and every secret planted."""

    url: str
    database_url: str
    evidence: Path
    logs: list[Path] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    planted: list[str] = field(default_factory=list)

    def client(self, role: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120)


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with_password = database_url.replace("postgres@", f"postgres:{PASSWORD}@")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GATEKEEPER_")}
    env |= {"GATEKEEPER_DATABASE_URL": with_password, "GATEKEEPER_HOME": str(tmp_path / "home")}
    log = tmp_path / "server.log"
    found = World(f"http://127.0.0.1:{port}", database_url, tmp_path / "home" / "evidence", [log])
    found.planted += [PROMPT, PASSWORD, ELSEWHERE, WRONG]
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "gatekeeper", "serve", "--json", "--port", str(port)]
        server = subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: ready(found.url), server)
            db = open_database(database_url)
            for role in ROLES:
                _, secret = create_token(db, SYSTEM, name=role, role=role, ttl_s=None)
                found.tokens[role] = secret
                found.planted.append(secret)
            db.close()
            yield found
        finally:
            server.terminate()
            server.wait(60)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def span(number: int, **texts: str) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **texts}
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "name": "chat",
        "startTimeUnixNano": str(START + number * 10**9),
        "endTimeUnixNano": str(START + (number + 1) * 10**9),
        "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in attributes.items()],
        "events": [
            {
                "name": "gen_ai.user.message",
                "timeUnixNano": str(START),
                "attributes": [{"key": "content", "value": {"stringValue": PROMPT}}],
            }
        ],
    }


TEXTS = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.prompt",
    "gen_ai.completion",
    "input.value",
    "output.value",
    "llm.input_messages.0.message.content",
    "traceloop.entity.input",
    "gen_ai.tool.call.arguments",
)


def send_prompts(world: World) -> None:
    """As exporters do, well and badly."""
    spans = [span(n, **{name: PROMPT}) for n, name in enumerate(TEXTS, start=1)]
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    other = {"resourceSpans": [{"scopeSpans": [{"spans": [span(1, model=PROMPT)]}]}]}
    with world.client("ingester") as ingester:
        stored = ingester.post("/v1/traces", json=body)
        assert (stored.status_code, stored.json()) == (200, {})
        ingester.post("/v1/traces", json=other)  # contradicts the stored one
        for path in ("/v1/traces", "/v1/traces/import"):
            headers = {"Content-Type": "application/json"}
            broken = ingester.post(path, content=f'{{"{PROMPT}": ['.encode(), headers=headers)
            assert broken.status_code == 400
        whole = json.dumps(body).replace("ab" * 16, "cd" * 16).encode()
        assert ingester.post("/v1/traces/import", content=whole).is_success


def send_secrets(world: World) -> None:
    """In every place where one may end by mistake."""
    for headers in ({"Authorization": f"Bearer {WRONG}"}, {"Authorization": f"Basic {WRONG}"}):
        assert httpx.get(f"{world.url}/v1/routes", headers=headers).status_code == 401
    with world.client("admin") as admin:
        admin.get("/v1/routes", params={"token": WRONG, "after": WRONG})
        assert admin.get(f"/v1/routes/{WRONG}").status_code == 404
        made = admin.post("/v1/tokens", json={"name": "ci", "role": "reader"}).json()
        turned = admin.post(f"/v1/tokens/{made['id']}/rotate", json={"overlap_s": 60}).json()
        world.planted += [made["token"], turned["token"]]
        document = look_up_artifact("openai_http")
        document["target"]["source"] = f"http://user:{ELSEWHERE}@127.0.0.1:1/v1"
        assert admin.post("/v1/artifacts", json=document).status_code == 422
        flags = "/ofrep/v1/evaluate/flags/prose"
        for context in ({"targetingKey": "u", "prompt": PROMPT}, {"concurrency": PROMPT}):
            admin.post(flags, json={"context": context})
        assert admin.post("/v1/routes/prose/decision", json={"prompt": PROMPT}).status_code == 422
        headers = {"Content-Type": "application/json"}
        admin.put("/v1/routes/prose", content=f'{{"slice": "{PROMPT}'.encode(), headers=headers)


def measure(world: World, tmp_path: Path) -> None:
    """One gate run with the fake engine, and a worker with a wrong token."""
    policy = shipped_policy("demo")
    gates = ["equivalence", "serving"]
    policy |= {"name": "test", "mandatory_gates": gates, "minimum_value": None}
    policy["equivalence"] |= {"tokens_per_request": 12}
    policy["equivalence"]["greedy"]["prompts"] = 2
    policy["equivalence"]["sampled"] |= {"min_tokens": 100, "max_tokens": 600}
    policy["equivalence"]["tolerance"] |= {"window": 0.3, "bonus": 0.4}
    with world.client("admin") as admin:
        digest = admin.post("/v1/artifacts", json=look_up_artifact("reference")).json()["digest"]
        applied = admin.put("/v1/policies/test", json=policy)
        assert applied.is_success, applied.text
        body = {"slice": "prose", "artifact": digest, "policy": "test"}
        assert admin.put("/v1/routes/prose", json=body).is_success
        run = admin.post("/v1/gate-runs", json={"route": "prose", "gate": "equivalence"}).json()
        log = tmp_path / "worker.log"
        for token in (WRONG, world.tokens["worker"]):
            arguments = [str(WORKER), world.url, token, "w", "60", "0"]
            with log.open("ab") as stream:
                subprocess.run(
                    [sys.executable, *arguments],
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=600,
                )
        world.logs.append(log)
        done = admin.get(f"/v1/gate-runs/{run['id']}").json()
        assert done["state"] == "finished", done["error"]
        assert done["evidence"]


def dump(world: World) -> bytes:
    """All that a thief of the database would hold."""
    if world.database_url.startswith("postgres"):
        command = ["pg_dump", "--inserts", world.database_url]
        return subprocess.run(command, check=True, capture_output=True, timeout=240).stdout
    path = Path(world.database_url.removeprefix("sqlite:///"))
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


def test_no_log_dump_or_evidence_holds_a_secret_or_a_prompt(world: World, tmp_path: Path) -> None:
    measure(world, tmp_path)
    send_prompts(world)
    send_secrets(world)
    time.sleep(2.5)  # tasks are computed meanwhile
    held = dump(world)
    logged = b"".join(path.read_bytes() for path in world.logs)
    evidence = b"".join(path.read_bytes() for path in world.evidence.rglob("*.parquet"))
    # they are no empty files: what belongs there is there
    assert hashlib.sha256(world.tokens["admin"].encode()).hexdigest().encode() in held
    assert b"gen_ai.request.model" in held
    assert b"equivalence of route prose: PASS" in logged
    assert evidence
    for secret in world.planted:
        for where, data in (("dump", held), ("log", logged), ("evidence", evidence)):
            assert secret.encode() not in data, (where, secret)
