"""The entry point ``openai_http``: reaches both servers of a pair and asks what they offer."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.core.addresses import why_silent
from gatekeeper.core.running_pair import SERVERS_ENGINE, is_running_pair, server_url
from gatekeeper.errors import Incompatible, InputError, Unauthorized, Unavailable
from gatekeeper.protocols import PairInfo, ServerPair
from gatekeeper_adapters.engines.openai_http.battery import examine
from gatekeeper_adapters.engines.openai_http.bounds import Bounded, certificates
from gatekeeper_adapters.engines.openai_http.connection import (
    CONNECT_S,
    SILENCE_S,
    HttpServer,
    token_count,
    tokenize_body,
)
from gatekeeper_adapters.engines.openai_http.probing import Probe
from gatekeeper_adapters.engines.openai_http.wire import document_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gatekeeper.gates.battery.item import Item
    from gatekeeper.gates.battery.judging import Finding

__all__ = ["PROVIDER", "HttpProvider"]

REVISION = "1"
"""Raised when requests or their reading change, which voids evidence."""

KEY_VARIABLE = "GATEKEEPER_SERVERS_KEY"
"""Environment variable of the key that both servers are sent; keys have no place in artifacts."""

_UNAVAILABLE, _UNAUTHORIZED, _FORBIDDEN = 503, 401, 403


@dataclass(frozen=True)
class HttpProvider:
    """Implements ``gatekeeper.protocols.EngineProvider`` for pairs of servers.

    ``loading_s`` is how long a server that answers 503 is waited for, ``absent_s`` one that does
    not answer at all.
    """

    name: str = SERVERS_ENGINE
    loading_s: float = 180.0
    absent_s: float = 5.0
    pause_s: float = 0.5
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def version(self) -> str:
        """Revision of this engine; it says nothing of the servers."""
        return REVISION

    def manifest(self, source: str, *, cache: Path) -> Mapping[str, Any]:
        """Return the section of a server: nothing but its address is known."""
        del cache
        return {
            "source": server_url(source, field="source"),
            "revision": None,
            "files": {},
            "tokenizer": None,
            "vocab_size": None,
        }

    def open(
        self, artifact: Mapping[str, Any], *, cache: Path, max_batch: int, device: str
    ) -> ServerPair:
        """Reach both servers, and learn their model and what each offers.

        Raises:
            Incompatible: the artifact is no pair of servers, or asks for another revision.
            InputError: a server does not speak this API, has not the model, or gives no usage.
            Unauthorized: a server wants a key, or another one.
            Unavailable: a server does not answer, or is still loading.
        """
        del cache, max_batch, device
        for field, found, wanted in (
            ("engine.name", artifact["engine"]["name"], self.name),
            ("engine.version", artifact["engine"]["version"], self.version()),
            ("proposer.kind", is_running_pair(artifact), True),
        ):
            if found != wanted:
                raise Incompatible(
                    f"differs from {wanted}",
                    field=field,
                    value=found,
                    remedy="register the pair of servers anew",
                )
        model = artifact["proposer"]["parameters"].get("model")
        baseline = self._reach("baseline_url", artifact["target"]["source"], model)
        candidate = self._reach("candidate_url", artifact["proposer"]["source"], model)
        if baseline.info.api != candidate.info.api:
            raise Incompatible(
                f"offers {candidate.info.api}, the baseline {baseline.info.api}",
                field="candidate_url",
                value=candidate.info.url,
                remedy="start both servers with, or both without, a chat template",
            )
        said = {"baseline": asdict(baseline.info), "candidate": asdict(candidate.info)}
        return ServerPair(baseline, candidate, PairInfo(self.name, self.version(), said))

    def battery(
        self,
        url: str,
        *,
        baseline_url: str | None,
        model: str | None,
        items: Sequence[Item],
        note: Callable[[Finding], None],
    ) -> dict[str, Any]:
        """Put the contract battery to a server; the JSON-able report.

        Raises:
            GatekeeperError: as ``open``, or an address is none.
        """
        server = self._reach("url", server_url(url, field="url"), model)
        baseline = None
        if baseline_url is not None:
            other = server_url(baseline_url, field="baseline_url")
            baseline = self._reach("baseline_url", other, model)
        found = asyncio.run(examine(server, baseline, items, note=note))
        return {
            "url": server.info.url,
            "baseline_url": baseline and baseline.info.url,
            "model": server.info.model,
            "readings": dict(server.info.readings),
            **found.to_dict(),
        }

    def _reach(self, field: str, url: str, model: str | None) -> HttpServer:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            transport=Bounded(
                verify=certificates(),
                limits=httpx.Limits(max_keepalive_connections=0),
                trust_env=False,
            ),
            trust_env=False,
        ) as client:
            probe = Probe(client, field, url)
            found = self._models(probe)
            info = probe.learn(found, model)
            info = replace(info, retokenises=self._retokenises(client, info.model))
        return HttpServer(info, headers)

    def _models(self, probe: Probe) -> dict[str, Any]:
        """``GET /v1/models``, waiting for a server that loads."""
        began = self.clock()
        while True:
            waited = self.clock() - began
            try:
                response = probe.client.get("/v1/models")
            except httpx.TransportError as error:
                if waited < self.absent_s:
                    self.sleep(self.pause_s)
                    continue
                raise Unavailable(
                    f"does not answer ({why_silent(error)})",
                    field=probe.field,
                    value=probe.url,
                    remedy="start the server there, or correct the address",
                ) from error
            if response.status_code == _UNAVAILABLE:
                if waited < self.loading_s:
                    self.sleep(self.pause_s)
                    continue
                raise Unavailable(
                    f"still answers 503 after {waited:.0f} s: {_brief(response)}",
                    field=probe.field,
                    value=probe.url,
                    remedy="wait until it has loaded its model, then run the gate again",
                )
            return self._listed(probe, response)

    def _listed(self, probe: Probe, response: httpx.Response) -> dict[str, Any]:
        if response.status_code in {_UNAUTHORIZED, _FORBIDDEN}:
            raise Unauthorized(
                f"answers {response.status_code}",
                field=probe.field,
                value=probe.url,
                remedy=f"give the worker the server's key in {KEY_VARIABLE}",
            )
        try:
            found = document_of(response.text) if response.is_success else None
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("data"), list):
            raise InputError(
                f"is no OpenAI server: GET /v1/models answers {response.status_code}",
                field=probe.field,
                value=probe.url,
                remedy="give the root of the server, such as http://127.0.0.1:8000",
            )
        return found

    def _retokenises(self, client: httpx.Client, model: str) -> bool:
        try:
            response = client.post("/tokenize", json=tokenize_body("one two", model))
            return response.is_success and token_count(document_of(response.text)) is not None
        except (httpx.HTTPError, ValueError):
            return False


def _brief(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:120]


PROVIDER = HttpProvider()
"""What the entry point ``gatekeeper.engines:openai_http`` names."""
