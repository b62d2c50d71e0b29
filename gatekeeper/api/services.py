"""What the endpoints work with, and who is asking."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gatekeeper.actions.identity import (
    Actor,
    authenticate,
    remedy,
    require,
    scope_of,
    within,
)
from gatekeeper.actions.ingest import Intake
from gatekeeper.actions.ingest_settings import IngestSettings
from gatekeeper.actions.known_tokens import KnownTokens
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.redaction import Redactor
from gatekeeper.actions.snapshots import Snapshots
from gatekeeper.actions.webhooks import WebhookSettings
from gatekeeper.api.admission import Admission
from gatekeeper.api.rates import RateLimits
from gatekeeper.api.stream import Feed
from gatekeeper.errors import Forbidden, Unauthorized
from gatekeeper.store.database import Database
from gatekeeper.telemetry import Metrics

__all__ = [
    "Admin",
    "After",
    "Ingester",
    "Limit",
    "Operator",
    "Reader",
    "RouteOperator",
    "RouteReader",
    "ScopedIngester",
    "ScopedOperator",
    "ScopedReader",
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
    notices are signed with and where they may go; ``migrated`` is set once the schema was found to
    be this installation's.
    """

    db: Database
    evidence: Path
    migrations: Path
    reconciler: Reconciler
    metrics: Metrics = field(default_factory=Metrics)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    rates: RateLimits = field(default_factory=RateLimits)
    migrated: threading.Event = field(default_factory=threading.Event)
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


def _anywhere(actor: Actor, _request: Request) -> None:
    """Refuse a token with a scope: what is asked for concerns every route.

    Raises:
        Forbidden: it has one.
    """
    if actor.routes is not None:
        raise Forbidden(
            f"is for {scope_of(actor)} alone",
            field="token",
            remedy="use a token without a scope: this concerns every route",
        )


def _named(actor: Actor, request: Request) -> None:
    """Check a token's scope against the route that the path or the query names.

    Raises:
        Forbidden: it is for others, or the request names none.
    """
    route = request.path_params.get("route") or request.query_params.get("route")
    if route is not None:
        within(actor, route)
    elif actor.routes is not None:
        raise Forbidden(
            f"is for {scope_of(actor)} alone",
            field="token",
            remedy="name one of them: ?route=NAME",
        )


def _left_to_the_handler(_actor: Actor, _request: Request) -> None:
    """Check nothing: the handler keeps to the actor's routes, which no parameter names."""


def _role(
    permission: str, scope: Callable[[Actor, Request], None] = _anywhere
) -> Callable[..., Actor]:
    def check(
        services: Using,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
        request: Request,
    ) -> Actor:
        secret = credentials_of(credentials, request, permission)
        services.rates.take(secret)
        try:
            actor = authenticate(services.db, secret, permission=permission)
        except Unauthorized:
            services.rates.forget(secret)
            raise
        services.rates.known(secret, actor.rate_per_s)
        require(actor, permission)
        scope(actor, request)
        return actor

    return check


Reader = Annotated[Actor, Depends(_role("reader"))]
Ingester = Annotated[Actor, Depends(_role("ingester"))]
Worker = Annotated[Actor, Depends(_role("worker"))]
Operator = Annotated[Actor, Depends(_role("operator"))]
Admin = Annotated[Actor, Depends(_role("admin"))]

# A token may be for some routes alone. An endpoint above refuses such a token, whatever it asks for;
# Route… take it where the path or the query names one of its routes, in Scoped… the handler does.
RouteReader = Annotated[Actor, Depends(_role("reader", _named))]
RouteOperator = Annotated[Actor, Depends(_role("operator", _named))]
ScopedReader = Annotated[Actor, Depends(_role("reader", _left_to_the_handler))]
ScopedIngester = Annotated[Actor, Depends(_role("ingester", _left_to_the_handler))]
ScopedOperator = Annotated[Actor, Depends(_role("operator", _left_to_the_handler))]

Limit = Annotated[int, Query(ge=1, le=500, description="Items on a page")]
After = Annotated[str | None, Query(max_length=300, description="`next` of the page before")]


def page(items: list[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """Return a keyset page: the items and, where more may follow, the key to continue after."""
    more = len(items) == limit and items
    return {"items": items, "next": str(items[-1][key]) if more else None}
