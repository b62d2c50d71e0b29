"""The worker's side of the HTTP API: claim, heartbeat, evidence, finish, fail.

Every write after the claim carries the fence; a 409 there means that the run is no longer ours.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import httpx

from gatekeeper.core.addresses import why_silent
from gatekeeper.core.verdicts import to_json
from gatekeeper.errors import (
    Conflict,
    FencedOut,
    Forbidden,
    GatekeeperError,
    InputError,
    NotFound,
    Unauthorized,
    Unavailable,
)
from gatekeeper.worker.evidence import decode, digest
from gatekeeper.worker.run import ClaimedRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from gatekeeper.core.verdicts import GateResult
    from gatekeeper.protocols import EngineInfo, PairInfo
    from gatekeeper.worker.progress import Progress

__all__ = ["WorkerApi"]

_NO_CONTENT, _CONFLICT, _SERVER_ERROR = 204, 409, 500
_ERRORS: dict[int, type[GatekeeperError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
}


class WorkerApi:
    """One worker's connection; safe to use from its main and its heartbeat thread."""

    def __init__(self, client: httpx.Client, worker: str) -> None:
        self._client = client
        self._worker = worker

    def claim(
        self,
        engines: Sequence[Mapping[str, str]],
        devices: Sequence[Mapping[str, Any]],
        *,
        lease_s: float,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ClaimedRun | None:
        """Ask for work, or for one run; None when nothing fits.

        Raises:
            Conflict: the run asked for is someone else's or over.
        """
        body = {
            "worker": self._worker,
            "engines": [dict(engine) for engine in engines],
            "devices": [dict(device) for device in devices],
            "labels": dict(labels or {}),
            "run_id": run_id,
            "lease_s": lease_s,
        }
        response = self._send("POST", "/v1/runs/claim", json=body)
        if response.status_code == _NO_CONTENT:
            return None
        return ClaimedRun.from_json(response.json()["run"])

    def heartbeat(self, run: ClaimedRun, progress: Progress | None, *, timeout: float) -> bool:
        """Renew the lease; return whether the run is to be cancelled. ``timeout`` in seconds.

        Raises:
            FencedOut: the lease went to another worker.
        """
        body = {
            "fence": run.fence,
            "progress": None if progress is None else progress.to_json(),
        }
        response = self._send(
            "POST", f"/v1/runs/{run.id}/heartbeat", fenced=True, json=body, timeout=timeout
        )
        return bool(response.json()["cancel_requested"])

    def upload(self, run: ClaimedRun, table: str, data: bytes) -> str:
        """Store one evidence table; return its sha256.

        Raises:
            FencedOut: the lease went to another worker.
            InputError: the server read other bytes than we sent.
        """
        own = digest(data)
        answer = self._send(
            "PUT",
            f"/v1/gate-runs/{run.id}/evidence/{table}",
            fenced=True,
            params={"fence": run.fence},
            content=data,
            headers={"X-Content-SHA256": own, "Content-Type": "application/vnd.apache.parquet"},
        ).json()
        if answer["sha256"] != own:
            raise InputError("differs after upload", field=table, value=answer["sha256"])
        return own

    def earlier(self, run_id: str, table: str, sha256: str) -> pd.DataFrame:
        """Fetch an evidence table of another run.

        Raises:
            NotFound: the run has no such table.
            EvidenceError: it is not what was recorded.
        """
        response = self._send("GET", f"/v1/gate-runs/{run_id}/evidence/{table}")
        return decode(response.content, name=f"run {run_id}, {table}", sha256=sha256)

    def finish(
        self,
        run: ClaimedRun,
        result: GateResult,
        evidence: Mapping[str, str],
        info: EngineInfo | PairInfo | None,
        acceptance: Sequence[Mapping[str, Any]],
    ) -> str | None:
        """Hand in the verdict; return why the run went back to the queue instead, None where it ended.

        Raises:
            FencedOut: the lease went to another worker.
        """
        body = {
            "fence": run.fence,
            "result": to_json(result),
            "evidence": dict(evidence),
            "info": None if info is None else asdict(info),
            "acceptance": [dict(counts) for counts in acceptance],
        }
        ended = self._send("POST", f"/v1/runs/{run.id}/finish", fenced=True, json=body).json()
        return str(ended["error"]) if ended.get("state") == "pending" else None

    def fail(self, run: ClaimedRun, error: str, *, retry: bool) -> None:
        """Report that the run could not be measured.

        Raises:
            FencedOut: the lease went to another worker.
        """
        body = {"fence": run.fence, "error": error, "retry": retry}
        self._send("POST", f"/v1/runs/{run.id}/fail", fenced=True, json=body)

    def _send(
        self,
        method: str,
        path: str,
        *,
        fenced: bool = False,
        **options: Any,  # noqa: ANN401 - passed to httpx as they are
    ) -> httpx.Response:
        try:
            response = self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unavailable(
                f"no server answers ({why_silent(error)})",
                field="url",
                value=str(self._client.base_url),
                remedy="start it with gatekeeper serve --home HOME, or set GATEKEEPER_URL",
            ) from error
        if response.is_success:
            return response
        raise _error(response, fenced=fenced)


def _error(response: httpx.Response, *, fenced: bool) -> GatekeeperError:
    """Turn problem+json back into the error it came from."""
    status = response.status_code
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    message = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
    kind = Unavailable if status >= _SERVER_ERROR else _ERRORS.get(status, InputError)
    if fenced and status == _CONFLICT:
        kind = FencedOut
    return kind(
        message,
        field=problem.get("field"),
        value=problem.get("value"),
        remedy=problem.get("remedy"),
    )
