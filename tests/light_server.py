"""One server in a process of its own: what it has loaded before and after its first arithmetic.

Run as a script with a folder for its home. Before: spans are taken in and computed, decisions,
tasks and readiness asked. Then four callers ask at the same moment for what needs the heavy libraries.
Prints JSON: ``before`` and ``after`` (libraries loaded), ``ready``, and the ``statuses`` of the four.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from starlette.testclient import TestClient

from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.actions.reconcile import Reconciler
from gatekeeper.actions.start import prepare
from gatekeeper.api.app import create_app
from gatekeeper.api.services import Services
from gatekeeper.config import data_dir
from gatekeeper.store.database import open_database

HEAVY = {"matplotlib", "numpy", "pandas", "pyarrow", "scipy", "statsmodels", "torch"}
SPAN = {
    "traceId": "1" * 32,
    "spanId": "1" * 16,
    "name": "chat",
    "startTimeUnixNano": 1,
    "endTimeUnixNano": 10**9,
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
}
FIRST_USES = (
    "/v1/routes/none/value",
    "/v1/reports/none",
    "/v1/claims?verify=true",
    "/v1/gate-runs?plan=true",
)


def loaded() -> list[str]:
    return sorted(HEAVY & {name.partition(".")[0] for name in sys.modules})


def run(home: Path) -> None:
    db = open_database(f"sqlite:///{home / 'gatekeeper.sqlite'}")
    prepare(db, migrations=data_dir("migrations"), policies=data_dir("policies"))
    token = create_token(db, SYSTEM, name="all", role="admin", ttl_s=None)[1]
    evidence = home / "evidence"
    reconciler = Reconciler(db, evidence=evidence)
    app = create_app(Services(db, evidence, data_dir("migrations"), reconciler))
    headers = {"Authorization": f"Bearer {token}"}
    with TestClient(app, headers=headers) as api:
        body = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
        api.post("/v1/traces", json=body).raise_for_status()
        reconciler.tick()
        reconciler.settle_tasks()
        reconciler.price_routes()
        asked = ("tasks/" + "1" * 32, "decisions/snapshot", "gate-runs", "claims", "economics")
        for path in asked:
            api.get(f"/v1/{path}").raise_for_status()
        ready = api.get("/readyz").status_code
        before = loaded()
        together = Barrier(len(FIRST_USES))

        def ask(path: str) -> int:
            together.wait()
            if "plan" in path:
                return api.post(path, json={"route": "none", "gate": "serving"}).status_code
            return api.get(path).status_code

        with ThreadPoolExecutor(len(FIRST_USES)) as threads:
            statuses = dict(zip(FIRST_USES, threads.map(ask, FIRST_USES), strict=True))
    db.close()
    found = {"before": before, "after": loaded(), "ready": ready, "statuses": statuses}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
