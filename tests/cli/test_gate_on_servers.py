"""``gate run`` with two addresses: plan, registration and what it refuses; no server is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gatekeeper import plugins
from gatekeeper.cli.listening import listening, url_of
from gatekeeper.testing import FakeProvider

Run = Any
A, B = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
PAIR = ("--baseline-url", A, "--candidate-url", B)
ON_SQLITE = pytest.mark.parametrize("db", ["sqlite"], indirect=True)


def test_a_plan_needs_neither_servers_nor_a_home(gatekeeper: Run, tmp_path: Any) -> None:
    home = tmp_path / "fresh"
    done = gatekeeper("gate", "run", "--route", "calls", *PAIR, "--plan", "--json", HOME=home)
    assert done.status == 0, done.err
    equivalence, serving = done.json["items"]
    assert (equivalence["gate"], serving["gate"]) == ("equivalence", "serving")
    assert equivalence["minutes"] is None
    assert equivalence["minutes_if"]["20 tokens/s"] > equivalence["minutes_if"]["100 tokens/s"] > 0
    assert equivalence["tokens"] > 0
    assert "never PASS" in equivalence["attainable_power"]
    assert serving["tokens"] > 0
    assert serving["minutes_at_most"] >= 1
    assert not home.exists()


def test_a_plan_in_words_names_one_gate(gatekeeper: Run) -> None:
    done = gatekeeper("gate", "run", "calls", "serving", *PAIR, "--policy", "ci", "--plan")
    assert done.status == 0, done.err
    assert "plan: serving of calls, policy ci" in done.out
    assert "minutes: unknown" in done.out
    assert "minutes, were one stream as fast as said: " in done.out
    assert "minutes at most, with every answer given up at its limit of " in done.out
    assert "equivalence" not in done.out
    assert "workload: tool_calls" in done.out
    assert "can end in: PASS or FAIL: whether the candidate is faster" in done.out


def test_a_plan_says_up_front_what_the_pair_cannot_be_given(gatekeeper: Run) -> None:
    done = gatekeeper("gate", "run", "--route", "calls", *PAIR, "--plan").out
    assert "can end in: FAIL or INCONCLUSIVE, never PASS: texts alone are compared" in done
    assert done.count("no lease, whatever passes: ") == 1
    assert "give --gamma N" in done
    assert "outcome, which policy demo demands, cannot be measured on servers" in done
    told = gatekeeper("gate", "run", "--route", "calls", *PAIR, "--gamma", "4", "--plan").out
    assert "no lease" not in told


def test_a_plan_warns_of_a_server_that_is_not_there(gatekeeper: Run) -> None:
    with listening("127.0.0.1", 0) as listener:
        there = url_of(listener)
        pair = ("--baseline-url", there, "--candidate-url", "http://127.0.0.1:9")
        done = gatekeeper("gate", "run", "calls", "serving", *pair, "--plan")
    assert done.status == 0, done.err
    (warning,) = [line for line in done.err.splitlines() if line.startswith("warning")]
    assert "nobody answers at http://127.0.0.1:9 from here (connection refused)" in warning


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--route", "r", "--baseline-url", A), "--candidate-url: is missing"),
        (("r", "--model", "m"), "--model=m: describes two servers"),
        (("r", "--gamma", "4"), "--gamma=4: describes two servers"),
        (("--route", "r", "--baseline-url", "host:1", "--candidate-url", B), "baseline_url=host:1"),
        (("--route", "r", "--baseline-url", A, "--candidate-url", f"{A}/v1"), "candidate_url="),
        (("--route", "r", *PAIR, "--slice", "verse"), "slice=verse"),
        (("--route", "r", *PAIR, "--policy", "../demo", "--plan"), "--policy=../demo"),
        (("--route", "r", "outcome", *PAIR, "--plan"), "gate=outcome"),
        ((*PAIR, "--plan"), "Missing argument 'ROUTE'"),
        (("--route", "r", "other", *PAIR, "--plan"), "neither a gate"),
        (("--route", "r", "other", "serving", *PAIR, "--plan"), "given twice"),
    ],
)
def test_what_makes_no_pair_is_named(gatekeeper: Run, arguments: Any, words: str) -> None:
    done = gatekeeper("gate", "run", *arguments)
    assert done.status == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1


@pytest.fixture
def admin(gatekeeper: Run, live_server: Any) -> Run:
    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["admin"])

    return run


@ON_SQLITE
def test_the_pair_is_registered_and_its_route_is_created_once(admin: Run) -> None:
    run = ("gate", "run", "--route", "calls", *PAIR, "--gamma", "4", "--json")
    first = admin(*run)
    assert first.status == 0, first.err
    assert [item["gate"] for item in first.json["items"]] == ["equivalence", "serving"]
    said = admin("decide", "calls").out
    assert "run the outcome gate" not in said
    assert "the outcome gate, which cannot be measured on servers that already run" in said
    assert "gatekeeper worker" in first.json["items"][0]["waiting_for"]
    route = admin("route", "show", "calls").json
    assert (route["policy"], route["slice"]) == ("demo", "tool_calls")
    document = admin("artifact", "show", route["artifact"]).json["document"]
    assert document["proposer"] == {
        "kind": "undisclosed",
        "parameters": {"model": None},
        "source": B,
    }
    again = admin(*run)
    assert again.status == 0, again.err
    assert len(admin("artifact", "list", "--json").json["items"]) == 1
    planned = admin("gate", "run", "calls", "equivalence", "--plan", "--json").json
    assert "never PASS" in planned["attainable_power"]
    assert admin("artifact", "verify", route["artifact"]).status == 0


@pytest.fixture
def reads_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that reads model files, without a model."""
    load = plugins.load

    def instead(group: str, name: str) -> Any:
        return FakeProvider("reference") if name == "reference" else load(group, name)

    monkeypatch.setattr(plugins, "load", instead)


@pytest.mark.usefixtures("reads_files")
def test_a_plan_with_the_targets_files_scores_tokens(gatekeeper: Run) -> None:
    target = ("--target", "file:/models/target")
    done = gatekeeper("gate", "run", "calls", "equivalence", *PAIR, *target, "--plan", "--json")
    assert done.status == 0, done.err
    assert "strict alarm on p alone" in done.json["attainable_power"]
    assert done.json["declared_effect"] is None
    assert done.json["minutes_if"]["20 tokens/s"] > 0
    assert done.json["prospect"].startswith("PASS or FAIL where the worker can load")
    assert (
        "windows (gamma): not stated"
        in gatekeeper("gate", "run", "calls", "equivalence", *PAIR, *target, "--plan").out
    )
    alone = gatekeeper("gate", "run", "calls", *target)
    assert alone.status == 2
    assert "--target=file:/models/target: describes two servers" in alone.err


@ON_SQLITE
@pytest.mark.usefixtures("reads_files")
def test_the_targets_files_stand_in_the_pair(admin: Run) -> None:
    target = ("--target", "file:/models/target")
    done = admin("gate", "run", "--route", "calls", "equivalence", *PAIR, *target, "--json")
    assert done.status == 0, done.err
    route = admin("route", "show", "calls").json
    weights = admin("artifact", "show", route["artifact"]).json["document"]["target"]["weights"]
    assert (weights["engine"], weights["source"]) == ("reference", "file:/models/target")
    assert weights["files"] == {"model": "0" * 64}
    held = admin("artifact", "verify", route["artifact"])
    assert held.out.strip().endswith("holds: target, proposer, target.weights")
    planned = admin("gate", "run", "calls", "equivalence", "--plan", "--json").json
    assert "strict alarm on p alone" in planned["attainable_power"]


@ON_SQLITE
def test_a_route_of_another_artifact_is_left_alone(admin: Run) -> None:
    assert admin("gate", "run", "--route", "calls", *PAIR).status == 0
    before = admin("route", "show", "calls").json
    other = ("--baseline-url", A, "--candidate-url", "http://127.0.0.1:8002")
    for arguments, words in (
        (other, "route=calls: serves another artifact"),
        ((*PAIR, "--policy", "ci"), "--policy=ci"),
        ((*PAIR, "--slice", "prose"), "--slice=prose"),
    ):
        done = admin("gate", "run", "--route", "calls", *arguments)
        assert done.status == 2
        assert words in done.err
        assert "another --route" in done.err
    assert admin("route", "show", "calls").json == before


@ON_SQLITE
def test_the_outcome_gate_is_refused_before_it_is_queued(admin: Run) -> None:
    assert admin("gate", "run", "--route", "calls", *PAIR).status == 0
    for more in ((), ("--plan",)):
        done = admin("gate", "run", "calls", "outcome", *more)
        assert done.status == 2
        assert "outcome check" in done.err
