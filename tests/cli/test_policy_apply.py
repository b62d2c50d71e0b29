"""Prices change, decisions follow, and the command says which."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from value_rollout import PASS, Rollout, economics, policy

from gatekeeper.config import data_dir
from gatekeeper.core.yaml_documents import from_yaml
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from live import LiveServer

Run = Callable[..., Any]


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_cheaper_second_changes_the_decision_within_seconds(
    enabled: Rollout, live_server: LiveServer, gatekeeper: Run, tmp_path: Path
) -> None:
    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["admin"])

    assert set(PASS) == {"equivalence", "serving", "outcome"}
    folder = tmp_path / "policies"
    (folder / "economics").mkdir(parents=True)
    (folder / "priced.yaml").write_text(yaml.safe_dump(policy()))
    prices = folder / "economics" / "priced.yaml"
    prices.write_text(yaml.safe_dump(economics()))
    unchanged = run("policy", "apply", folder)
    assert unchanged.status == 0
    assert "no decision changed" in unchanged.out
    prices.write_text(yaml.safe_dump(economics(value_of_second=0.0001)))
    began = time.monotonic()
    told = run("policy", "apply", folder)
    assert time.monotonic() - began < 10
    (line,) = [row for row in told.out.splitlines() if "→" in row]
    assert line.startswith("prose: enable (gates_passed, ")
    assert "→ bypass (value_negligible, " in line
    # the file alone does as well, and JSON says the same
    prices.write_text(yaml.safe_dump(economics()))
    back = run("policy", "apply", prices, "--json").json
    assert [(i["kind"], i["name"], i["changed"]) for i in back["items"]] == [
        ("economics", "priced", True)
    ]
    (change,) = back["decisions"]
    assert (change["before"]["action"], change["after"]["action"]) == ("bypass", "enable")
    assert change["after"]["value"]["per_task"] > change["before"]["value"]["per_task"]
    assert "priced" in run("policy", "list").out
    assert [e["name"] for e in run("policy", "list", "--json").json["economics"]] == [
        "demo",
        "priced",
        "production",
    ]
    shown = run("policy", "show", "priced", "--economics").json["document"]
    assert shown["value_of_second"] == 0.01
    # nothing is applied when one of them is wrong
    prices.write_text(yaml.safe_dump(economics(value_of_second=0.0001, typo=1)))
    refused = run("policy", "apply", folder)
    assert refused.status == 2
    assert "typo" in refused.err
    assert f"{prices}: " in refused.err
    assert enabled.value()["economics"]["document"]["value_of_second"] == 0.01


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_the_shipped_folder_applies(
    live_server: LiveServer, gatekeeper: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(data_dir("policies"), folder)
    done = gatekeeper(
        "policy", "apply", folder, "--json", URL=live_server.url, TOKEN=live_server.tokens["admin"]
    )
    kinds = [(item["kind"], item["name"], item["changed"]) for item in done.json["items"]]
    assert kinds == [
        ("policies", "ci", False),
        ("policies", "demo", False),
        ("policies", "production", False),
        ("economics", "demo", False),
        ("economics", "production", False),
    ]


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefghij")]
    with pytest.raises(InputError, match="values"):
        from_yaml("\n".join(lines).encode(), file="bomb.yaml")


@pytest.mark.parametrize(
    ("text", "key"),
    [("a: 1\nb: 2\na: 3\n", "'a'"), ("a: {b: 1, b: 2}\n", "'b'"), ('{"a": 1, "a": 2}', "'a'")],
)
def test_a_key_given_twice_is_refused(text: str, key: str) -> None:
    with pytest.raises(InputError, match=f"the key {key} is given twice, again in line"):
        from_yaml(text.encode(), file="twice.yaml")
    merged = "base: &b {x: 1}\nown: {<<: *b, x: 2}\n"
    assert from_yaml(merged.encode(), file="merged.yaml")["own"] == {"x": 2}


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_policy_is_tried_before_it_is_applied(
    enabled: Rollout, live_server: LiveServer, gatekeeper: Run, tmp_path: Path
) -> None:
    del enabled

    def run(*arguments: object) -> Any:
        return gatekeeper(*arguments, URL=live_server.url, TOKEN=live_server.tokens["reader"])

    file = tmp_path / "policy.yaml"
    document = policy(minimum_value={"per_task": 1e6, "currency": "EUR"})
    document["serving"] = {**document["serving"], "sweep_blocks": 5}
    file.write_text(yaml.safe_dump(document))
    told = run("policy", "try", file, "--days", "2")
    assert (told.status, told.err) == (0, "")
    assert "would have been 0.0 %" in told.out
    assert "bypass (value_negligible)" in told.out
    assert "measured under other settings of the serving gate" in told.out
    (tried,) = run("policy", "try", file, "--json").json["routes"]
    assert tried["was"]["enables"] == 1
    nowhere = run("policy", "try", file, "--route", "nowhere")
    assert nowhere.status == 2
