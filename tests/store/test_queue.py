from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gatekeeper.errors import Conflict, FencedOut
from gatekeeper.store import runs
from gatekeeper.store.database import Database, Session, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.store.records import RunRecord

    Enqueue = Callable[..., RunRecord]

ENGINE = "reference 1"

CLAIMER = """
import json, sys
from gatekeeper.store import runs
from gatekeeper.store.database import open_database
db = open_database(sys.argv[1])
got = []
while True:
    with db.write() as session:
        run = runs.claim(session, owner=sys.argv[2], engines=["reference 1"], devices=["cpu"],
                         lease_s=60)
    if run is None:
        break
    got.append(run.id)
print(json.dumps(got))
"""


def take(session: Session, owner: str = "w", lease_s: float = 60.0, **how: str) -> RunRecord | None:
    return runs.claim(
        session, owner=owner, engines=[ENGINE], devices=["cpu"], lease_s=lease_s, **how
    )


def test_four_processes_claim_every_run_exactly_once(
    catalogued: Database, enqueue: Enqueue
) -> None:
    with catalogued.write() as session:
        for index in range(120):
            enqueue(session, f"r{index:04d}")
    url = catalogued.engine.url.render_as_string(hide_password=False)
    workers = [
        subprocess.Popen([sys.executable, "-c", CLAIMER, url, f"w{index}"], stdout=subprocess.PIPE)
        for index in range(4)
    ]
    claimed: Counter[str] = Counter()
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        claimed.update(json.loads(output))
    assert len(claimed) == 120
    assert set(claimed.values()) == {1}


def test_order_is_priority_then_age(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        for run_id, priority in (("r1", 0), ("r2", 5), ("r3", 0)):
            enqueue(session, run_id, priority=priority)
    order = []
    for _ in range(3):
        with catalogued.write() as session:
            run = take(session)
            assert run is not None
            order.append(run.id)
    assert order == ["r2", "r1", "r3"]


def test_a_worker_without_the_engine_gets_nothing(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1", device="cuda")
        enqueue(session, "r2", engine="reference 2")
        assert take(session) is None
        assert [r.state for r in runs.listing(session, after=None, limit=9)] == ["pending"] * 2


def test_the_second_submission_of_a_key_is_refused(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1", idempotency_key="same")
    with pytest.raises(Conflict, match="send the request again"), catalogued.write() as session:
        enqueue(session, "r2", idempotency_key="same")
    with catalogued.read() as session:
        found = runs.by_key(session, "same")
        assert found is not None
        assert found.id == "r1"
        assert runs.get(session, "r2") is None


def test_an_expired_lease_is_claimed_with_a_new_fence(
    catalogued: Database, enqueue: Enqueue
) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1")
        first = take(session, "dead", lease_s=0.05)
    assert first is not None
    time.sleep(0.1)
    with catalogued.write() as session:
        second = take(session, "alive")
    assert second is not None
    assert (second.id, second.owner) == ("r1", "alive")
    assert second.fence == first.fence + 1
    assert second.attempt == first.attempt + 1
    with catalogued.write() as session:
        zombie = runs.update_held(session, "r1", first.fence, {"progress": {"phase": "late"}})
        assert zombie is None
    with pytest.raises(FencedOut), catalogued.write() as session:
        runs.finish(session, "r1", first.fence, state="finished")
    with catalogued.read() as session:
        run = runs.get(session, "r1")
        assert run is not None
        assert (run.state, run.owner, run.progress) == ("running", "alive", None)


def test_the_reaper_bounds_attempts(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1", max_attempts=2)
    states = []
    for _ in range(2):
        with catalogued.write() as session:
            assert take(session, lease_s=0.02) is not None
        time.sleep(0.05)
        with catalogued.write() as session:
            (reaped,) = runs.reap(session)
            states.append((reaped.state, reaped.attempt))
    assert states == [("pending", 2), ("failed", 2)]
    with catalogued.write() as session:
        assert take(session) is None
        assert runs.reap(session) == []


def test_an_expired_run_that_is_to_be_cancelled_is_not_started_again(
    catalogued: Database, enqueue: Enqueue
) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1")
        take(session, lease_s=0.02)
        cancelled = runs.cancel(session, "r1")
        assert cancelled is not None
        assert (cancelled.state, cancelled.cancel_requested) == ("running", True)
    time.sleep(0.05)
    with catalogued.write() as session:
        assert take(session) is None
        (reaped,) = runs.reap(session)
        assert reaped.state == "cancelled"


def test_cancelling_a_pending_run_ends_it(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1")
        cancelled = runs.cancel(session, "r1")
        assert cancelled is not None
        assert cancelled.state == "cancelled"
        assert cancelled.finished_at is not None
        assert runs.cancel(session, "r1") is None
        assert take(session) is None


def test_a_named_run_is_claimed_before_older_ones(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        enqueue(session, "r1")
        enqueue(session, "r2")
        run = take(session, run_id="r2")
        assert run is not None
        assert run.id == "r2"
        assert take(session, run_id="r2") is None


def test_pages_stay_right_while_rows_arrive(catalogued: Database, enqueue: Enqueue) -> None:
    with catalogued.write() as session:
        for index in range(5):
            enqueue(session, f"r{index}")
        first = runs.listing(session, after=None, limit=2)
        enqueue(session, "r9")
        second = runs.listing(session, after=first[-1].id, limit=9)
    assert [r.id for r in first] == ["r4", "r3"]
    assert [r.id for r in second] == ["r2", "r1", "r0"]


def test_the_clock_moves_within_a_transaction(db: Database) -> None:
    with db.read() as session:
        before = now(session)
        time.sleep(0.05)
        after = now(session)
    assert 0.02 < after - before < 5
    assert abs(after - time.time()) < 5
