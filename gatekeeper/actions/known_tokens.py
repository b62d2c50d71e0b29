"""Whose token it is, for those who poll: remembered for as long as no token has changed."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.actions.identity import Actor, authenticate
from gatekeeper.store import access

if TYPE_CHECKING:
    from gatekeeper.actions.snapshots import Snapshots
    from gatekeeper.store.database import Database
    from gatekeeper.store.reading import TokenMark

__all__ = ["KnownTokens"]

_MOST = 20_000


@dataclass(frozen=True)
class _Known:
    actor: Actor
    expires_at: float
    mark: TokenMark


class KnownTokens:
    """Tokens seen lately, by their hash. A revoked one is refused as soon as a change is seen."""

    def __init__(self, db: Database, snapshots: Snapshots) -> None:
        self._db = db
        self._snapshots = snapshots
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def recall(self, secret: str) -> Actor | None:
        """Whose token this is, without asking the database; None where that takes asking."""
        known, seen = self._known.get(_hash(secret)), self._snapshots.fresh_tokens()
        if known is None or seen is None:
            return None
        mark, at = seen
        return known.actor if known.mark == mark and at < known.expires_at else None

    def authenticate(self, secret: str) -> Actor:
        """Whose token this is, asking the database.

        Raises:
            Unauthorized: it is unknown, expired or revoked.
        """
        seen = self._snapshots.fresh_tokens()  # before: what changes meanwhile makes it outdated
        actor = authenticate(self._db, secret, permission="reader")
        if seen is not None:
            with self._db.read() as session:
                record = access.token_by_hash(session, _hash(secret))
            if record is not None:
                ends = math.inf if record.expires_at is None else record.expires_at
                self._known[_hash(secret)] = _Known(actor, ends, seen[0])
                while len(self._known) > _MOST:
                    self._known.popitem(last=False)
        return actor


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
