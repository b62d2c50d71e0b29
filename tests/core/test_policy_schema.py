from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gatekeeper.core.policy_schema import Policy, smallest_pairs
from gatekeeper.errors import InputError, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "policies"
NAMES = ("demo", "ci", "production")


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    document = load("production")
    *parents, last = path.split(".")
    inner = document
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return document


def leaves(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, dict):
            yield from leaves(value, f"{path}.")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policies_read_and_round_trip(name: str) -> None:
    policy = Policy.from_dict(load(name))
    assert policy.name == name
    again = Policy.from_dict(json.loads(json.dumps(policy.to_dict())))
    assert again == policy
    assert again.digest == policy.digest


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_has_its_reason_beside_it(name: str) -> None:
    for line in (FOLDER / f"{name}.yaml").read_text().splitlines():
        key, _, value = line.partition(":")
        if any(c.isdigit() for c in value.partition("#")[0]):
            assert "#" in line, f"{key.strip()} has no reason"


def test_digest_ignores_layout_and_sees_every_figure() -> None:
    digests = {Policy.from_dict(load(name)).digest for name in NAMES}
    assert len(digests) == 3
    reordered = dict(reversed(load("demo").items()))
    assert Policy.from_dict(reordered).digest == Policy.from_dict(load("demo")).digest
    moved = changed("equivalence.tolerance.window", 0.011)
    assert Policy.from_dict(moved).digest not in digests


def test_production_has_the_full_budgets() -> None:
    policy = Policy.from_dict(load("production"))
    assert policy.mandatory_gates == ("equivalence", "serving", "outcome")
    assert (policy.equivalence.tolerance.window, policy.equivalence.tolerance.bonus) == (0.01, 0.02)
    assert policy.equivalence.sampled.min_tokens >= 29_000
    assert policy.serving.confirm_blocks >= 40
    assert policy.serving.requests_per_block >= 200
    assert policy.minimum_value.per_task > 0


SECTIONS = (
    "",
    "minimum_value",
    "equivalence",
    "equivalence.greedy",
    "equivalence.sampled",
    "equivalence.tolerance",
    "serving",
    "serving.limits",
    "serving.slo",
    "outcome",
    "bypass",
)


@pytest.mark.parametrize("at", SECTIONS)
def test_unknown_keys_are_named_at_every_level(at: str) -> None:
    document = load("production")
    inner = document
    for key in filter(None, at.split(".")):
        inner = inner[key]
    inner["surprise"] = 1
    with pytest.raises(UnknownKey) as refused:
        Policy.from_dict(document)
    assert refused.value.field == (f"{at}.surprise" if at else "surprise")


def test_unknown_sampling_settings_are_named() -> None:
    document = load("production")
    document["equivalence"]["sampled"]["settings"][1]["top_q"] = 1
    with pytest.raises(UnknownKey, match=r"equivalence\.sampled\.settings\[1\]\.top_q=1"):
        Policy.from_dict(document)


DEFAULTED = {
    "equivalence.sampled.effect",
    "equivalence.tolerance.pass_alpha",
    "equivalence.tolerance.fail_alpha",
    "serving.slo.ttft_s",
    "serving.slo.tpot_s",
    "outcome.sampling.temperature",
}


@pytest.mark.parametrize("path", sorted(set(leaves(load("production"))) - DEFAULTED))
def test_missing_keys_are_named(path: str) -> None:
    document = copy.deepcopy(load("production"))
    *parents, last = path.split(".")
    inner = document
    for parent in parents:
        inner = inner[parent]
    del inner[last]
    with pytest.raises(InputError, match="is missing") as refused:
        Policy.from_dict(document)
    assert refused.value.field == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mandatory_gates", ["equivalence"]),
        ("mandatory_gates", ["serving", "outcome"]),
        ("mandatory_gates", ["equivalence", "serving", "beauty"]),
        ("mandatory_gates", "equivalence"),
        ("name", 7),
        ("allow_approximate", "yes"),
        ("evidence_ttl_s", 0),
        ("hysteresis_s", -1),
        ("max_stale_s", float("nan")),
        ("equivalence.alpha", 0),
        ("equivalence.seed", 1.5),
        ("equivalence.replicates", 1),
        ("equivalence.seed", True),
        ("equivalence.greedy", None),
        ("equivalence.greedy.prompts", 0),
        ("equivalence.sampled.max_tokens", 10),
        ("equivalence.sampled.gammas", [2]),
        ("equivalence.sampled.settings", []),
        ("equivalence.sampled.settings", [{"temperature": 0.0}]),
        ("equivalence.sampled.settings", [{"temperature": "hot"}]),
        ("equivalence.tolerance.window", 0),
        ("serving.gammas", [0, 1]),
        ("serving.gammas", [4, 2]),
        ("serving.gammas", []),
        ("serving.concurrency", [1, 1]),
        ("serving.tokens_per_request", 1),
        ("serving.confirm_blocks", 2),
        ("serving.confidence", 0.5),
        ("serving.limits.min_speedup", 0.9),
        ("serving.limits.max_memory_bytes", 0),
        ("serving.slo.tpot_s", 0),
        ("outcome.margin", 0),
        ("outcome.pairs", 132),
        ("outcome.samples", 7),
        ("outcome.max_cost_ratio", 0),
        ("outcome.concurrency", 0),
        ("outcome.sampling", {"temperature": 0.0}),
        ("bypass.min_acceptance", 1.1),
        ("bypass.max_draft_queue", -1),
        ("minimum_value.currency", ""),
    ],
)
def test_impossible_figures_are_refused(path: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        Policy.from_dict(changed(path, value))
    # objectives belong to routes too, so they are named from "slo" on
    field = refused.value.field
    assert field.startswith(path) or path.endswith(f".{field}")
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("margin", "alpha", "pairs"),
    [
        (0.05, 0.05, 52),
        (0.05, 0.025, 73),
        (0.03, 0.05, 88),
        (0.03, 0.025, 125),
        (0.02, 0.05, 133),
        (0.02, 0.025, 189),
        (0.01, 0.05, 268),
        (0.01, 0.025, 381),
    ],
)
def test_smallest_pairs_that_can_pass(margin: float, alpha: float, pairs: int) -> None:
    assert smallest_pairs(margin, alpha) == pairs


@pytest.mark.parametrize(
    ("path", "value"), [("share", 0.2), ("share", 0), ("power", 1.0), ("power", 0.3)]
)
def test_an_effect_nobody_can_declare_is_refused(path: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        Policy.from_dict(changed(f"equivalence.sampled.effect.{path}", value))
    assert caught.value.field == f"equivalence.sampled.effect.{path}"


def test_a_policy_may_declare_no_effect() -> None:
    document = load("production")
    del document["equivalence"]["sampled"]["effect"]
    assert Policy.from_dict(document).equivalence.sampled.effect is None
