"""The OpenFeature Remote Evaluation Protocol, item by item, and OpenFeature's own clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openfeature import api as openfeature
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from reported import ROUTE, override, set_up

if TYPE_CHECKING:
    from live import LiveServer

Api = Any  # the fixture's class lives in conftest

FLAGS = "/ofrep/v1/evaluate/flags"
REASONS = {"STATIC", "TARGETING_MATCH", "SPLIT", "DISABLED", "UNKNOWN"}
CLIENTS = Path(__file__).parents[1] / "ofrep_node"
SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


def enable(api: Api, gamma: int = 3) -> None:
    body = {"route": "prose", "action": "enable", "reason": "trial", "ttl_s": 3600, "gamma": gamma}
    assert api.admin.post("/v1/overrides", json=body).status_code == 201


def ask(api: Api, context: Any = None, key: str = "prose") -> Any:
    body = {} if context is None else {"context": context}
    return api.reader.post(f"{FLAGS}/{key}", json=body)


def test_single_a_success_has_key_value_reason_variant_and_flat_metadata(routed: Api) -> None:
    for context in (None, {}, {"targetingKey": "user-1", "remaining_tokens": 100}):
        answer = ask(routed, context)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert set(body) == {"key", "value", "reason", "variant", "metadata"}
        assert body["reason"] in REASONS
        assert isinstance(body["value"], bool)
        assert all(isinstance(v, (str, int, float, bool)) for v in body["metadata"].values())
    assert isinstance(body["metadata"]["ttl_s"], float)  # 60.0, never 60: typed clients need it


def test_single_a_bypass_is_a_value_and_no_error(routed: Api) -> None:
    assert ask(routed).json()["value"] is False
    enable(routed)
    assert ask(routed).json()["value"] is True
    short = ask(routed, {"remaining_tokens": 1})
    assert (short.status_code, short.json()["value"]) == (200, False)
    assert short.json()["metadata"]["reason"] == "few_remaining_tokens"


def test_a_missing_targeting_key_is_no_error(routed: Api) -> None:
    """An error would leave the choice to the client's default, which may be true."""
    for context in ({}, {"targetingKey": ""}, {"targetingKey": None}):
        answer = ask(routed, context)
        assert (answer.status_code, answer.json()["value"]) == (200, False)


def test_single_an_unknown_flag(routed: Api) -> None:
    answer = ask(routed, key="nowhere")
    assert (answer.status_code, answer.json()["errorCode"]) == (404, "FLAG_NOT_FOUND")
    assert answer.json()["key"] == "nowhere"
    assert answer.json()["errorDetails"]


BAD = [
    (b"{", "PARSE_ERROR"),
    (b"\xff", "PARSE_ERROR"),
    (b'{"context": 3}', "INVALID_CONTEXT"),
    (b"[]", "INVALID_CONTEXT"),
    (b'{"context": {"targetingKey": 3}}', "INVALID_CONTEXT"),
    (b'{"context": {"remaining_tokens": "many"}}', "INVALID_CONTEXT"),
]


@pytest.mark.parametrize(("content", "code"), BAD)
def test_error_codes_of_single_and_bulk(routed: Api, content: bytes, code: str) -> None:
    single = routed.reader.post(f"{FLAGS}/prose", content=content)
    assert (single.status_code, single.json()["errorCode"]) == (400, code)
    assert single.json()["key"] == "prose"
    bulk = routed.reader.post(FLAGS, content=content)
    assert (bulk.status_code, bulk.json()["errorCode"]) == (400, code)
    assert "key" not in bulk.json()


def test_who_may_not_ask(routed: Api) -> None:
    for path in (FLAGS, f"{FLAGS}/prose"):
        assert routed.anonymous.post(path, json={}).status_code == 401
        assert routed.clients["ingester"].post(path, json={}).status_code == 403


def test_bulk_has_every_flag_as_single_has_it(routed: Api) -> None:
    routed.route("chat")
    enable(routed)
    context = {"targetingKey": "user-1", "remaining_tokens": 100, "tier": "gold"}
    body = routed.reader.post(FLAGS, json={"context": context}).json()
    assert [flag["key"] for flag in body["flags"]] == ["chat", "prose"]
    assert body["flags"] == [ask(routed, context, key).json() for key in ("chat", "prose")]
    assert all(isinstance(v, (str, int, float, bool)) for v in body["metadata"].values())


def test_bulk_not_modified_is_for_the_same_context_alone(routed: Api) -> None:
    gold = {"targetingKey": "user-1", "tier": "gold"}
    first = routed.reader.post(FLAGS, json={"context": gold})
    etag = first.headers["ETag"]
    assert etag.startswith('"')

    def status(context: dict[str, Any], role: str = "reader") -> int:
        asked = {"If-None-Match": etag}
        client = routed.clients[role]
        code: int = client.post(FLAGS, json={"context": context}, headers=asked).status_code
        return code

    assert status(dict(reversed(gold.items()))) == 304  # the order of keys is no difference
    assert status({**gold, "targetingKey": "user-2"}) == 200
    assert status({**gold, "remaining_tokens": 5}) == 200
    assert status({}) == 200
    enable(routed)
    assert status(gold) == 200


def resolve(server: LiveServer, key: str, token: str, **facts: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    openfeature.set_provider(OFREPProvider(server.url, headers_factory=lambda: headers))
    context = EvaluationContext("user-1", facts)
    return openfeature.get_client().get_boolean_details(
        flag_key=key, default_value=False, evaluation_context=context
    )


@SQLITE
def test_the_python_provider(live_server: LiveServer) -> None:
    set_up(live_server)
    token = live_server.tokens["reader"]
    bypass = resolve(live_server, ROUTE, token)
    assert (bypass.value, bypass.error_code) == (False, None)
    assert bypass.flag_metadata["reason"] == "insufficient_evidence"
    override(live_server, "enable", 3600, gamma=2)
    enabled = resolve(live_server, ROUTE, token, remaining_tokens=100)
    assert (enabled.value, enabled.variant) == (True, "gamma-2")
    assert enabled.flag_metadata["gamma"] == 2
    assert resolve(live_server, ROUTE, token, remaining_tokens=1).value is False
    missing = resolve(live_server, "nowhere", token)
    assert (missing.value, missing.error_code) == (False, "FLAG_NOT_FOUND")
    refused = resolve(live_server, ROUTE, "gk_wrong")
    assert (refused.value, refused.error_code) == (False, "GENERAL")
    live_server.stop()  # stale: nothing is known any more, so the default, which is the bypass
    gone = resolve(live_server, ROUTE, token)
    assert (gone.value, gone.error_code) == (False, "GENERAL")


@pytest.fixture(scope="session")
def node_clients() -> dict[str, str]:
    """Environment in which node finds OpenFeature's clients: installed once, as locked."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed: apt-get install -y nodejs npm")
    folder = Path(__file__).parents[2] / ".cache" / "ofrep-node"
    folder.mkdir(parents=True, exist_ok=True)
    lock = (CLIENTS / "package-lock.json").read_text()
    done = folder / "installed"
    if not done.exists() or done.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(CLIENTS / name, folder / name)
        command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        run = subprocess.run(
            command, cwd=folder, check=False, capture_output=True, text=True, timeout=240
        )
        if run.returncode:
            pytest.skip(f"npm cannot install OpenFeature's clients: {run.stderr[-200:]}")
        done.write_text(lock)
    return {**os.environ, "OFREP_NODE": str(folder)}


@SQLITE
def test_the_npm_server_and_web_providers(
    live_server: LiveServer, node_clients: dict[str, str]
) -> None:
    set_up(live_server)

    def run(*requests: dict[str, Any]) -> list[dict[str, Any]]:
        script = str(CLIENTS / "run.mjs")
        done = subprocess.run(
            ["node", script, live_server.url, live_server.tokens["reader"]],
            input=json.dumps(requests),
            env=node_clients,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    def request(provider: str, key: str = ROUTE, **facts: Any) -> dict[str, Any]:
        context = {"targetingKey": "user-1", **facts}
        return {"provider": provider, "key": key, "context": context}

    for answer in run(request("server"), request("web")):
        assert (answer["value"], answer["reason"]) == (False, "STATIC")
        assert answer["flagMetadata"]["reason"] == "insufficient_evidence"
    override(live_server, "enable", 3600, gamma=2)
    server, web, *others = run(
        request("server", remaining_tokens=100),
        {**request("web", remaining_tokens=100), "refetch": True},
        request("web", remaining_tokens=1),
        request("server", "nowhere"),
        request("web", "nowhere"),
    )
    for answer in (server, web):
        assert (answer["value"], answer["variant"]) == (True, "gamma-2")
        assert answer["reason"] == "TARGETING_MATCH"
    assert web["statuses"][0] == 200
    assert set(web["statuses"][1:]) == {304}
    short, *missing = others
    assert (short["value"], short["statuses"]) == (False, [200])  # another context: no 304
    for answer in missing:
        assert (answer["value"], answer["errorCode"]) == (False, "FLAG_NOT_FOUND")
    live_server.stop()
    (gone,) = run(request("server"))
    assert (gone["value"], gone["reason"]) == (False, "ERROR")
