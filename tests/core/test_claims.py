from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import gatekeeper.core
from gatekeeper.core.acceptance import Round, rounds_frame
from gatekeeper.core.claims import Claim, equation, essay_claims, recompute, verify
from gatekeeper.core.equations import EQUATIONS, MODULES
from gatekeeper.errors import EvidenceError, InputError, NotFound, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Callable

PRINTED = {
    "essay.progress.high": "3.3616",
    "essay.progress.low": "1.5304",
    "essay.ordinary.high": "73.96",
    "essay.ordinary.low": "33.67",
    "essay.speedup.high": "2.64",
    "essay.speedup.low": "0.72",
    "essay.marginal.fifth": "0.03125",
    "essay.task.after": "4400",
    "essay.task.improvement": "0.12",
}
ESSAY = {claim.id: claim for claim in essay_claims()}


@pytest.mark.parametrize("claim_id", PRINTED)
def test_the_essay_is_recomputed_to_all_printed_digits(claim_id: str) -> None:
    (checked,) = verify([ESSAY[claim_id]])
    digits = len(PRINTED[claim_id].partition(".")[2])
    assert f"{checked.recomputed:.{digits}f}" == PRINTED[claim_id]
    assert checked.agrees
    assert checked.reason is None
    assert checked.claim.status == "illustrative"


def test_the_ledger_holds_the_examples_and_nothing_else() -> None:
    assert set(ESSAY) == set(PRINTED)


def other(value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, next(iter(value)): next(iter(value.values())) + 1}
    return f"{value}x" if isinstance(value, str) else value * 1.001 + 1


@pytest.mark.parametrize(
    ("claim_id", "name"), [(c.id, name) for c in essay_claims() for name in c.inputs]
)
def test_any_changed_input_is_named(claim_id: str, name: str) -> None:
    claim = ESSAY[claim_id]
    tampered = replace(claim, inputs={**claim.inputs, name: other(claim.inputs[name])})
    results = verify([tampered, *[c for c in ESSAY.values() if c.id != claim_id]])
    (bad,) = [r for r in results if not r.agrees]
    assert bad.claim.id == claim_id
    assert bad.cause == "input_changed"
    assert claim_id in bad.reason
    assert name in bad.reason


@pytest.mark.parametrize("claim_id", PRINTED)
@pytest.mark.parametrize("factor", [1.0001, 1 + 1e-8])
def test_a_changed_value_is_named(claim_id: str, factor: float) -> None:
    claim = ESSAY[claim_id]
    (bad,) = verify([replace(claim, value=claim.value * factor)])
    assert not bad.agrees
    assert bad.cause == "value_changed"
    assert claim_id in bad.reason


def test_a_changed_print_is_named() -> None:
    (bad,) = verify([replace(ESSAY["essay.speedup.high"], printed="2.65")])
    assert (bad.agrees, bad.cause) == (False, "value_changed")


def test_the_essay_cannot_be_moved_to_another_equation() -> None:
    claim = replace(
        ESSAY["essay.progress.high"], equation="progress.marginal_from_curve",
        inputs={"conditional_acceptance": [1.0], "position": 1}, value=1.0, printed="1",
    )  # fmt: skip
    (bad,) = verify([claim])
    assert (bad.agrees, bad.cause) == (False, "input_changed")


def measured(value: Any = 0.5, **inputs: Any) -> Claim:
    return Claim(
        id="run/1/acceptance",
        equation="acceptance.rate",
        inputs={"table": "rounds", "evidence": "d" * 64, **inputs},
        value=value,
        unit="share",
        status="measured",
        source="serving gate",
    )


def evidence(accepted: int = 2) -> pd.DataFrame:
    rows = [Round("r", i, 4, 4, accepted, None, 3, 0, 0, 0, 0, 0, 1, 1) for i in range(3)]
    return rounds_frame(rows)


def test_evidence_is_asked_for_by_table_and_digest() -> None:
    asked = []

    def load(table: str, digest: str | None) -> Any:
        asked.append((table, digest))
        return evidence()

    (good,) = verify([measured()], load)
    assert good.agrees
    assert asked == [("rounds", "d" * 64)]
    assert recompute(measured(gamma=4), load) == 0.5


def failing(error: type[Exception]) -> Callable[[str, str | None], pd.DataFrame]:
    def load(table: str, digest: str | None) -> Any:
        raise error("no", field=table, value=digest)

    return load


@pytest.mark.parametrize(
    ("load", "cause"),
    [
        (lambda table, digest: evidence(accepted=3), "value_changed"),
        (failing(EvidenceError), "evidence_changed"),
        (failing(NotFound), "evidence_missing"),
        (lambda table, digest: pd.DataFrame({"x": [1]}), "not_computable"),
        (lambda table, digest: evidence()[:0], "not_computable"),
    ],
)
def test_changed_and_missing_evidence_is_named(load: Any, cause: str) -> None:
    (bad,) = verify([measured()], load)
    assert (bad.agrees, bad.cause) == (False, cause)
    assert "run/1/acceptance" in bad.reason


def test_without_a_loader_evidence_is_missing() -> None:
    (bad,) = verify([measured()])
    assert (bad.agrees, bad.cause, bad.recomputed) == (False, "evidence_missing", None)


@pytest.mark.parametrize(
    "claim",
    [
        replace(measured(), equation="progress.unheard_of"),
        replace(measured(), inputs={}),
        measured(gammma=4),
        replace(ESSAY["essay.progress.high"], id="x", inputs={"alpha": "high", "gamma": 4}),
        replace(ESSAY["essay.progress.high"], id="x", inputs={"alpha": 2.0, "gamma": 4}),
        replace(
            measured(),
            equation="latency.relative_saving",
            inputs={"before": 1.0, "after": float("inf")},
        ),
    ],
)
def test_what_cannot_be_computed_does_not_agree(claim: Claim) -> None:
    (bad,) = verify([claim], lambda table, digest: evidence())
    assert (bad.agrees, bad.cause) == (False, "not_computable")
    assert claim.id in bad.reason


@pytest.mark.parametrize("claim", [*essay_claims(), measured()], ids=lambda c: c.id)
def test_claims_survive_json(claim: Claim) -> None:
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim
    (checked,) = verify([claim])
    assert list(checked.to_dict())[:7] == list(claim.to_dict())[:7]
    assert {"recomputed", "agrees"} <= set(checked.to_dict())


def test_claim_documents_are_strict() -> None:
    document = measured().to_dict()
    with pytest.raises(UnknownKey, match=r"claim\.note"):
        Claim.from_dict({**document, "note": 1})
    with pytest.raises(InputError, match=r"claim\.unit"):
        Claim.from_dict({k: v for k, v in document.items() if k != "unit"})
    with pytest.raises(InputError, match="status"):
        Claim.from_dict({**document, "status": "hoped"})


def test_an_equation_has_one_function() -> None:
    with pytest.raises(InputError, match="registered twice"):
        equation("progress.expected")(lambda alpha: alpha)


def test_equations_module_knows_every_equation() -> None:
    for module in pkgutil.walk_packages(gatekeeper.core.__path__, "gatekeeper.core."):
        importlib.import_module(module.name)
    homes = {known.function.__module__ for known in EQUATIONS.values()}
    assert homes == {module.__name__ for module in MODULES}
