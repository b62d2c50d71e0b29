from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gatekeeper.core.economics import Economics
from gatekeeper.core.policies import Policy
from gatekeeper.errors import InputError, UnknownKey

FOLDER = Path(__file__).parents[2] / "policies"
NAMES = ("demo", "production")


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / "economics" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_shipped_economics_read_and_round_trip(name: str) -> None:
    prices = Economics.from_dict(load(name))
    assert prices.name == name
    again = Economics.from_dict(json.loads(json.dumps(prices.to_dict())))
    assert (again, again.digest) == (prices, prices.digest)
    policy = Policy.from_dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    assert policy.minimum_value is not None
    assert policy.minimum_value.currency == prices.currency


@pytest.mark.parametrize("name", NAMES)
def test_each_price_has_its_reason_beside_it(name: str) -> None:
    for line in (FOLDER / "economics" / f"{name}.yaml").read_text().splitlines():
        key, _, value = line.partition(":")
        if any(c.isdigit() for c in value.partition("#")[0]):
            assert "#" in line, f"{key.strip()} has no reason"


def test_production_invents_no_price() -> None:
    prices = Economics.from_dict(load("production")).to_dict()
    known = {name for name, value in prices.items() if value is not None}
    assert known == {"name", "description", "currency", "target_occupancy", "draft"}
    assert set(prices["draft"].values()) == {None}


def test_every_price_changes_the_digest() -> None:
    document = load("demo")
    digests = {Economics.from_dict(document).digest}
    for name in ("value_of_second", "replica_cost_per_hour", "cost_per_failure"):
        digests.add(Economics.from_dict({**document, name: document[name] * 2}).digest)
        digests.add(Economics.from_dict({k: v for k, v in document.items() if k != name}).digest)
    assert len(digests) == 7


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("value_of_seconds", 1.0, "value_of_seconds"),
        ("draft.gpu", 1.0, "draft.gpu"),
        ("value_of_second", -1.0, "value_of_second"),
        ("value_of_second", float("nan"), "value_of_second"),
        ("value_of_second", "much", "value_of_second"),
        ("value_of_second", True, "value_of_second"),
        ("draft.memory_cost_per_gib_hour", -1.0, "draft.memory_cost_per_gib_hour"),
        ("tasks_per_month", 0, "tasks_per_month"),
        ("target_occupancy", 1.5, "target_occupancy"),
        ("target_occupancy", "guessed", "target_occupancy"),
        ("target_occupancy", True, "target_occupancy"),
        ("currency", "", "currency"),
        ("energy", {"declared": False, "price_per_kwh": 0.3}, "energy.declared"),
        ("energy", {"declared": True, "price_per_kwh": -0.3}, "energy.price_per_kwh"),
        ("energy", {}, "energy.declared"),
    ],
)
def test_what_is_no_price_is_refused_by_name(path: str, value: Any, field: str) -> None:
    document = copy.deepcopy(load("demo"))
    *parents, last = path.split(".")
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    with pytest.raises(InputError) as caught:
        Economics.from_dict(document)
    assert caught.value.field == field


def test_an_unknown_key_says_so() -> None:
    with pytest.raises(UnknownKey):
        Economics.from_dict({**load("demo"), "discount": 0.1})


def test_energy_may_be_saved() -> None:
    energy = {"declared": True, "added_watt_hours_per_task": -0.2, "price_per_kwh": 0.3}
    prices = Economics.from_dict({**load("demo"), "energy": energy})
    assert prices.energy is not None
    assert prices.energy.added_watt_hours_per_task == -0.2
