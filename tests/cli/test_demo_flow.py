from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from rich.console import Console

from gatekeeper.cli.demo import workflow
from gatekeeper.cli.demo.flow import Demo
from gatekeeper.cli.demo.screen import Screen, _narrowing, _overall, decision_table
from gatekeeper.config import Settings
from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

GATES = ("equivalence", "serving", "outcome")
EXPIRES = "2026-01-02T00:00:00+00:00"


class Api:
    """The few endpoints that the demo asks, with verdicts set by the test."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.client = httpx.Client(
            base_url="http://api", transport=httpx.MockTransport(self.answer)
        )

    def answer(self, request: httpx.Request) -> httpx.Response:  # noqa: PLR0911 - one a path
        path = request.url.path
        if path == "/v1/artifacts":
            return httpx.Response(201, json={"digest": "d" * 64})
        if path.startswith("/v1/policies/"):
            document = {"mandatory_gates": list(GATES)}
            return httpx.Response(200, json={"name": "demo", "digest": "p", "document": document})
        if path == "/v1/gate-runs" and request.method == "POST":
            body = json.loads(request.content)
            run = {
                "id": f"run-{len(self.runs)}",
                "route": body["route"],
                "gate": body["gate"],
                "artifact": "d" * 64,
                "policy": "p",
                "state": "pending",
                "outcome": None,
                "finished_at": None,
                "progress": None,
            }
            self.runs.append(run)
            return httpx.Response(201, json=run)
        if path == "/v1/gate-runs":
            return httpx.Response(200, json={"items": []})
        if path.startswith("/v1/gate-runs/"):
            return httpx.Response(200, json=next(r for r in self.runs if path.endswith(r["id"])))
        if path.endswith("/decision"):
            lease = {"action": "bypass", "gamma": 0, "reason": "r", "explanation": "e"}
            return httpx.Response(200, json=lease)
        return httpx.Response(200, json={})

    def finish(self, route: str, gate: str, outcome: str) -> None:
        for run in self.runs:
            if (run["route"], run["gate"]) == (route, gate):
                run |= {"state": "finished", "outcome": outcome, "finished_at": "2026-01-01"}

    def asked(self, route: str) -> list[str]:
        return [run["gate"] for run in self.runs if run["route"] == route]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def walk(tmp_path: Path, api: Api) -> Demo:
    walk = Demo(Settings.load(home=tmp_path), note=lambda _: None)
    walk._documents = {route.artifact: {} for route in walk.routes}
    walk.register(api.client)
    return walk


def row(walk: Demo, api: Api, route: str) -> dict[str, Any]:
    return next(r for r in walk.rows(api.client) if r["route"].name == route)


def drawn(found: dict[str, Any]) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(decision_table([found]))
    return console.export_text()


def test_the_outcome_gate_waits_for_the_window_that_serving_confirms(walk: Demo, api: Api) -> None:
    assert api.asked("tool-calls") == ["equivalence", "serving"]
    api.finish("tool-calls", "equivalence", "PASS")
    assert not row(walk, api, "tool-calls")["done"]
    assert api.asked("tool-calls") == ["equivalence", "serving"]
    api.finish("tool-calls", "serving", "PASS")
    assert not row(walk, api, "tool-calls")["done"]
    assert api.asked("tool-calls") == list(GATES)
    api.finish("tool-calls", "outcome", "PASS")
    found = row(walk, api, "tool-calls")
    assert found["done"]
    assert [run["outcome"] for run in found["runs"].values()] == ["PASS"] * 3


def test_a_route_that_a_gate_failed_runs_no_outcome(walk: Demo, api: Api) -> None:
    api.finish("prose", "equivalence", "INCONCLUSIVE")
    api.finish("prose", "serving", "FAIL")
    found = row(walk, api, "prose")
    assert found["done"]
    assert found["runs"]["outcome"] is None
    assert api.asked("prose") == ["equivalence", "serving"]
    assert "–" in drawn(found)


def test_unknown_value_is_said_and_never_zero(walk: Demo, api: Api) -> None:
    found = {**row(walk, api, "code"), "value": {"total": None}}
    assert "unknown" in drawn(found)


def test_without_a_measured_speed_up_no_agent_runs(walk: Demo, api: Api, tmp_path: Path) -> None:
    found = row(walk, api, "tool-calls")
    assert workflow.compare_arms(walk, found, tmp_path, lambda _: None) is None


def test_an_agent_that_fails_is_named_with_its_log(
    walk: Demo, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = row(walk, api, "tool-calls")
    speedup = {"low": 1.1, "ratio": 1.2, "high": 1.3}
    region = {"concurrency": 1, "gamma": 2, "speedup": speedup}
    found["runs"]["serving"] |= {"result": {"summary": {"regions": [region]}}}
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(Unavailable, match=r"agent: ended with status 1; read .*agent\.log"):
        workflow.compare_arms(walk, found, tmp_path, lambda _: None)


def test_the_screen_ends_with_commands_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen() as screen:
        screen.next_steps([("Do this", ["gatekeeper profile my-trace.json"])])
    assert "gatekeeper profile my-trace.json" in capsys.readouterr().out


def test_progress_counts_to_all_gates_there_may_be_and_keeps_an_estimate(
    walk: Demo, api: Api
) -> None:
    before = _overall(walk.rows(api.client))
    assert before.startswith("0 of 9 gate runs done, about ")
    api.finish("prose", "equivalence", "PASS")
    api.finish("prose", "serving", "FAIL")
    after = _overall(walk.rows(api.client))
    assert after.startswith("3 of 9 gate runs done, about ")  # prose needs no outcome run any more
    assert minutes(after) < minutes(before)


def test_a_resumed_walk_has_nothing_left_to_run_from_its_first_look_on(
    walk: Demo, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tool-calls", "prose", "code"):
        for gate in ("equivalence", "serving"):
            api.finish(name, gate, "PASS")

    def reuse(_client: httpx.Client, route: Any, gate: str) -> str:
        run = {"id": f"{route.name}-{gate}", "route": route.name, "gate": gate, "progress": None}
        api.runs.append({**run, "state": "finished", "outcome": "PASS", "finished_at": EXPIRES})
        return str(run["id"])

    monkeypatch.setattr(walk, "_submit", reuse)
    assert _overall(walk.rows(api.client)) == "9 of 9 gate runs done"


def minutes(said: str) -> int:
    return int(said.rpartition("about ")[2].split()[0])


def test_a_straddling_value_is_told_what_would_narrow_it(walk: Demo, api: Api) -> None:
    found = row(walk, api, "code")
    found["value"] = {
        "narrowing": {"factor": 4.0},
        "what_would_change": ["18 pairs.", "No price.", "x"],
    }
    assert _narrowing(found) == "18 pairs. No price."
    found["value"] = {"narrowing": None, "what_would_change": ["Above 1 EUR"]}
    assert _narrowing(found) is None


def test_the_tables_footnote_says_what_windows_and_evidence_are(walk: Demo, api: Api) -> None:
    text = drawn(row(walk, api, "code"))
    assert "γ: draft tokens a round; where it differs by load" in text
    assert "evidence: gates with a verdict, of those that run" in text


def test_small_amounts_have_no_powers_of_ten(walk: Demo, api: Api) -> None:
    total = {"per_task": 0.0049, "low": 9.4e-05, "high": 0.0091, "currency": "EUR"}
    assert "[0.000094, 0.0091]" in drawn({**row(walk, api, "code"), "value": {"total": total}})


def test_next_steps_hold_every_command_and_replace_the_last_token(tmp_path: Path) -> None:
    tokens = [
        {"id": "old", "name": "demo-next-steps", "revoked_at": None},
        {"id": "mine", "name": "someone", "revoked_at": None},
    ]
    deleted = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            deleted.append(request.url.path)
        made = {"token": "gk_new", "items": tokens, "next": None}
        return httpx.Response(200, json=made)

    client = httpx.Client(base_url="http://api", transport=httpx.MockTransport(answer))
    rows = [priced_row("gates_passed", flips_at=0.005)]
    steps = workflow.next_steps(client, Settings.load(home=tmp_path), rows)
    assert "value_of_second" in steps[1][0]
    assert deleted == ["/v1/tokens/old"]
    said = [command for _, commands in steps for command in commands]
    assert any("route test my-trace.json" in command for command in said)
    titles = [title for title, _ in steps]
    assert any("priced together with the demo's own tasks" in title for title in titles)
    own = [command for command in said if "own-servers" in command or " worker " in command]
    assert [part.split()[-1] for part in own] == ["--plan", "&", "--wait"]


def priced_row(reason: str, *, flips_at: float | None) -> dict[str, Any]:
    rows = [
        {"input": "value_of_second", "flips_at": flips_at},
        {"input": "speedup", "flips_at": 1.4},
    ]
    return {
        "route": SimpleNamespace(name="code"),
        "decision": {"reason": reason},
        "value": {"sensitivity": {"rows": rows}},
    }


def test_the_first_step_is_a_price_only_where_one_turns_a_decision(tmp_path: Path) -> None:
    def first(*rows: dict[str, Any]) -> tuple[str, list[str]]:
        return workflow._first_step(rows, "gatekeeper", tmp_path / "economics" / "demo.yaml")

    turns = priced_row("insufficient_evidence", flips_at=0.02)
    never = priced_row("insufficient_evidence", flips_at=None)
    failed = priced_row("serving_failed", flips_at=0.02)
    title, commands = first(never, turns)
    assert "Change value_of_second" in title
    assert commands == [f"gatekeeper policy apply {tmp_path}"]
    title, commands = first(never, failed)
    assert title.startswith("1. No price of a second would turn a decision here;")
    assert commands == ["gatekeeper report code"]
    title, commands = first(failed)
    assert title.startswith("1. A gate decides every route here")
    assert "value_of_second" in first({**never, "value": {"sensitivity": None}})[0]  # not known


def test_the_speed_up_shown_is_the_one_that_the_value_was_priced_with(walk: Demo, api: Api) -> None:
    found = row(walk, api, "code")
    regions = [
        {"concurrency": 1, "speedup": {"low": 1.5, "ratio": 1.6, "high": 1.7}},
        {"concurrency": 2, "speedup": {"low": 1.1, "ratio": 1.2, "high": 1.3}},
        {"concurrency": 4, "speedup": {"low": None, "ratio": None, "high": None}},
    ]
    found["runs"]["serving"] |= {"result": {"summary": {"regions": regions}, "expires_at": EXPIRES}}
    assert "1.60× at 1" in drawn(found)
    total = {"per_task": 0.0049, "low": 9.4e-05, "high": 0.0091, "currency": "EUR"}
    speedup = {"ratio": 1.2, "low": 1.1, "high": 1.3, "concurrency": 2}
    found["value"] = {"total": total, "speedup": speedup}
    assert "1.20× at 2" in drawn(found)
    assert "1.60×" not in drawn(found)
    found["value"] = {"total": None, "speedup": speedup}  # another term is unknown
    assert "1.20× at 2" in drawn(found)


def test_a_narrow_terminal_cuts_nothing_off(walk: Demo, api: Api) -> None:
    total = {"per_task": 0.0049, "low": 9.4e-05, "high": 0.0091, "currency": "EUR"}
    rows = [{**found, "value": {"total": total}} for found in walk.rows(api.client)]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(decision_table(rows, width=80))
    said = console.export_text()
    for head in ("outcome", "speed-up", "value per task", "reason", "evidence"):
        assert head in said
    assert said.count("0.0091]") == len(rows)


@pytest.mark.parametrize("width", [80, 100, 120, 132])
def test_no_width_cuts_the_last_column_off(walk: Demo, api: Api, width: int) -> None:
    serving = {"summary": {}, "expires_at": "2026-01-08T00:00:00+00:00"}
    total = {"per_task": 0.011, "low": 0.0065, "high": 0.016, "currency": "EUR"}
    speedup = {"ratio": 2.14, "low": 1.62, "high": 2.83, "concurrency": 2}
    lease = {"action": "bypass", "gamma": 4, "gamma_by_concurrency": {"1": 4, "2": 2}}
    lease["reason"] = "insufficient_evidence"
    for gate in GATES:
        for name in ("tool-calls", "prose", "code"):
            api.finish(name, gate, "INCONCLUSIVE")
    rows = []
    for found in walk.rows(api.client):
        runs = {
            gate: {**api.runs[0], "outcome": "INCONCLUSIVE", "result": serving} for gate in GATES
        }
        priced = {"total": total, "speedup": speedup}
        rows.append({**found, "runs": runs, "done": True, "decision": lease, "value": priced})
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(decision_table(rows, width=width))
    said = console.export_text()
    assert said.count("to 01-08") == len(rows)
    assert said.count("[0.0065, 0.016]") == len(rows)
    assert "evidence" in said
