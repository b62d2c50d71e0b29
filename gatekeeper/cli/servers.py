"""Two servers that already run, for ``gate run``: the artifact, the route, and the plan."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gatekeeper.errors import Conflict, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

__all__ = ["SCORER", "RunningPair", "demanded_of", "plans", "register", "running_pair", "silent"]

_TRY_S = 1.0
"""Long enough for a server that is there; a plan is not kept waiting for one that is not."""

SCORER = "reference"
"""Engine that reads declared model files, and scores by a forward of its own."""


@dataclass(frozen=True)
class RunningPair:
    """What the options of ``gate run`` say of two servers; None where nothing was said."""

    document: Mapping[str, Any]
    policy: str | None
    slice_name: str | None

    @property
    def policy_name(self) -> str:
        """The policy that judges them."""
        return self.policy or "demo"

    @property
    def slice(self) -> str:
        """The workload they decode."""
        return self.slice_name or "tool_calls"


def running_pair(
    baseline_url: str | None,
    candidate_url: str | None,
    *,
    model: str | None,
    gamma: int | None,
    target: str | None,
    policy: str | None,
    slice_name: str | None,
) -> RunningPair | None:
    """Return the pair that the options name, None where they name none.

    The digests of ``target``, a source of model files, are taken here.

    Raises:
        InputError: one address without the other, or an option that only a pair has.
        MissingExtra: ``target`` is given, and the engine that reads it is not installed here.
    """
    urls = {"--baseline-url": baseline_url, "--candidate-url": candidate_url}
    if baseline_url is None and candidate_url is None:
        alone = {
            "--model": model,
            "--gamma": gamma,
            "--target": target,
            "--policy": policy,
            "--slice": slice_name,
        }
        for option, value in alone.items():
            if value is not None:
                raise InputError(
                    "describes two servers that already run",
                    field=option,
                    value=value,
                    remedy="give --baseline-url and --candidate-url too",
                )
        return None
    if baseline_url is None or candidate_url is None:
        missing = next(option for option, url in urls.items() if url is None)
        raise InputError("is missing", field=missing, remedy="give the addresses of both servers")
    from gatekeeper import plugins, workloads
    from gatekeeper.core.running_pair import SERVERS_ENGINE, pair_document

    workloads.prompts(slice_name or "tool_calls")  # a mistyped slice is told before anything runs
    version = plugins.load("gatekeeper.engines", SERVERS_ENGINE).version()
    document = pair_document(
        baseline_url,
        candidate_url,
        model=model,
        gamma=gamma,
        version=version,
        weights=None if target is None else _weights(target),
    )
    return RunningPair(document, policy, slice_name)


def _weights(source: str) -> dict[str, Any]:
    """What a pair declares of the files at ``source``, with the engine that can load them."""
    from dataclasses import fields

    from gatekeeper import plugins
    from gatekeeper.config import Settings
    from gatekeeper.core.running_pair import DeclaredWeights

    provider = plugins.load("gatekeeper.engines", SCORER)
    found = provider.manifest(source, cache=Settings.load().cache)
    known = {field.name: found.get(field.name) for field in fields(DeclaredWeights)}
    return {**known, "engine": SCORER, "files": dict(found["files"])}


def plans(pair: RunningPair, route: str, gates: Sequence[str]) -> list[dict[str, Any]]:
    """Plan gates of a pair without asking anybody but, where a token is set, for the policy."""
    from gatekeeper.actions.plan_servers import estimate_servers
    from gatekeeper.core.policies import Policy

    policy = Policy.from_dict(_policy(pair.policy_name))
    return [
        {
            "route": route,
            "gate": gate,
            "policy": policy.name,
            "slice": pair.slice,
            "rates": "unknown: not measured yet",
            "prompt_lengths": "estimated at 4 characters a token",
            **estimate_servers(gate, policy, pair.document, pair.slice),
        }
        for gate in gates or demanded_of(policy.mandatory_gates)
    ]


def silent(pair: RunningPair) -> list[str]:
    """A line for each of the two servers that does not answer from here; nothing is asked of them."""
    from gatekeeper.core.addresses import why_silent, without_secrets

    lines = []
    for side in ("target", "proposer"):
        url = str(pair.document[side]["source"])
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((str(parts.hostname), port), timeout=_TRY_S).close()
        except OSError as error:
            lines.append(
                f"warning: nobody answers at {without_secrets(url)} from here "
                f"({why_silent(error)}); a run needs that server up, where its worker is"
            )
    return lines


def demanded_of(mandatory: Sequence[str]) -> list[str]:
    """Gates that a policy demands and that running servers can be put through."""
    from gatekeeper.core.running_pair import SERVER_GATES

    return [gate for gate in SERVER_GATES if gate in mandatory]


def register(http: httpx.Client, pair: RunningPair, route: str) -> dict[str, Any]:
    """Register the pair and create its route, or find both as they are; return the route.

    Raises:
        Conflict: the route serves another artifact, or is judged or loaded otherwise.
    """
    from gatekeeper.cli.http import pages, segment

    stored = http.post("/v1/artifacts", json=dict(pair.document)).json()
    known = {item["name"]: item for item in pages(http, "/v1/routes")}
    if route not in known:
        body = {"slice": pair.slice, "artifact": stored["digest"], "policy": pair.policy_name}
        created: dict[str, Any] = http.put(f"/v1/routes/{segment(route)}", json=body).json()
        return created
    found = known[route]
    serves = http.get(f"/v1/artifacts/{segment(found['artifact'])}").json()["digest"]
    if serves != stored["digest"]:
        raise Conflict(
            f"serves another artifact, {serves[:12]}",
            field="route",
            value=route,
            remedy="give another --route",
        )
    for option, given, has in (
        ("--policy", pair.policy, found["policy"]),
        ("--slice", pair.slice_name, found["slice"]),
    ):
        if given is not None and given != has:
            raise Conflict(
                f"differs from what route {route} has, {has}",
                field=option,
                value=given,
                remedy="give another --route, or leave the option out",
            )
    return found


def _policy(name: str) -> dict[str, Any]:
    """Document of a policy: the server's where a token is set, else the shipped one."""
    from gatekeeper.cli.http import client, segment
    from gatekeeper.config import Settings, data_dir
    from gatekeeper.core.yaml_documents import from_yaml

    settings = Settings.load()
    if settings.token is not None:
        with client(settings) as http:
            found: dict[str, Any] = http.get(f"/v1/policies/{segment(name)}").json()["document"]
            return found
    folder = data_dir("policies")
    path = folder / f"{name}.yaml"
    if not (name.isidentifier() and path.is_file()):
        shipped = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise InputError(
            "is not a shipped policy",
            field="--policy",
            value=name,
            remedy=f"use {shipped}, or set GATEKEEPER_TOKEN to plan with the server's",
        )
    return from_yaml(path.read_bytes(), file=str(path))
