"""The command that says whether a rollout brought what was promised."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from value_rollout import Rollout, arrive

from gatekeeper.core.arms import CANDIDATE, HOLDOUT

if TYPE_CHECKING:
    from live import LiveServer

Run = Callable[..., Any]


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_delivered_says_what_is_needed_and_then_what_was_found(
    enabled: Rollout, live_server: LiveServer, gatekeeper: Run
) -> None:
    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["reader"])

    none = run("delivered", "prose")
    assert (none.status, none.out) == (1, "prose: enable for every request; it has no rollout\n")
    admin = enabled.clients["admin"]
    route = admin.get("/v1/routes/prose").json()
    body = {name: route[name] for name in ("slice", "artifact", "policy")}
    body["rollout"] = {"steps": [0.25, 1.0], "min_tasks": 40, "min_step_s": 0}
    assert admin.put("/v1/routes/prose", json=body).is_success
    early = run("delivered", "prose")
    assert early.status == 1
    assert "prose: enable (gates_passed), step 1 of 2 (steps 0.25, 1; 0 held out)" in early.out
    assert "still needed: 40 candidate tasks: there are 0" in early.out
    decided = run("decide", "prose")
    assert (decided.status, decided.out.splitlines()[0]) == (
        0,
        "prose: enable, gamma 4 (gates_passed)",
    )
    assert "0.25 are in (step 1 of 2)" in decided.out
    arrive(live_server.db, CANDIDATE, 4.4, success=0.9)
    arrive(live_server.db, HOLDOUT, 5.0, success=0.9)
    deadline = time.monotonic() + 60
    judged = "/v1/routes/prose/delivered"  # asked directly: the server in this process also logs
    while not admin.get(judged).json()["windows"] and time.monotonic() < deadline:
        time.sleep(0.2)
    late = run("delivered", "prose")
    assert late.status == 0, late.out
    assert "step 2 of 2" in late.out
    assert "share 0.25: held" in late.out
    assert "s a task, promised at least" in late.out
    assert run("delivered", "nowhere").status == 2
