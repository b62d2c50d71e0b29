"""The demo's steps as a client of the public API, with a server and a worker of its own."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper import plugins
from gatekeeper.cli.demo.setup import DemoRoute, documents, load_setup, routes
from gatekeeper.cli.processes import child, free_port, run_json, wait_ready
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from gatekeeper.config import Settings

__all__ = ["Demo"]

_TOKEN_TTL_S = 6 * 3600.0
_REUSABLE = ("pending", "running", "finished")
# Repeating an inconclusive run would draw the same requests again, and the same verdict.
_COUNTS = (None, "PASS", "FAIL", "INCONCLUSIVE")


class Demo:
    """One walk through the demo; every step may be repeated and finds what the last one left."""

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._setup = load_setup()
        self._documents: dict[str, dict[str, Any]] = {}
        self._runs: dict[tuple[str, str], str] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._decisions: dict[str, tuple[frozenset[str], dict[str, Any]]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""
        self._url = ""
        self.routes: tuple[DemoRoute, ...] = routes(self._setup)
        self.policy: dict[str, Any] = {}

    def prepare(self) -> None:
        """Fetch and convert the model, cut the draft, digest everything: kept between runs."""
        engine = plugins.load("gatekeeper.engines", "reference")
        self._documents = documents(
            self._setup, engine, engine, self._settings.cache, note=self._note
        )

    @contextmanager
    def server(self) -> Iterator[httpx.Client]:
        """Run ``gatekeeper serve`` on a free loopback port; yield a client with an admin token."""
        home = str(self._settings.home)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        log = self._settings.home / "server.log"
        self._note(f"server on {self._url}")
        with child("serve", "--home", home, "--port", str(port), log=log) as process:
            self._children["server"] = process
            wait_ready(self._url, process, log)
            made = run_json(
                *("token", "create", "--role", "admin", "--name", "demo", "--json"),
                *("--ttl", str(_TOKEN_TTL_S), "--home", home),
            )
            self._token = made["token"]
            with httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=60,
            ) as client:
                yield client

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run one ``gatekeeper worker``; its token travels in the environment."""
        environment = {
            "GATEKEEPER_URL": self._url,
            "GATEKEEPER_TOKEN": self._token,
            "OMP_NUM_THREADS": "1",  # the server and the engine share two cores
        }
        log = self._settings.home / "worker.log"
        home = str(self._settings.home)
        with child(
            "worker", "--home", home, "--poll", "0.5", log=log, environment=environment
        ) as p:
            self._children["worker"] = p
            yield

    def check_alive(self) -> None:
        """Fail clearly when a child process has ended.

        Raises:
            Unavailable: it names the child and its log.
        """
        for name, process in self._children.items():
            if process.poll() is not None:
                log = self._settings.home / f"{name}.log"
                raise Unavailable(
                    f"ended with status {process.returncode}",
                    field=name,
                    remedy=f"read {log}, then run the demo again: finished runs are kept",
                )

    def register(self, client: httpx.Client) -> None:
        """Register artifacts and routes, and submit the gate runs that are not there yet."""
        digests = {}
        for name, document in self._documents.items():
            digests[name] = _ok(client.post("/v1/artifacts", json=document))["digest"]
        self.policy = _ok(client.get(f"/v1/policies/{self._setup['policy']}"))
        gates = self.policy["document"]["mandatory_gates"]
        for route in self.routes:
            body = {
                "slice": route.slice,
                "artifact": digests[route.artifact],
                "policy": self._setup["policy"],
            }
            _ok(client.put(f"/v1/routes/{route.name}", json=body))
            for gate in gates:
                self._runs[route.name, gate] = self._submit(
                    client, route.name, gate, digests[route.artifact]
                )

    def _submit(self, client: httpx.Client, route: str, gate: str, artifact: str) -> str:
        """Reuse the route's latest run of this gate where its verdict counts, else queue one."""
        for run in _ok(client.get("/v1/gate-runs", params={"route": route}))["items"]:
            same = (run["gate"], run["artifact"], run["policy"]) == (
                gate,
                artifact,
                self.policy["digest"],
            )
            usable = run["state"] in _REUSABLE and run["outcome"] in _COUNTS
            if same and usable and not self._expired(client, run):
                return str(run["id"])
        body = {"route": route, "gate": gate}
        key = {"Idempotency-Key": secrets.token_hex(16)}
        return str(_ok(client.post("/v1/gate-runs", json=body, headers=key))["id"])

    @staticmethod
    def _expired(client: httpx.Client, run: Mapping[str, Any]) -> bool:
        if run["outcome"] is None:
            return False
        expires = _ok(client.get(f"/v1/gate-runs/{run['id']}"))["result"]["expires_at"]
        return datetime.fromisoformat(expires) <= datetime.now(UTC)

    def rows(self, client: httpx.Client) -> list[dict[str, Any]]:
        """Return a row per route: the route, its runs by gate, whether all ended, its decision.

        Runs that have ended are asked for once: the worker needs the processor more than we do.
        """
        rows = []
        for route in self.routes:
            runs = {
                gate: self._run(client, run)
                for (name, gate), run in self._runs.items()
                if name == route.name
            }
            ended = frozenset(run["id"] for run in runs.values() if run["finished_at"])
            if route.name not in self._decisions or self._decisions[route.name][0] != ended:
                lease = _ok(client.get(f"/v1/routes/{route.name}/decision"))
                self._decisions[route.name] = (ended, lease)
            rows.append(
                {
                    "route": route,
                    "runs": runs,
                    "done": len(ended) == len(runs),
                    "decision": self._decisions[route.name][1],
                }
            )
        return rows

    def _run(self, client: httpx.Client, run_id: str) -> dict[str, Any]:
        known = self._known.get(run_id)
        if known is not None and known["finished_at"]:
            return known
        found: dict[str, Any] = _ok(client.get(f"/v1/gate-runs/{run_id}"))
        self._known[run_id] = found
        return found


def _ok(response: httpx.Response) -> Any:  # noqa: ANN401 - the endpoint's JSON
    """Return the body of a good answer.

    Raises:
        Unavailable: the server's problem, in its own words.
    """
    if response.is_success:
        return response.json()
    problem = response.json()
    raise Unavailable(
        str(problem.get("detail") or problem.get("title")),
        field=str(response.request.url.path),
        remedy=problem.get("remedy") or "read server.log in the demo's home",
    )
