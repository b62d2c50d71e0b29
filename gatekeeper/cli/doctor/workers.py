"""Who has been working: what runs say of their owners, from the server or the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gatekeeper.actions.queue import list_runs
from gatekeeper.cli.doctor.check import OK, WARN, Check, command, failed, unasked
from gatekeeper.cli.http import client
from gatekeeper.cli.show import counted
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gatekeeper.config import Settings
    from gatekeeper.store.database import Database

__all__ = ["Seen", "judge", "workers"]

_RUNS = 100
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Seen:
    """What one run tells of its worker; times in seconds since 1970."""

    state: str
    owner: str | None
    lease_until: float | None
    finished_at: float | None


def workers(
    settings: Settings, db: Database | None, *, may_read: bool, answers: bool, now_s: float
) -> Check:
    """Look at the latest runs: asked of the server where the token may, else of the database.

    A worker that waits for work leaves no mark; only claims and heartbeats do.
    """
    if may_read:
        try:
            with client(settings, timeout_s=_TIMEOUT_S) as http:
                items = http.get("/v1/gate-runs", params={"limit": _RUNS}).json()["items"]
        except GatekeeperError as error:
            return failed("workers", error)
        return judge([_from_api(item) for item in items], settings, now_s)
    if db is None:
        return unasked("workers", settings.home, answers=answers)
    runs = list_runs(db, after=None, limit=_RUNS, route=None, state=None)
    seen = [Seen(r.state, r.owner, r.lease_until, r.finished_at) for r in runs]
    return judge(seen, settings, now_s)


def judge(runs: Sequence[Seen], settings: Settings, now_s: float) -> Check:
    """Say who works, who worked last, and whether runs wait in vain."""
    start = (
        f"GATEKEEPER_TOKEN=$({command('token create --role worker', settings.home)}) "
        f"GATEKEEPER_URL={settings.server_url} {command('worker', settings.home)}"
    )
    alive = sorted(
        {str(r.owner) for r in runs if r.state == "running" and (r.lease_until or 0) > now_s}
    )
    waiting = sum(r.state == "pending" for r in runs)
    stale = sum(r.state == "running" for r in runs) - sum(
        r.state == "running" and (r.lease_until or 0) > now_s for r in runs
    )
    if alive:
        return Check(
            "workers", OK, f"at work: {', '.join(alive)}; {counted(waiting, 'run')} pending"
        )
    last = max((r for r in runs if r.owner and r.finished_at), key=_finished, default=None)
    history = "no worker has finished a run yet"
    if last is not None:
        history = f"last seen: {last.owner}, {_ago(now_s - _finished(last))}"
    if waiting or stale:
        stuck = f"{counted(waiting, 'run')} pending" + (
            f", {stale} with a lapsed lease" if stale else ""
        )
        return Check("workers", WARN, f"{stuck} and nobody at work; {history}", start)
    if last is None:
        return Check("workers", WARN, history, start)
    return Check("workers", OK, f"{history}; nothing is pending")


def _finished(run: Seen) -> float:
    return run.finished_at or 0.0


def _from_api(item: Mapping[str, Any]) -> Seen:
    return Seen(
        str(item["state"]), item["owner"], _time(item["lease_until"]), _time(item["finished_at"])
    )


def _time(stamp: object) -> float | None:
    return None if not isinstance(stamp, str) else datetime.fromisoformat(stamp).timestamp()


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"
