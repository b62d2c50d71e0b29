"""A decision that lacks a gate ends in the command that runs it."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from gatekeeper.cli import cli
from gatekeeper.cli.decide import _standing
from gatekeeper.cli.next_steps import lines, open_texts, pricing_steps
from gatekeeper.core.policies import UNPRICED

MISSING = {"gate": "serving", "outcome": None, "state": "missing", "mandatory": True}
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


def parsed(line: str) -> list[str]:
    """The arguments of a line's first command, which the command line itself has to take."""
    words = shlex.split(line.partition("gatekeeper ")[2].partition(", ")[0])
    command: click.Command = cli
    context = click.Context(cli)
    rest = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, line
        command = found
    command.make_context(words[0], rest)
    return words


@pytest.mark.parametrize("gate", ["equivalence", "serving", "outcome"])
def test_a_missing_gate_has_its_command(gate: str) -> None:
    (line,) = lines("my route", [gate], on_servers=False)
    assert parsed(line) == ["gate", "run", "my route", gate, "--wait"]


def test_servers_that_run_are_not_sent_to_a_gate_that_refuses_them() -> None:
    run, check, register = lines("chat", ["serving", "outcome"], on_servers=True)
    assert parsed(run)[2:] == ["chat", "serving", "--wait"]
    assert parsed(check) == ["outcome", "check", "PAIRS.csv"]
    assert parsed(register) == ["artifact", "register", "pair.yaml"]
    assert "gate run chat outcome" not in f"{run}{check}{register}"


def test_a_route_of_files_is_not_sent_to_a_doubled_name() -> None:
    said = " ".join(lines("own-files", ["outcome"], on_servers=True))
    assert "own-files-files" not in said
    assert "gatekeeper route set own-registered" in said
    # a pair with --target is another artifact than the pair registered as files
    assert "gatekeeper route set own-registered" in " ".join(
        lines("own", ["outcome"], on_servers=True)
    )
    open_view = {**view("INCONCLUSIVE", "two-sample"), "route": "own-files"}
    assert "own-files-files" not in str(open_texts(open_view))


def lease(reason: str, explanation: str = "", value: Any = None) -> dict[str, Any]:
    """A bypass in which every mandatory gate has passed."""
    row = {"gate": "serving", "outcome": "PASS", "state": "current", "mandatory": True}
    return {
        "route": "my route",
        "reason": reason,
        "explanation": explanation,
        "gates": [row],
        "value": value,
        "evidence_expires_at": None,
        "decided_at": "2030-01-01T10:00:00+00:00",
        "version": [1, 2],
    }


def test_tasks_without_a_price_have_the_command_that_lists_them() -> None:
    found = lease("insufficient_evidence", f"still needed: {UNPRICED} (minimum 1 EUR); more.")
    listed, how = pricing_steps(found)
    assert parsed(listed) == ["traces", "list", "--route", "my route"]
    assert "price-your-agents-tasks" in how
    assert pricing_steps(lease("insufficient_evidence", "narrow the value interval")) == []
    assert pricing_steps(lease("value_negligible")) == []


@pytest.mark.parametrize(
    ("found", "until"),
    [
        (lease("value_negligible", value={}), "until the value exceeds the policy's minimum"),
        (lease("insufficient_evidence", UNPRICED), "until tasks are priced"),
        (lease("insufficient_evidence", "narrow", {}), "until the low end of the value exceeds"),
        (lease("watch_alarm"), "until gates pass"),
        ({**lease("insufficient_evidence", UNPRICED), "gates": [MISSING]}, "until gates pass"),
    ],
)
def test_a_bypass_says_what_ends_it(found: dict[str, Any], until: str) -> None:
    assert f"no evidence to expire: bypass stands {until}" in _standing(found)


def view(outcome: str, rule: str) -> dict[str, Any]:
    arms = dict(zip(("baseline", "candidate"), ({"url": url} for url in URLS), strict=True))
    summary = {"scoring": {"rule": rule}, "arms": arms}
    return {"route": "chat", "result": {"outcome": outcome, "summary": summary}}


def test_open_texts_of_two_servers_end_in_the_whole_command() -> None:
    line = open_texts(view("INCONCLUSIVE", "two-sample"))
    assert line is not None
    words = parsed(line)
    assert words[:2] == ["gate", "run"]
    for option, value in (("--baseline-url", URLS[0]), ("--candidate-url", URLS[1])):
        assert words[words.index(option) + 1] == value
    assert words[words.index("--target") + 1] == "SOURCE"
    # the pair with its files is another artifact, which the same route would refuse
    assert words[words.index("--route") + 1] != "chat"


@pytest.mark.parametrize(
    ("outcome", "rule"), [("FAIL", "two-sample"), ("INCONCLUSIVE", "own forward")]
)
def test_other_verdicts_need_no_such_command(outcome: str, rule: str) -> None:
    assert open_texts(view(outcome, rule)) is None
    assert open_texts({"route": "chat", "result": None}) is None
