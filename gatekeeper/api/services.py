"""What the endpoints work with, and who is asking."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gatekeeper.actions.identity import Actor, authenticate, remedy, require
from gatekeeper.actions.ingest import Intake
from gatekeeper.actions.ingest_settings import IngestSettings
from gatekeeper.actions.known_tokens import KnownTokens
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.redaction import Redactor
from gatekeeper.actions.snapshots import Snapshots
from gatekeeper.actions.webhooks import WebhookSettings
from gatekeeper.api.admission import Admission
from gatekeeper.api.stream import Feed
from gatekeeper.errors import Unauthorized
from gatekeeper.store.database import Database
from gatekeeper.telemetry import Metrics

__all__ = [
    "Admin",
    "After",
    "Ingester",
    "Limit",
    "Operator",
    "Reader",
    "Services",
    "Using",
    "Worker",
    "bearer",
    "credentials_of",
    "page",
]


@dataclass(frozen=True)
class Services:
    """One server's database, evidence folder, migrations, background thread and metrics.

    ``ingest`` says what it takes on at a time, and what it leaves out of spans, ``webhooks`` what
    notices are signed with and where they may go.
    """

    db: Database
    evidence: Path
    migrations: Path
    reconciler: Reconciler
    metrics: Metrics = field(default_factory=Metrics)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    intake: Intake = field(init=False)
    admission: Admission = field(init=False)
    snapshots: Snapshots = field(init=False)
    known_tokens: KnownTokens = field(init=False)
    feed: Feed = field(init=False)

    def __post_init__(self) -> None:
        limits = self.ingest.limits
        intake = Intake(self.db, Redactor(self.ingest.redaction), limits.patience_s)
        object.__setattr__(self, "intake", intake)  # the dataclass is frozen for its users
        object.__setattr__(self, "admission", Admission(limits))
        object.__setattr__(self, "snapshots", Snapshots(self.db))
        object.__setattr__(self, "known_tokens", KnownTokens(self.db, self.snapshots))
        object.__setattr__(self, "feed", Feed(self.snapshots))


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Using = Annotated[Services, Depends(_services)]

bearer = HTTPBearer(auto_error=False, description="gatekeeper token create")


def credentials_of(
    credentials: HTTPAuthorizationCredentials | None, request: Request, permission: str
) -> str:
    """Return the token that a request carries; ``permission`` is what it should have.

    Raises:
        Unauthorized: it carries none.
    """
    if credentials is None:
        given = request.headers.get("Authorization") is not None
        raise Unauthorized(
            "is not Bearer, a space and a token" if given else "is missing",
            field="Authorization",
            remedy=f"send Authorization: Bearer TOKEN; {remedy(permission)}",
        )
    return credentials.credentials


def _role(permission: str) -> Callable[..., Actor]:
    def check(
        services: Using,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
        request: Request,
    ) -> Actor:
        secret = credentials_of(credentials, request, permission)
        actor = authenticate(services.db, secret, permission=permission)
        require(actor, permission)
        return actor

    return check


Reader = Annotated[Actor, Depends(_role("reader"))]
Ingester = Annotated[Actor, Depends(_role("ingester"))]
Worker = Annotated[Actor, Depends(_role("worker"))]
Operator = Annotated[Actor, Depends(_role("operator"))]
Admin = Annotated[Actor, Depends(_role("admin"))]

Limit = Annotated[int, Query(ge=1, le=500, description="Items on a page")]
After = Annotated[str | None, Query(max_length=300, description="`next` of the page before")]


def page(items: list[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """Return a keyset page: the items and, where more may follow, the key to continue after."""
    more = len(items) == limit and items
    return {"items": items, "next": str(items[-1][key]) if more else None}
