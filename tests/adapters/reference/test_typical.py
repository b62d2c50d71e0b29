"""Typical acceptance: another distribution than the target's, and everything that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine_driver import drive
from shipped_policies import shipped_policy
from tiny_drafters import TRIMMED, write_tiny_medusa
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import GREEDY, DecodeRequest, SamplingSettings, TokenPrompt
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import Incompatible
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.tree import CandidateTree  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.typical import TYPICAL, Typical  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.uniforms import Numbers  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.verify import BONUS, CORRECTION  # noqa: E402 - as above

HOT = SamplingSettings(temperature=1.0)
TREE = {"tree": [3, 2]}


def judged(rows: dict[tuple[int, ...], list[float]], tree: CandidateTree, seed: int = 0) -> Any:
    return TYPICAL.verify(
        lambda _, tokens: torch.tensor(rows[tuple(tokens)]), tree, Numbers(seed, 0, 4)
    )


def test_the_threshold_is_the_published_one() -> None:
    assert (TYPICAL.epsilon, TYPICAL.delta) == (0.09, 0.3)
    for row in ([1.0, 0.0, 0.0], [0.7, 0.2, 0.1], [0.25] * 4, [1 / 500] * 500):
        p = np.array(row)
        entropy = -sum(x * np.log(x) for x in p if x > 0)
        wanted = min(0.09, 0.3 * np.exp(-entropy))
        assert TYPICAL.threshold(torch.tensor(row)) == pytest.approx(wanted, rel=1e-5)
    # of 500 equally likely tokens the threshold is 0.3 / 500: each of them is typical
    assert Typical().threshold(torch.full((500,), 1 / 500)) == pytest.approx(0.0006)


SURE, OPEN = [0.05, 0.05, 0.85, 0.05], [0.4, 0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("tree", "path", "kind"),
    [
        (CandidateTree((2,), (-1,)), (0,), BONUS),
        (CandidateTree((0, 1), (-1, -1)), (), CORRECTION),
        # both accepted, equally long: the likelier one
        (CandidateTree((1, 2), (-1, -1)), (1,), BONUS),
        # a longer branch beats a likelier short one
        (CandidateTree((2, 3, 1), (-1, -1, 1)), (1, 2), BONUS),
        (CandidateTree((2, 3, 1), (-1, 0, 0)), (0, 1), BONUS),
    ],
)
def test_the_longest_typical_branch_is_taken_and_the_likeliest_of_those(
    tree: CandidateTree, path: tuple[int, ...], kind: int
) -> None:
    first = SURE if path in {(), (0,)} else [0.1, 0.15, 0.6, 0.15]
    rows = {(): first, (2,): [0.0, 0.1, 0.0, 0.9], (3,): OPEN, (1,): OPEN, (3, 1): OPEN}
    rows |= {(2, 3): OPEN, (2, 1): OPEN, (0,): OPEN}
    verdict = judged(rows, tree)
    assert (verdict.path, verdict.kind) == (path, kind)


def test_the_last_token_is_drawn_from_the_targets_distribution() -> None:
    tree = CandidateTree((0,), (-1,))
    rows = {(): SURE, (0,): OPEN}
    found = [judged(rows, tree, seed).token for seed in range(2000)]
    np.testing.assert_allclose(np.bincount(found, minlength=4) / 2000, SURE, atol=0.03)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("typical")
    target = write_tiny_llama(root / "target", seed=4)
    return target, write_tiny_medusa(root / "heads", target, ids=TRIMMED)


@pytest.fixture(scope="module")
def build(models: tuple[Path, Path]) -> Callable[..., Any]:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    def make(acceptance: str, kind: str = "medusa", **options: Any) -> Any:
        medusa = kind == "medusa"
        return load_engine(
            models[0],
            {"kind": kind, "parameters": TREE if medusa else {}},
            models[1] if medusa else None,
            version="test",
            acceptance=acceptance,
            options=Options(**{"max_batch": 8, "max_context": 256, **options}),
        )

    return make


@pytest.mark.parametrize("kind", ["medusa", "ngram"])
def test_greedy_requests_stay_exact(kind: str, build: Any) -> None:
    engine = build("typical", kind)
    assert engine.info.details["acceptance"] == "typical"
    for sampling in (GREEDY, SamplingSettings(repetition_penalty=1.3, forbidden_tokens=(4,))):
        plain, drafted = (
            drive(
                engine,
                [
                    DecodeRequest(f"r{i}", (i, 7, 9 * i), 24, sampling, gamma=gamma)
                    for i in range(4)
                ],
            ).tokens
            for gamma in (0, 2)
        )
        assert drafted == plain


def test_an_unknown_method_is_refused(build: Any) -> None:
    with pytest.raises(Incompatible) as refused:
        build("lenient")
    assert refused.value.field == "acceptance.method"
    assert "standard" in str(refused.value.remedy)


def policy() -> Any:
    demo = Policy.from_dict(shipped_policy("demo"))
    sampled = replace(demo.equivalence.sampled, min_tokens=300, max_tokens=1500, settings=(HOT,))
    greedy = replace(demo.equivalence.greedy, prompts=3)
    tolerance = replace(demo.equivalence.tolerance, window=0.15, bonus=0.2)
    budget = replace(
        demo.equivalence,
        sampled=sampled,
        greedy=greedy,
        tolerance=tolerance,
        tokens_per_request=24,
        max_batch=8,
    )
    return replace(demo, equivalence=budget, serving=replace(demo.serving, gammas=(2,)))


def gated(engine: Any, **acceptance: Any) -> Any:
    """The equivalence gate as a worker runs it."""
    run = ClaimedRun(
        id="run",
        gate="equivalence",
        route="route",
        slice="prose",
        artifact_digest="d" * 64,
        artifact={"gamma": 2, "proposer": {"kind": "medusa"}, "acceptance": acceptance},
        policy=policy(),
        parameters={},
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(HOT,),
        slo=None,
    )
    prompts = [TokenPrompt(f"p{i}", "prose", (3, 5 + i, 1)) for i in range(12)]
    ticks = iter(range(10**6))

    def clock() -> float:
        return float(next(ticks))

    return measure(run, engine, Tracker(clock), lambda: False, clock, prompts=prompts).result


def parts(result: Any) -> dict[str, Any]:
    return {part.name: part for part in result.parts}


def test_typical_acceptance_fails_as_exact(build: Any) -> None:
    """Registration refuses such an artifact; the gate would find it out without being told."""
    result = gated(build("typical"), method="standard", contract="exact")
    assert result.outcome is Outcome.FAIL
    assert parts(result)["strict e-process"].outcome is Outcome.FAIL
    assert parts(result)["greedy identity"].outcome is not Outcome.FAIL
    assert gated(build("standard"), method="standard", contract="exact").outcome is Outcome.PASS


def test_declared_approximate_it_passes_with_its_deviation_measured_and_printed(
    build: Any,
) -> None:
    engine = build("typical")
    declared = {"method": "typical", "contract": "approximate", "deviation": 0.6}
    result = gated(engine, **declared)
    assert result.outcome is Outcome.PASS
    found = parts(result)
    assert found["greedy identity"].outcome is Outcome.PASS
    assert found["strict e-process"].outcome is Outcome.FAIL  # it informs, and decides nothing
    assert not found["strict e-process"].mandatory
    assert result.summary["contract"] == "approximate"
    assert result.summary["admitted_deviation"] == 0.6
    measured = [row["deviation"] for row in result.summary["tolerance"]]
    largest = max(measured, key=abs)
    assert 0.1 < abs(largest) < 0.6
    assert f"{largest:+.4f} of 0.6" in found["tolerance"].detail
    claimed = [claim.value for claim in result.claims if "tolerance" in claim.id]
    assert claimed == pytest.approx(measured)


def test_more_deviation_than_declared_is_a_failure(build: Any) -> None:
    result = gated(build("typical"), method="typical", contract="approximate", deviation=0.12)
    assert result.outcome is Outcome.FAIL
    assert parts(result)["tolerance"].outcome is Outcome.FAIL
