"""Steps of a rollout over HTTP, as tests of tests/api take them."""

from __future__ import annotations

from typing import Any

import pytest
from value_rollout import Rollout, add_tasks, arrive

from gatekeeper.core.arms import CANDIDATE, HOLDOUT

Api = Any  # the fixture's class lives in conftest
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # one database is enough

TWO_GATES = {"mandatory_gates": ["equivalence", "serving"], "minimum_value": None}
RAMP = {"steps": [0.05, 0.25, 1.0], "holdout": 0.05, "min_tasks": 40, "min_step_s": 0}
PROMISED_S = 0.3  # less than the low end of the 0.6 s that the gates of `Rollout` promise
WALL_S = 5.0


def enable(api: Api, policy: dict[str, Any] | None = None, **rollout: Any) -> Rollout:
    """A priced and enabled route under a rollout."""
    ours = Rollout(api.clients, api)
    ours.apply(policy_changes=TWO_GATES if policy is None else policy)
    api.route(policy="priced", rollout={**RAMP, **rollout})
    add_tasks(api.services.db)
    ours.gates()
    return ours


def both(api: Api, saved_s: float, **more: Any) -> None:
    """A window's worth of tasks in either arm, and a look at them."""
    arrive(api.services.db, CANDIDATE, WALL_S - saved_s, **more)
    arrive(api.services.db, HOLDOUT, WALL_S, **more)
    api.services.reconciler.judge_rollouts()


def step(api: Api) -> tuple[str, int | None]:
    """What a rollout says: the action for keys that are in, and the step."""
    lease = api.decision()
    enabled = lease["rollout"].get("enable", lease)
    return enabled["action"], lease["rollout"]["step"]


def delivered(api: Api) -> dict[str, Any]:
    answer = api.reader.get("/v1/routes/prose/delivered")
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


def alarms(api: Api) -> list[str]:
    items = api.reader.get("/v1/watches/alarms", params={"route": "prose"}).json()["items"]
    return [item["reason"] for item in items]
