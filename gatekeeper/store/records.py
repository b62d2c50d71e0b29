"""What the store returns: frozen records, one field per column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Actor",
    "ArtifactRecord",
    "AuditRecord",
    "DecisionRecord",
    "EvidenceRecord",
    "GateRecord",
    "OverrideRecord",
    "PolicyRecord",
    "RouteRecord",
    "RunRecord",
    "TokenRecord",
    "Version",
]


@dataclass(frozen=True)
class Actor:
    """Whoever makes a request, as the audit trail names them.

    ``token`` is the id of its token (None: gatekeeper itself), ``routes`` those that it is for (None:
    all), ``rate_per_s`` its requests a second (None: what the server allows every token).
    """

    name: str
    role: str
    token: str | None = None
    routes: tuple[str, ...] | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, order=True)
class Version:
    """Order of decisions: the epoch is new after a restore, the counter grows by one."""

    epoch: int
    counter: int


@dataclass(frozen=True)
class ArtifactRecord:
    """A registered target-proposer pair, addressed by its digest."""

    digest: str
    document: Mapping[str, Any]
    contract: str
    created_at: float
    created_by: str


@dataclass(frozen=True)
class PolicyRecord:
    """One version of a policy; ``name`` points at the newest applied one."""

    digest: str
    name: str
    document: Mapping[str, Any]
    applied_at: float
    applied_by: str


@dataclass(frozen=True)
class RouteRecord:
    """A route: ``artifact`` is a digest or an alias, ``policy`` a policy's name.

    ``task_rules`` say how its calls make tasks (None: one trace is one task), ``economics`` names
    what its tasks are priced by (None: the one named like the policy), ``rollout`` how far an enable
    reaches (None: everybody at once).
    """

    name: str
    slice: str
    artifact: str
    policy: str
    rules: list[Any]
    slo: Mapping[str, Any] | None
    sampling: list[Mapping[str, Any]]
    updated_at: float
    task_rules: Mapping[str, Any] | None = None
    economics: str | None = None
    rollout: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunRecord:
    """One gate run in the queue. What it tests was fixed when it was submitted."""

    id: str
    idempotency_key: str
    route: str
    slice: str
    gate: str
    artifact: str
    policy: str
    sampling: list[Mapping[str, Any]]
    slo: Mapping[str, Any] | None
    parameters: Mapping[str, Any]
    requirements: Mapping[str, Any]
    engine: str
    device: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    fence: int
    owner: str | None
    lease_s: float | None
    lease_until: float | None
    executor: str | None
    executor_job_id: str | None
    executor_attempt: int | None
    cancel_requested: bool
    progress: Mapping[str, Any] | None
    info: Mapping[str, Any] | None
    error: str | None
    created_at: float
    created_by: str
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True)
class EvidenceRecord:
    """One Parquet table of a run; ``path`` is relative to the evidence folder."""

    run: str
    table: str
    fence: int
    sha256: str
    path: str
    rows: int
    bytes: int
    received_at: float


@dataclass(frozen=True)
class GateRecord:
    """The stored result of a run; ``document`` is the GateResult as JSON."""

    run: str
    route: str
    gate: str
    artifact: str
    policy: str
    outcome: str
    document: Mapping[str, Any]
    finished_at: float
    expires_at: float


@dataclass(frozen=True)
class DecisionRecord:
    """One decision in a route's history."""

    id: int
    route: str
    epoch: int
    counter: int
    action: str
    reason: str
    artifact: str
    policy: str
    document: Mapping[str, Any]
    state: Mapping[str, Any]
    decided_at: float
    evidence_expires_at: float | None

    @property
    def version(self) -> Version:
        """Its place in the order of all decisions."""
        return Version(self.epoch, self.counter)


@dataclass(frozen=True)
class OverrideRecord:
    """Somebody's temporary word over the gates'."""

    id: str
    idempotency_key: str
    route: str
    action: str
    gamma: int | None
    reason: str
    actor: str
    created_at: float
    expires_at: float
    cleared_at: float | None
    cleared_by: str | None


@dataclass(frozen=True)
class TokenRecord:
    """A bearer token; only its SHA-256 is known.

    ``routes`` are those that it is for (None: all), ``rate_per_s`` the requests that it may make a
    second (None: what the server allows every token), ``replaces`` the token that it took the place of.
    """

    id: str
    name: str
    role: str
    sha256: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    routes: list[str] | None = None
    rate_per_s: float | None = None
    replaces: str | None = None


@dataclass(frozen=True)
class AuditRecord:
    """Who changed what, when; ``actor_record`` is who the actor was then (None in an older trail)."""

    id: int
    at: float
    actor: str
    action: str
    object: str
    detail: Mapping[str, Any]
    actor_record: Mapping[str, Any] | None = None
