"""What a rollout leaves behind: its judged windows in the report, and outcomes until they are old."""

from __future__ import annotations

import re
from typing import Any

from rollout_steps import (
    ON_SQLITE,
    both,
    delivered,
    enable,
)

from gatekeeper.actions.identity import SYSTEM
from gatekeeper.actions.retention import remove_old_outcomes
from gatekeeper.reports.route_markdown import render_markdown
from gatekeeper.reports.route_report import lay_out
from gatekeeper.store import schema_rollouts

Api = Any  # the fixture's class lives in conftest


@ON_SQLITE
def test_the_report_sets_what_was_delivered_beside_what_was_promised(routed: Api) -> None:
    def report() -> tuple[Any, Any, str]:
        answer = routed.reader.get("/v1/reports/prose")
        assert answer.status_code == 200, answer.text
        document = answer.json()
        # what these gates found is made up, and has no chart
        laid_out = lay_out({**document, "gates": dict.fromkeys(document["gates"]), "value": None})
        assert laid_out.unclaimed == ()
        return document, laid_out, render_markdown(laid_out)

    assert report()[0]["delivered"] is None
    enable(routed)
    document, _, text = report()
    assert document["delivered"] == []
    assert "no period of it is full" in text
    both(routed, 0.6)
    both(routed, 0.1)
    document, laid_out, text = report()
    assert document["delivered"] == delivered(routed)["windows"]
    assert [one["outcome"] for one in document["delivered"]] == ["below", "held"]
    newest = document["delivered"][0]
    cited = {claim["id"]: claim["value"] for claim in laid_out.claims}
    at = f"delivered/prose/{newest['id']}"
    for end in ("value", "low", "high"):
        assert cited[f"{at}/saving_s.{end}"] == newest["saving_s"][end]
        assert cited[f"{at}/promised.saving_s.{end}"] == newest["promised"]["saving_s"][end]
    (row,) = [line for line in text.splitlines() if "| **below** |" in line]
    assert re.search(r"60 \(c\d+\) against 60 \(c\d+\)", row)
    assert "unknown" in row  # nobody told an outcome
    assert "Bypass: tasks save less time than was promised" in text
    assert "begun after the rollout's alarm passes" in text


def test_old_outcomes_go_but_for_those_of_the_window_that_is_open(routed: Api) -> None:
    enable(routed)
    both(routed, 0.6)
    windows = delivered(routed)["windows"]
    assert len(windows) == 1
    routed.route("desk", policy="priced")

    def told(route: str) -> Any:
        one = {"route": route, "task": "t1", "arm": "candidate", "success": True, "wall_s": 0.0}
        return routed.clients["ingester"].post("/v1/outcomes", json={"outcomes": [one]}).json()

    def removed(age_s: float) -> int:
        return remove_old_outcomes(routed.services.db, SYSTEM, age_s=age_s)

    for route in ("prose", "desk"):
        assert told(route)["stored"] == 1
    assert removed(3600) == 0
    assert removed(0) == 1
    assert (told("desk"), told("prose")) == ({"stored": 1, "known": 0}, {"stored": 0, "known": 1})
    with routed.services.db.write() as session:  # as if all of it had been told an hour earlier
        table = schema_rollouts.outcome
        session.execute(table.update().values(received_at=table.c.received_at - 3600))
    assert removed(1800) == 2
    assert told("prose") == {"stored": 1, "known": 0}
    assert delivered(routed)["windows"] == windows
    trail = routed.admin.get("/v1/audit").json()["items"]
    found = [one["detail"]["outcomes"] for one in trail if one["action"] == "outcomes.remove"]
    assert sorted(found) == [1, 2]
