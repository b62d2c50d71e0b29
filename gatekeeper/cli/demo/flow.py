"""The demo's steps as a client of the public API, with a server and a worker of its own."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper import plugins
from gatekeeper.cli.demo.setup import DemoRoute, documents, load_setup, routes
from gatekeeper.cli.http import pages
from gatekeeper.cli.processes import child, free_port, run_json, wait_ready
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from gatekeeper.config import Settings

__all__ = ["Demo", "ok", "revoke_earlier"]

_TOKEN_TTL_S = 6 * 3600.0
_REUSABLE = ("pending", "running", "finished")
# Repeating an inconclusive run would draw the same requests again, and the same verdict.
_COUNTS = (None, "PASS", "FAIL", "INCONCLUSIVE")
_LATE = "outcome"  # waits for the window and the load that the serving gate confirms


class Demo:
    """One walk through the demo; every step may be repeated and finds what the last one left."""

    def __init__(
        self,
        settings: Settings,
        note: Callable[[str], None],
        setup: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._note = note
        self._setup = setup or load_setup()
        self._documents: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, str] = {}
        self._gates: tuple[str, ...] = ()
        self._runs: dict[tuple[str, str], str | None] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._decisions: dict[str, tuple[frozenset[str], dict[str, Any]]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.token = ""
        self.url = ""
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
        self.url = f"http://127.0.0.1:{port}"
        log = self._settings.home / "server.log"
        self._note(f"server on {self.url}")
        with child("serve", "--home", home, "--port", str(port), log=log) as process:
            self._children["server"] = process
            wait_ready(self.url, process, log)
            made = run_json(
                *("token", "create", "--role", "admin", "--name", "demo", "--json"),
                *("--ttl", str(_TOKEN_TTL_S), "--home", home),
            )
            self.token = made["token"]
            with httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self.token}"},
                timeout=60,
            ) as client:
                revoke_earlier(client, "demo", but=made["id"])
                yield client

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run one ``gatekeeper worker``; its token travels in the environment."""
        environment = {
            "GATEKEEPER_URL": self.url,
            "GATEKEEPER_TOKEN": self.token,
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

    def document(self, route: DemoRoute) -> dict[str, Any]:
        """Artifact document that a route serves."""
        return self._documents[route.artifact]

    def digest(self, route: DemoRoute) -> str:
        """Digest of the artifact that a route serves."""
        return self._digests[route.artifact]

    def register(self, client: httpx.Client) -> None:
        """Register artifacts and routes, and submit the gate runs that are not there yet."""
        for name, document in self._documents.items():
            self._digests[name] = ok(client.post("/v1/artifacts", json=document))["digest"]
        self.policy = ok(client.get(f"/v1/policies/{self._setup['policy']}"))
        self._gates = tuple(self.policy["document"]["mandatory_gates"])
        for route in self.routes:
            body = {
                "slice": route.slice,
                "artifact": self.digest(route),
                "policy": self._setup["policy"],
            }
            ok(client.put(f"/v1/routes/{route.name}", json=body))
            for gate in self._gates:
                if gate != _LATE:
                    self._runs[route.name, gate] = self._submit(client, route, gate)

    def _known_runs(self, client: httpx.Client, route: DemoRoute) -> dict[str, Any]:
        return {
            gate: self._run(client, run)
            for (name, gate), run in self._runs.items()
            if name == route.name and run is not None
        }

    def _follow_up(self, client: httpx.Client, route: DemoRoute, runs: dict[str, Any]) -> bool:
        """Submit the outcome gate once the others have ended, unless one of them decided already.

        Return whether it is settled only now.
        """
        if _LATE not in self._gates or (route.name, _LATE) in self._runs:
            return False
        if not all(run["finished_at"] for run in runs.values()):
            return False
        decided = any(run["outcome"] == "FAIL" for run in runs.values())
        run = None if decided else self._submit(client, route, _LATE)
        self._runs[route.name, _LATE] = run
        return True

    def _submit(self, client: httpx.Client, route: DemoRoute, gate: str) -> str:
        """Reuse the route's latest run of this gate where its verdict counts, else queue one."""
        wanted = (gate, self.digest(route), self.policy["digest"])
        for run in ok(client.get("/v1/gate-runs", params={"route": route.name}))["items"]:
            same = (run["gate"], run["artifact"], run["policy"]) == wanted
            usable = run["state"] in _REUSABLE and run["outcome"] in _COUNTS
            if same and usable and not self._expired(client, run):
                return str(run["id"])
        body = {"route": route.name, "gate": gate}
        key = {"Idempotency-Key": secrets.token_hex(16)}
        return str(ok(client.post("/v1/gate-runs", json=body, headers=key))["id"])

    @staticmethod
    def _expired(client: httpx.Client, run: Mapping[str, Any]) -> bool:
        if run["outcome"] in {None, "FAIL"}:  # a FAIL stands: equivalence would not even run again
            return False
        expires = ok(client.get(f"/v1/gate-runs/{run['id']}"))["result"]["expires_at"]
        return datetime.fromisoformat(expires) <= datetime.now(UTC)

    def rows(self, client: httpx.Client) -> list[dict[str, Any]]:
        """Return a row per route: the route, its runs by gate, whether all ended, its decision.

        A gate whose run would change nothing is None. Runs that have ended are asked for once: the
        worker needs the processor more than we do.
        """
        rows = []
        for route in self.routes:
            runs = self._known_runs(client, route)
            if self._follow_up(client, route, runs):
                runs = self._known_runs(client, route)  # an earlier demo may have ended it
            ended = frozenset(run["id"] for run in runs.values() if run["finished_at"])
            submitted = [run for (name, _), run in self._runs.items() if name == route.name]
            done = len(submitted) == len(self._gates) and len(ended) == len(
                [run for run in submitted if run is not None]
            )
            if route.name not in self._decisions or self._decisions[route.name][0] != ended:
                self._decisions[route.name] = (ended, self.decision(client, route))
            rows.append(
                {
                    "route": route,
                    "runs": {gate: runs.get(gate) for gate in self._gates},
                    "done": done,
                    "decision": self._decisions[route.name][1],
                }
            )
        return rows

    @staticmethod
    def decision(client: httpx.Client, route: DemoRoute) -> dict[str, Any]:
        """Return the route's lease now."""
        lease: dict[str, Any] = ok(client.get(f"/v1/routes/{route.name}/decision"))
        return lease

    def _run(self, client: httpx.Client, run_id: str) -> dict[str, Any]:
        known = self._known.get(run_id)
        if known is not None and known["finished_at"]:
            return known
        found: dict[str, Any] = ok(client.get(f"/v1/gate-runs/{run_id}"))
        self._known[run_id] = found
        return found


def revoke_earlier(client: httpx.Client, name: str, *, but: str | None = None) -> int:
    """Revoke the tokens of this name that an earlier demo left; return how many there were."""
    known = pages(client, "/v1/tokens")
    left = [t["id"] for t in known if t["name"] == name and not t["revoked_at"] and t["id"] != but]
    for token in left:
        ok(client.delete(f"/v1/tokens/{token}"))
    return len(left)


def ok(response: httpx.Response) -> Any:  # noqa: ANN401 - the endpoint's JSON
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
