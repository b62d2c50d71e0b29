"""Two servers whose tokens our own forward scores: real HTTP around small synthetic models."""

from __future__ import annotations

import io
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from byte_models import write_byte_llama
from engine_server import service_around, serving, serving_model
from gatekeeper_adapters.engines.openai_http.provider import HttpProvider
from gatekeeper_adapters.engines.reference.provider import PROVIDER as REFERENCE
from shipped_policies import shipped_policy

from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.running_pair import pair_document
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError, MissingExtra
from gatekeeper.gates import servers_equivalence
from gatekeeper.gates.equivalence import TABLES, check_continued
from gatekeeper.testing import FakeEngine
from gatekeeper.worker.engines import EngineCache
from gatekeeper.worker.evidence import decode, digest, encode
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gatekeeper.core.decoding import DecodeRequest

pytestmark = pytest.mark.torch  # the engine's own server is part of that extra

PROVIDER = HttpProvider(loading_s=5.0, absent_s=0.2, pause_s=0.02)
SHAPE: dict[str, Any] = {"agreement": 0.3, "order": 1, "max_context": 4096}
WEIGHTS = {
    "engine": "fake",
    "source": "file:/models/target",
    "revision": None,
    "files": {"model": "0" * 64},
    "tokenizer": "1" * 64,
    "vocab_size": 32,
}


class Hot(FakeEngine):
    """Samples at another temperature than it is asked for; greedy text is right."""

    def submit(self, request: DecodeRequest) -> None:
        hot = replace(request.sampling, temperature=2.5 * request.sampling.temperature)
        super().submit(replace(request, sampling=hot))


class OneSeed(FakeEngine):
    """Draws every answer with one seed, whatever it is asked for."""

    def submit(self, request: DecodeRequest) -> None:
        super().submit(replace(request, seed=7))


SERVERS: dict[str, Callable[[], FakeEngine]] = {
    "plain": lambda: FakeEngine(**SHAPE),
    "exact": lambda: FakeEngine(**SHAPE),
    "hot": lambda: Hot(**SHAPE),
    "hot too": lambda: Hot(**SHAPE),
    "one seed": lambda: OneSeed(**SHAPE),
    "correction": lambda: FakeEngine(**SHAPE, fault="correction_from_q"),
    "other model": lambda: FakeEngine(**SHAPE, model_seed=1),
}


def policy(tolerance: float = 0.2) -> Policy:
    document = shipped_policy("demo")
    document["equivalence"]["greedy"] |= {"prompts": 2}
    document["equivalence"]["sampled"] |= {"min_tokens": 160, "max_tokens": 300}
    document["equivalence"]["tolerance"] |= {"window": tolerance, "bonus": tolerance}
    return Policy.from_dict(document)


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """All of ``SERVERS``; all but the first speculate."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                serving(service_around(make(), waiting=32, gamma=0 if name == "plain" else 2))
            )
            for name, make in SERVERS.items()
        }


def measured(
    baseline: str,
    candidate: str,
    *,
    scorer: Callable[[ClaimedRun], Any] = lambda _: FakeEngine(**SHAPE),
    weights: dict[str, Any] | None = WEIGHTS,
    gamma: int | None = 2,
    rules: Policy | None = None,
    before: dict[str, bytes] | None = None,
    **parameters: Any,
) -> tuple[Any, dict[str, pd.DataFrame]]:
    document = pair_document(
        baseline, candidate, model=None, gamma=gamma, version=PROVIDER.version(), weights=weights
    )
    claim = ClaimedRun(
        id="run",
        gate="equivalence",
        route="prose",
        slice="prose",
        artifact_digest="d" * 64,
        artifact=document,
        policy=rules or policy(),
        parameters=parameters,
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(GREEDY,),
        slo=None,
    )
    opened = PROVIDER.open(document, cache=Path(), max_batch=1, device="cpu")
    found = measure(
        claim,
        opened,
        Tracker(time.monotonic),
        lambda: False,
        time.monotonic,
        scorer=lambda: scorer(claim),
        fetch=lambda _, name, sha256: decode((before or {})[name], name=name, sha256=sha256),
    )
    tables = {name: pd.read_parquet(io.BytesIO(data)) for name, data in found.files.items()}
    checked = verify(found.result.claims, lambda table, _: tables[table])
    assert checked
    assert all(row.agrees for row in checked), [row.reason for row in checked if not row.agrees]
    if found.rates is not None and "calibration" in tables:  # tokens were scored, behind prompts
        assert (found.rates.read_tokens_per_s or 0) > found.rates.score_tokens_per_s
    return found.result, tables


def absent(_: ClaimedRun) -> Any:
    raise MissingExtra("engine fake is not on this worker")


def outcomes(result: Any) -> dict[str, Outcome]:
    return {part.name: part.outcome for part in result.parts if part.mandatory}


def test_an_exact_pair_passes_by_our_own_forward(urls: dict[str, str]) -> None:
    result, tables = measured(urls["plain"], urls["exact"])
    assert result.outcome is Outcome.PASS, [part.detail for part in result.parts]
    assert set(outcomes(result)) == {"greedy identity", "strict e-process", "tolerance"}
    scoring = result.summary["scoring"]
    assert scoring["rule"] == "own forward"
    assert scoring["tokens"] == result.summary["tokens"] >= 160
    assert scoring["blind"]
    assert {row["stratum"] for row in result.summary["tolerance"]} == {"all"}
    assert result.summary["gamma"] == 2
    assert result.summary["design"]["declared_effect"] is None
    assert set(TABLES) <= set(tables), "it could not be gone on from"
    assert set(tables["answers"]["arm"]) == {"baseline", "candidate"}
    assert servers_equivalence.evaluate(policy().equivalence, tables).outcome is Outcome.PASS


def test_a_faulty_sampler_fails_by_our_own_forward(urls: dict[str, str]) -> None:
    result, _ = measured(urls["plain"], urls["hot"], gamma=None)
    assert result.outcome is Outcome.FAIL, [part.detail for part in result.parts]
    assert outcomes(result)["server without a draft"] is Outcome.PASS
    assert outcomes(result)["greedy identity"] is Outcome.PASS
    assert result.summary["counter_example"]["target_probability"] is not None
    assert result.summary["gamma"] is None
    assert result.still_needed is None


def test_a_greedy_fault_fails_by_its_deficit(urls: dict[str, str]) -> None:
    result, tables = measured(urls["plain"], urls["correction"])
    assert outcomes(result)["greedy identity"] is Outcome.FAIL
    assert result.summary["counter_example"]["deficit"] > 0
    assert len(tables["answers"]) <= 10, "it went on after its verdict"


@pytest.mark.model  # its parts are shown without servers: not among the fast tests
def test_an_alarm_that_the_baseline_raises_too_is_not_the_drafts(urls: dict[str, str]) -> None:
    result, _ = measured(urls["hot"], urls["hot too"])
    assert result.outcome is Outcome.ERROR, [part.detail for part in result.parts]
    assert outcomes(result)["server without a draft"] is Outcome.ERROR
    assert "without a draft raises an alarm too" in result.parts[1].detail
    assert result.summary["counter_example"] is None


@pytest.mark.model  # its parts are shown without servers: not among the fast tests
def test_another_model_has_no_baseline(urls: dict[str, str]) -> None:
    result, _ = measured(urls["other model"], urls["exact"])
    assert result.outcome is Outcome.ERROR
    assert outcomes(result)["greedy identity"] is Outcome.ERROR


@pytest.mark.parametrize("without", ["weights", "engine"])
def test_texts_have_to_do_where_the_weights_are_not_at_hand(
    urls: dict[str, str], without: str
) -> None:
    options: dict[str, Any] = {"weights": None} if without == "weights" else {"scorer": absent}
    result, tables = measured(urls["plain"], urls["exact"], **options)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.summary["scoring"]["rule"] == "two-sample"
    why = {"weights": "no target's files are declared", "engine": "is not on this worker"}
    assert why[without] in result.summary["scoring"]["why"]
    assert outcomes(result)["sampled text"] is Outcome.PASS
    assert "context" not in tables


def test_a_run_that_was_scored_is_not_gone_on_from_by_texts(urls: dict[str, str]) -> None:
    evidence = dict.fromkeys(TABLES, "0" * 64)

    with pytest.raises(InputError, match="cannot be gone on from: engine fake"):
        measured(
            urls["plain"],
            urls["exact"],
            scorer=absent,
            continues={"run": "before", "evidence": evidence},
        )


def test_an_open_run_is_gone_on_from_with_other_requests(urls: dict[str, str]) -> None:
    rules = policy(tolerance=0.06)  # 1,000 tokens and more
    open_, first = measured(urls["plain"], urls["exact"], rules=rules)
    assert open_.outcome is Outcome.INCONCLUSIVE
    assert open_.summary["tokens_needed"] > 0
    files = {name: encode(first[name]) for name in TABLES}
    evidence = {name: digest(data) for name, data in files.items()}
    more, second = measured(
        urls["plain"],
        urls["exact"],
        rules=rules,
        before=files,
        continues={"run": "before", "evidence": evidence},
    )
    (link,) = more.summary["continues"]
    assert (link["run"], link["tokens"]) == ("before", open_.summary["tokens"])
    assert more.summary["tokens"] >= 2 * link["tokens"] - 40
    drawn = second["requests"].groupby("request").size()
    assert len(drawn) == len(second["requests"]), "a request was drawn twice"
    check_continued({"run": "before", "evidence": evidence}, second, lambda name, _: first[name])


def test_a_seed_that_is_ignored_fails_by_samples_alone(urls: dict[str, str]) -> None:
    result, _ = measured(urls["plain"], urls["one seed"], weights=None)
    assert outcomes(result)["sampled text"] is Outcome.FAIL
    assert outcomes(result)["greedy text"] is not Outcome.FAIL
    assert result.outcome is Outcome.FAIL
    assert result.summary["counter_example"] is None


@pytest.mark.model  # a tiny one, but the whole gate: not among the fast tests
def test_the_reference_engine_scores_what_its_own_servers_say(tmp_path: Path) -> None:
    folder = write_byte_llama(tmp_path / "target")
    manifest = REFERENCE.manifest(f"file:{folder}", cache=tmp_path)
    names = ("source", "revision", "files", "tokenizer", "vocab_size")
    weights = {"engine": "reference", **{name: manifest[name] for name in names}}
    engines = EngineCache({"reference": REFERENCE}, tmp_path)
    with (
        serving_model(folder, gamma=0, context=2048) as (baseline, _),
        serving_model(folder, context=2048) as (candidate, _),
    ):
        result, tables = measured(baseline, candidate, weights=weights, scorer=engines.scorer)
    engines.close()
    assert result.summary["scoring"]["rule"] == "own forward", result.summary["scoring"]
    assert outcomes(result)["strict e-process"] is Outcome.PASS
    assert outcomes(result)["greedy identity"] is Outcome.PASS
    assert len(tables["calibration"]) == 40
    gaps = (tables["calibration"]["served"] - tables["calibration"]["own"]).abs()
    assert gaps.max() < 1e-3


@pytest.mark.model  # its parts are shown without servers: not among the fast tests
def test_files_that_nobody_can_read_here_are_no_scorer(urls: dict[str, str]) -> None:
    engines = EngineCache({}, Path())
    result, _ = measured(urls["plain"], urls["exact"], scorer=engines.scorer)
    assert "engine fake, which reads the declared files" in result.summary["scoring"]["why"]
