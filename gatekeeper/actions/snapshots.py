"""Every route's lease as this process last read it: one reading a second serves all who ask.

What another server decides is seen within ``FRESH_S``, what this one decides at once. Nothing is
handed out that was read longer ago: a database that does not answer is an error, and clients fall
to bypass by their leases.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from gatekeeper.actions.decide import refresh
from gatekeeper.core.bypass import Lease, RequestContext, RequestDecision, decide_request
from gatekeeper.errors import NotFound
from gatekeeper.store.reading import read_decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gatekeeper.store.database import Database
    from gatekeeper.store.reading import TokenMark
    from gatekeeper.store.records import DecisionRecord, Version

__all__ = ["FRESH_S", "Handed", "Snapshot", "Snapshots", "encode", "with_request"]

FRESH_S = 1.0
"""Longest time for which one reading is handed out. Leases last a minute or so from receipt, and
the last of their time is cut against the database's clock, so this delays news and prolongs nothing."""

_CUT_BY = 1 / 8
_CUT_AT_LEAST_S = 0.25
_CONTEXTS = 64


@dataclass(frozen=True)
class Handed:
    """A lease as it is handed out until ``until`` (seconds on the process's own clock)."""

    lease: Lease
    document: bytes
    until: float
    cut: bool = False
    """Whether its lifetime is shorter than the decision's own, because that is about to change."""


@dataclass(frozen=True)
class Snapshot:
    """One state of all routes. ``stamp`` is the same wherever and whenever the content is."""

    version: Version
    handed: Mapping[str, Handed]
    stamp: str
    _bodies: OrderedDict[RequestContext | None, bytes] = field(
        default_factory=OrderedDict, repr=False, compare=False
    )

    def of(self, route: str) -> Handed:
        """Return a route's lease and its document.

        Raises:
            NotFound: no such route.
        """
        found = self.handed.get(route)
        if found is None:
            raise NotFound(
                "is not a route", field="route", value=route, remedy="see gatekeeper route list"
            )
        return found

    def within(self, routes: frozenset[str] | None) -> Snapshot:
        """Return what a token for these routes sees; None is for all."""
        if routes is None:
            return self
        handed = {route: one for route, one in self.handed.items() if route in routes}
        return Snapshot(self.version, handed, self.stamp)

    def etag(self, context: RequestContext | None = None, scope: str = "") -> str:
        """Entity tag of what is answered to this context and this scope of a token.

        The lifetimes are part of it: a lease cut short, because time is about to change its
        decision, must reach clients as such and never be taken for the longer one they hold.
        """
        asked = None if context is None else asdict(context)
        content = json.dumps([self.stamp, asked, scope], sort_keys=True)
        return f'"{hashlib.sha256(content.encode()).hexdigest()[:32]}"'

    def body(self, context: RequestContext | None = None) -> bytes:
        """Return all leases as JSON, each with its answer to the context where one is given."""
        body = self._bodies.get(context)
        if body is None:
            body = self._body(context)
            self._bodies[context] = body
            while len(self._bodies) > _CONTEXTS:
                self._bodies.popitem(last=False)
        return body

    def _body(self, context: RequestContext | None) -> bytes:
        items = [
            handed.document
            if context is None
            else with_request(handed, decide_request(handed.lease, context))
            for handed in self.handed.values()
        ]
        return encode(self.version, items)


def encode(version: Version, items: Iterable[bytes], *, complete: bool = True) -> bytes:
    """Return leases, encoded already, as one document with the version they make up.

    ``complete`` says whether they are all that there are, or what is new.
    """
    whole = "true" if complete else "false"
    head = f'{{"version":[{version.epoch},{version.counter}],"complete":{whole},"items":['
    return head.encode() + b",".join(items) + b"]}"


def with_request(handed: Handed, answer: RequestDecision) -> bytes:
    """Return the lease's document with ``request``, the answer for one request."""
    return handed.document[:-1] + b',"request":' + _json(asdict(answer)) + b"}"


def _json(document: object) -> bytes:
    return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class _Read:
    """The last reading, when it was begun, and how many changes were told of by then."""

    at: float
    """The database's time."""
    began: float
    told: int
    tokens: TokenMark
    turning: float
    """Process's time at which the first decision changes by itself."""
    recut: float = 0.0
    """Process's time at which a lifetime has to be cut again."""


class Snapshots:
    """One process's view of all decisions, shared by every thread.

    Args:
        db: read at most once in ``FRESH_S``, and once more for each decision of this process.
        clock: monotonic seconds.
    """

    def __init__(self, db: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        self._told = 0
        self._records: dict[str, DecisionRecord] = {}
        self._known: Version | None = None
        self._state: tuple[_Read, Snapshot] | None = None
        self.heard: list[Callable[[], object]] = []
        """Called when this process has committed something; must not wait."""
        self.built = 0
        """Snapshots built so far, for the metrics and for tests."""
        db.listeners.append(self.tell)

    def tell(self) -> None:
        """Take note that this process has committed something: what is held is no longer fresh."""
        self._told = next(self._count)
        for hear in self.heard:
            hear()

    def fresh(self) -> Snapshot | None:
        """Return the present snapshot without asking the database; None where that takes asking."""
        state = self._state
        if state is None:
            return None
        read, snapshot = state
        return snapshot if self._holds(read, self._clock()) else None

    def database_time(self) -> float:
        """Return the database's time, carried on from the last reading; 0 before the first."""
        state = self._state
        return 0.0 if state is None else state[0].at + self._clock() - state[0].began

    def fresh_tokens(self) -> tuple[TokenMark, float] | None:
        """Return the mark of all tokens and the database's time; None where that takes asking."""
        state, now = self._state, self._clock()
        if state is None or not self._readable(state[0], now):
            return None
        return state[0].tokens, state[0].at + now - state[0].began

    def current(self) -> Snapshot:
        """Return the present snapshot, read anew where need be; one thread reads for all.

        Raises:
            Unavailable: the database does not answer.
        """
        found = self.fresh()
        if found is None:
            with self._lock:
                found = self.fresh() or self._renew()
        return found

    def _holds(self, read: _Read, now: float) -> bool:
        return self._readable(read, now) and now < read.recut

    def _readable(self, read: _Read, now: float) -> bool:
        return read.told == self._told and now - read.began < FRESH_S and now < read.turning

    def _renew(self) -> Snapshot:
        now = self._clock()
        if self._state is not None and self._readable(self._state[0], now):
            read, snapshot = self._state
            return self._keep(read, snapshot.version, now)
        read, version = self._read()
        if read.turning <= self._clock():
            refresh(self._db)
            read, version = self._read()
        return self._keep(read, version, read.began)

    def _read(self) -> tuple[_Read, Version]:
        # Both before the statement: what is committed meanwhile is told of later, or seen.
        told, began = self._told, self._clock()
        with self._db.read() as session:
            reading = read_decisions(session, self._known)
        if reading.complete:
            self._records.clear()
        self._records.update({record.route: record for record in reading.decisions})
        self._known = reading.version
        turns = [t for r in self._records.values() if (t := _turning(r)) is not None]
        turning = began + min(turns, default=math.inf) - reading.at
        return _Read(reading.at, began, told, reading.tokens, turning), reading.version

    def _keep(self, read: _Read, version: Version, now: float) -> Snapshot:
        """Cut what has to be cut now; what stays as it was keeps its very document."""
        before = None if self._state is None else self._state[1]
        old = {} if before is None else before.handed
        at = read.at + now - read.began
        handed = {}
        for route in sorted(self._records):
            record, kept = self._records[route], old.get(route)
            if kept is None or now >= kept.until or kept.lease.version != _version(record):
                kept = _hand_out(record, at=at, now=now)
            handed[route] = kept
        changed = before is None or any(one is not old.get(route) for route, one in handed.items())
        if before is None or changed or before.version != version:
            snapshot = Snapshot(version, handed, _stamp(version, handed))
            self.built += 1
        else:
            snapshot = before
        recut = min((one.until for one in handed.values()), default=math.inf)
        self._state = (replace(read, recut=recut), snapshot)
        return snapshot


def _version(record: DecisionRecord) -> tuple[int, int]:
    return record.epoch, record.counter


def _turning(record: DecisionRecord) -> float | None:
    turning: float | None = record.state.get("reconsider_at")
    return turning


def _stamp(version: Version, handed: Mapping[str, Handed]) -> str:
    lasting = [(r, h.lease.version, h.lease.ttl_s, h.lease.max_stale_s) for r, h in handed.items()]
    content = f"{version.epoch}.{version.counter}:{lasting}"
    return hashlib.sha256(content.encode()).hexdigest()


def _hand_out(record: DecisionRecord, *, at: float, now: float) -> Handed:
    """Return a lease that lapses before its decision may change, whoever takes it by ``until``.

    Its last stretch is handed out in ever shorter pieces, an eighth of what is left at a time: a
    new one each second would make every poller fetch everything each second.
    """
    document = dict(record.document)
    longest = max(document["ttl_s"], document["max_stale_s"])
    turning = _turning(record)
    until, cut = math.inf, False
    if turning is not None:
        left = turning - at
        if left > longest:
            until = now + left - longest
        else:
            hold = max(left * _CUT_BY, _CUT_AT_LEAST_S)
            lasts = max(left - hold, 0.0)
            document["ttl_s"] = min(document["ttl_s"], lasts)
            document["max_stale_s"] = min(document["max_stale_s"], lasts)
            until, cut = now + hold, True
    lease = Lease.from_dict(document)
    return Handed(lease, _json(lease.to_wire()), until, cut)
