from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from scheduled_route import fill

if TYPE_CHECKING:
    from gatekeeper.store.database import Database

Run = Callable[..., Any]
Live = Any  # gatekeeper's live server, see tests/live.py


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_schedule_from_set_to_delete(
    gatekeeper: Run, db: Database, request: pytest.FixtureRequest
) -> None:
    fill(db)
    live_server: Live = request.getfixturevalue("live_server")  # starts decided, and logs nothing

    def run(*arguments: object) -> Any:
        token = live_server.tokens["operator"]
        return gatekeeper("schedule", *arguments, URL=live_server.url, TOKEN=token)

    cron = ("--cron", "30 3 * * mon-fri", "--zone", "Europe/Berlin", "--jitter", "15m")
    made = run("set", "nightly", "--route", "prose", *cron, "--before-expiry", "2d", "--json")
    assert made.status == 0, made.err
    assert (made.json["jitter_s"], made.json["before_expiry_s"]) == (900, 172_800)
    shown = run("show", "nightly").out
    assert "30 3 * * mon-fri Europe/Berlin within 15m; 2d before evidence lapses" in shown
    assert shown.count("T03:30:00") >= 5
    assert "it has not fired yet" in shown
    assert re.search(r"paused since [\d-]{10} \d\d:\d\d UTC", run("pause", "nightly").out)
    assert run("list", "--json").json["items"][0]["next_at"] is None
    resumed = run("resume", "nightly", "--json").json["next_at"]
    assert f"{resumed[:10]} {resumed[11:16]} UTC" in run("list").out
    assert run("delete", "nightly").out == "nightly: deleted\n"
    assert "schedule set" in run("list").out
    refused = run("set", "x", "--route", "prose", "--before-expiry", "2w")
    assert refused.status == 2
    assert "36h" in refused.err
