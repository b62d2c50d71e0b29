from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.claims import essay_claims
from gatekeeper.core.verdicts import GateResult, Outcome, Part, from_json, to_json, worst
from gatekeeper.errors import InputError, UnknownKey

ORDER = (Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.FAIL)
RESULT = GateResult(
    gate="serving",
    outcome=Outcome.PASS,
    parts=(
        Part("concurrency 1", Outcome.PASS, "Faster.", mandatory=False, figures={"pairs": 6}),
        Part("memory", Outcome.INCONCLUSIVE, "Not measured."),
    ),
    summary={"gamma_by_concurrency": {"1": 4}, "regions": [{"low": 1.1}]},
    claims=essay_claims()[:2],
    still_needed="more blocks",
)


@pytest.mark.parametrize(("one", "other"), list(product(range(4), repeat=2)))
def test_the_worse_of_two_wins(one: int, other: int) -> None:
    assert worst([ORDER[one], ORDER[other]]) is ORDER[max(one, other)]


@given(st.lists(st.sampled_from(Outcome)))
def test_pass_needs_everything_to_pass(outcomes: list[Outcome]) -> None:
    passed = bool(outcomes) and all(o is Outcome.PASS for o in outcomes)
    assert (worst(outcomes) is Outcome.PASS) is passed


def test_nothing_is_inconclusive_and_cancelled_only_withholds() -> None:
    assert worst([]) is Outcome.INCONCLUSIVE
    assert worst([Outcome.CANCELLED]) is Outcome.CANCELLED
    assert worst([Outcome.PASS, Outcome.CANCELLED]) is Outcome.CANCELLED
    assert worst([Outcome.FAIL, Outcome.CANCELLED]) is Outcome.FAIL


def test_results_survive_json() -> None:
    assert from_json(json.loads(json.dumps(to_json(RESULT)))) == RESULT


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"score": 1}, UnknownKey, r"result\.score"),
        ({"outcome": "OK"}, InputError, r"result\.outcome=OK"),
        ({"gate": "beauty"}, InputError, "gate=beauty"),
        ({"parts": [{"name": "x", "outcome": "PASS"}]}, InputError, r"result\.parts\[0\]\.detail"),
        (
            {"parts": [{"name": "x", "outcome": "good", "detail": ""}]},
            InputError,
            r"result\.parts\[0\]\.outcome=good",
        ),
        ({"claims": [{"id": "x"}]}, InputError, r"claim\.equation"),
    ],
)
def test_bad_results_are_refused(change: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        from_json({**to_json(RESULT), **change})


@pytest.mark.parametrize("name", ["gate", "outcome", "parts"])
def test_half_a_result_is_refused(name: str) -> None:
    document = to_json(RESULT)
    del document[name]
    with pytest.raises(InputError, match=f"result.{name}"):
        from_json(document)
