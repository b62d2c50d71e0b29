"""What endpoints that are asked all the time share: who asks and what holds, mostly from memory."""

from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool

from gatekeeper.actions.identity import Actor, require
from gatekeeper.actions.snapshots import Snapshot
from gatekeeper.api.services import Services, Using, bearer, credentials_of
from gatekeeper.errors import Unauthorized, Unavailable

__all__ = [
    "PRIVATE",
    "UNSTORED",
    "Poller",
    "current",
    "matches",
    "scope_of",
    "still_good",
    "token_of",
    "visible",
]

PRIVATE = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}
"""For answers with an ETag: a cache on the way may keep them, and must ask before each use."""

UNSTORED = {"Cache-Control": "no-store"}
"""For decisions: an enable that a cache on the way kept would outlive a bypass."""


async def _poller(
    services: Using,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    request: Request,
) -> Actor:
    secret = credentials_of(credentials, request, "reader")
    services.rates.take(secret)
    with suppress(Unavailable):  # the endpoint says it in its protocol's form
        await current(services)  # the reading that says whether a token has changed
    actor = services.known_tokens.recall(secret)
    if actor is None:
        try:
            actor = await run_in_threadpool(services.known_tokens.authenticate, secret)
        except Unauthorized:
            services.rates.forget(secret)
            raise
    services.rates.known(secret, actor.rate_per_s)
    require(actor, "reader")
    return actor


Poller = Annotated[Actor, Depends(_poller)]
"""A reader whose token is known without a query, as long as no token has changed, and counts all the same.

It may be for some routes alone: the handler keeps to those.
"""


async def current(services: Services) -> Snapshot:
    """Return what holds now; the database is asked once a second at most."""
    found = services.snapshots.fresh()
    if found is None:
        found = await run_in_threadpool(services.snapshots.current)
    return found


def token_of(request: Request) -> str:
    """Return the token of a request that was let in."""
    return request.headers["Authorization"].partition(" ")[2].strip()


async def still_good(services: Services, secret: str) -> bool:
    """Whether a token that was good is so still.

    Raises:
        Unavailable: the database does not answer.
    """
    if services.known_tokens.recall(secret) is not None:
        return True
    try:
        await run_in_threadpool(services.known_tokens.authenticate, secret)
    except Unauthorized:
        return False
    return True


def visible(actor: Actor) -> frozenset[str] | None:
    """Routes that the actor's token is for; None is all of them."""
    return None if actor.routes is None else frozenset(actor.routes)


def scope_of(actor: Actor) -> str:
    """Return what tells one token's scope from another's, for ETags; no route's name has a space."""
    return "*" if actor.routes is None else " ".join(sorted(actor.routes))


def matches(if_none_match: str | None, etag: str) -> bool:
    """Whether an If-None-Match header names this ETag, by the weak comparison of RFC 9110."""
    if if_none_match is None:
        return False
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return etag in given or given == ["*"]
