"""A decision that lacks a gate ends in the command that runs it."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from gatekeeper.cli import cli
from gatekeeper.cli.next_steps import lines, open_texts

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
