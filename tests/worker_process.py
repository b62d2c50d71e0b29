"""A worker process over the fake engine: ``python worker_process.py URL TOKEN NAME LEASE_S SLEEP_S``.

``SLEEP_S`` is really slept per verification step, so that a test can kill the worker inside a run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx

from gatekeeper.testing import Costs, FakeProvider
from gatekeeper.worker.api import WorkerApi
from gatekeeper.worker.lease import end_now
from gatekeeper.worker.loop import Worker, WorkerOptions


def main() -> int:
    url, token, name, lease_s, sleep_s = sys.argv[1:]
    provider = FakeProvider(
        "reference",
        max_context=4096,
        agreement=0.6,
        order=2,
        costs=Costs(verify_s=float(sleep_s)),
        spend=time.sleep,
    )
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as client:
        return Worker(
            WorkerApi(client, name),
            {"reference": provider},
            WorkerOptions(
                cache=Path(),
                devices=[{"kind": "cpu", "count": 1, "memory_bytes": 1}],
                once=True,
                poll_s=0.1,
                lease_s=float(lease_s),
            ),
            clock=time.monotonic,
            sleep=time.sleep,
            say=lambda line: print(line, flush=True),  # noqa: T201 - the parent reads it
            lost=lambda reason: end_now(reason, say=lambda line: print(line, flush=True)),  # noqa: T201 - as above
        ).run()


if __name__ == "__main__":
    sys.exit(main())
