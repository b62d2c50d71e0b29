"""Gates on servers that already run, against small fake servers with faults."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from fake_openai import FakeServer, Faults, fake_server
from gatekeeper_adapters.engines.openai_http.provider import HttpProvider
from shipped_policies import shipped_policy

from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.equations import verify
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.running_pair import pair_document
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import InputError, Unauthorized, Unavailable
from gatekeeper.gates import servers_serving
from gatekeeper.worker.measured import Cancelled
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER = HttpProvider(loading_s=5.0, absent_s=0.2, pause_s=0.02)


def policy() -> Policy:
    document = shipped_policy("demo")
    document["equivalence"] |= {"tokens_per_request": 8}
    document["equivalence"]["sampled"] |= {"min_tokens": 24, "max_tokens": 10 * 8 * 3}
    document["serving"] |= {
        "concurrency": [1],
        "tokens_per_request": 8,
        "requests_per_block": 1,
        "sweep_blocks": 1,
        "confirm_blocks": 5,
    }
    return Policy.from_dict(document)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    with fake_server() as baseline, fake_server() as candidate:
        yield baseline, candidate


@pytest.fixture
def pair(servers: tuple[FakeServer, FakeServer]) -> tuple[FakeServer, FakeServer]:
    baseline, candidate = servers
    for server, faults in ((baseline, Faults()), (candidate, Faults(speculates=True))):
        server.faults = faults
        server.answered = 0
        server.bodies.clear()
    return servers


def claimed(pair: Any, gate: str, *, gamma: int | None = 4, model: str | None = None) -> ClaimedRun:
    document = pair_document(
        pair[0].url, pair[1].url, model=model, gamma=gamma, version=PROVIDER.version()
    )
    return ClaimedRun(
        id="run",
        gate=gate,
        route="calls",
        slice="tool_calls",
        artifact_digest="d" * 64,
        artifact=document,
        policy=policy(),
        parameters={},
        attempt=1,
        fence=1,
        cancel_requested=False,
        sampling=(GREEDY,),
        slo=None,
    )


def run(pair: Any, gate: str, *, cancelled: Any = lambda: False, **options: Any) -> Any:
    claim = claimed(pair, gate, **options)
    opened = PROVIDER.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")
    found = measure(claim, opened, Tracker(time.monotonic), cancelled, time.monotonic)
    tables = {name: pd.read_parquet(io.BytesIO(data)) for name, data in found.files.items()}
    checked = verify(found.result.claims, lambda table, _: tables[table])
    assert checked
    assert all(row.agrees for row in checked), [row.reason for row in checked if not row.agrees]
    return found


def calm(found: Any) -> Any:
    """The verdict with a healthy client: server and client share this process, and its lag."""
    tables = {name: pd.read_parquet(io.BytesIO(data)) for name, data in found.files.items()}
    health = tables["health"].assign(lag_p95_s=0.001)
    return servers_serving.evaluate(policy().serving, {**tables, "health": health})


def part(result: Any, name: str) -> Any:
    return next(part for part in result.parts if part.name == name)


def test_equal_texts_are_inconclusive_and_say_what_is_missing(pair: Any) -> None:
    result = run(pair, "equivalence").result
    assert result.outcome is Outcome.INCONCLUSIVE
    assert part(result, "greedy text").outcome is Outcome.PASS
    missing = [one["what"] for one in result.summary["missing"]]
    assert missing == [
        "weights of both servers",
        "version of both servers",
        "gamma",
        "acceptance method and sampler",
        "tokenizer and chat template",
        "sampled distribution",
    ]
    assert all(part(result, name).outcome is Outcome.INCONCLUSIVE for name in missing)
    assert all(name in result.still_needed for name in missing)
    assert result.summary["gamma"] == 4
    assert "7 and 7" in part(result, "version of both servers").detail


def test_lossy_text_fails_with_its_first_departure(pair: Any) -> None:
    pair[1].set(lossy=True)
    result = run(pair, "equivalence").result
    assert result.outcome is Outcome.FAIL
    assert result.summary["counter_example"]["position"] == 5
    assert result.summary["greedy"]["mismatches"] == 10
    assert result.still_needed is None


def test_lossy_text_fails_without_log_probabilities(pair: Any) -> None:
    pair[0].set(logprobs=False)
    pair[1].set(lossy=True)
    result = run(pair, "equivalence").result
    assert result.outcome is Outcome.FAIL
    assert "no log-probabilities" in part(result, "greedy text").detail


def test_near_ties_are_no_fault(pair: Any) -> None:
    pair[1].set(tie_every=3)
    result = run(pair, "equivalence").result
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.summary["greedy"]["ties"] == result.summary["greedy"]["differing"] > 0
    assert part(result, "greedy text").outcome is Outcome.PASS


def test_near_ties_without_log_probabilities_are_undecided(pair: Any) -> None:
    pair[0].set(logprobs=False)
    pair[1].set(tie_every=3)
    result = run(pair, "equivalence").result
    assert part(result, "greedy text").outcome is Outcome.INCONCLUSIVE
    assert result.summary["greedy"]["undecided"] == result.summary["greedy"]["differing"] > 0


def test_a_text_api_without_chat_is_used_with_the_prompt_as_it_is(pair: Any) -> None:
    for server in pair:
        server.set(chat=False)
    pair[1].set(lossy=True)
    assert run(pair, "equivalence").result.outcome is Outcome.FAIL
    assert pair[0].bodies[-1]["prompt"].startswith("<|im_start|>system\n")


def test_a_faster_candidate_passes_serving_and_its_drafts_are_counted(pair: Any) -> None:
    pair[0].set(token_s=0.04)
    pair[1].set(token_s=0.02)
    result = calm(run(pair, "serving"))
    assert result.outcome is Outcome.PASS, [p.detail for p in result.parts]
    region = result.summary["regions"][0]
    assert region["speedup"]["low"] > 1
    assert region["gamma"] == 4
    assert result.summary["gamma_by_concurrency"] == {"1": 4}
    (row,) = result.summary["acceptance_matrix"]
    assert (row["acceptance_rate"], row["drafted_per_round"]) == (0.5, 4.0)
    assert result.summary["memory"] == {}
    assert region["memory_peak_bytes"] is None


def test_an_unknown_window_is_never_a_number(pair: Any) -> None:
    pair[0].set(token_s=0.04)
    pair[1].set(token_s=0.02)
    result = calm(run(pair, "serving", gamma=None))
    assert result.outcome is Outcome.PASS, [p.detail for p in result.parts]
    assert result.summary["gamma_by_concurrency"] == {"1": None}
    assert {row["gamma"] for row in result.summary["surfaces"]} == {None, 0}
    assert "not declared" in part(result, "gamma").detail


def test_unknown_drafts_are_none(pair: Any) -> None:
    pair[1].set(metrics=False)
    result = calm(run(pair, "serving"))
    assert part(result, "candidate speculates").outcome is Outcome.INCONCLUSIVE
    assert result.summary["acceptance_matrix"][0]["acceptance_rate"] is None


def test_a_late_first_token_is_a_slower_ttft_and_no_slower_tpot(pair: Any) -> None:
    pair[1].set(first_token_s=0.2)
    pair[0].set(token_s=0.04)
    result = calm(run(pair, "serving"))
    region = result.summary["regions"][0]
    assert region["checks"]["ttft"] == "FAIL"
    assert region["checks"]["speedup"] == "PASS"
    assert result.outcome is Outcome.FAIL


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_usage_that_contradicts_the_stream_voids_the_run(pair: Any, factor: float) -> None:
    pair[1].set(usage_factor=factor, speculates=False)
    result = calm(run(pair, "serving"))
    assert result.outcome is Outcome.ERROR
    assert part(result, "usage").outcome is Outcome.ERROR
    assert "usage" in result.still_needed


def test_a_baseline_that_speculates_is_no_baseline(pair: Any) -> None:
    pair[0].set(speculates=True)
    result = calm(run(pair, "serving"))
    assert result.outcome is Outcome.ERROR
    assert part(result, "baseline decodes alone").outcome is Outcome.ERROR


def test_a_candidate_that_drafts_nothing_proves_nothing(pair: Any) -> None:
    pair[0].set(token_s=0.04)
    pair[1].set(speculates=False, counts_drafts=True)
    result = calm(run(pair, "serving"))
    assert result.summary["regions"][0]["outcome"] == "PASS"
    assert part(result, "candidate speculates").outcome is Outcome.INCONCLUSIVE
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.summary["gamma_by_concurrency"] == {}


def test_a_server_that_drops_every_stream_ends_the_run(pair: Any) -> None:
    claim = claimed(pair, "serving")
    opened = PROVIDER.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")
    pair[1].set(drops=True)
    with pytest.raises(Unavailable, match="dropped"):
        measure(claim, opened, Tracker(time.monotonic), lambda: False, time.monotonic)


def test_a_cancelled_run_leaves(pair: Any) -> None:
    with pytest.raises(Cancelled):
        run(pair, "equivalence", cancelled=lambda: pair[0].answered > 8)


def test_the_outcome_gate_needs_an_engine(pair: Any) -> None:
    with pytest.raises(InputError, match="gate=outcome"):
        run(pair, "outcome")


def test_a_server_that_loads_is_waited_for(pair: Any) -> None:
    pair[0].set(loading=3)
    claim = claimed(pair, "equivalence")
    opened = PROVIDER.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")
    assert opened.baseline.info.readings["version"] == "7"


@pytest.mark.parametrize(
    ("side", "changes", "model", "expected"),
    [
        (1, {"loading": 10**6}, None, (Unavailable, "candidate_url=.*503.*wait")),
        (0, {"key": "secret"}, None, (Unauthorized, "baseline_url=.*GATEKEEPER_SERVERS_KEY")),
        (0, {"models": ("a", "b")}, None, (InputError, "model: must be named.*--model.*a, b")),
        (1, {"models": ("a",)}, "other", (InputError, "model=other.*--model with one of fake")),
        (0, {"no_usage": True}, None, (InputError, "baseline_url=.*no usage.*include_usage")),
        (0, {"drops": True}, None, (Unavailable, "baseline_url=.*dropped")),
        (0, {"error_after": 0}, None, (Unavailable, "baseline_url=.*503")),
    ],
)
def test_what_a_server_lacks_is_named(
    pair: Any, side: int, changes: Any, model: Any, expected: Any
) -> None:
    error, words = expected
    pair[side].set(**changes)
    claim = claimed(pair, "equivalence", model=model)
    quick = HttpProvider(loading_s=0.1, absent_s=0.1, pause_s=0.02)
    with pytest.raises(error, match=words):
        quick.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")


def test_a_wrong_address_is_named(pair: Any) -> None:
    class Nowhere:
        url = "http://127.0.0.1:9"

    claim = claimed((pair[0], Nowhere), "equivalence")
    with pytest.raises(Unavailable, match=r"candidate_url=http://127\.0\.0\.1:9: does not answer"):
        PROVIDER.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")


def test_the_key_is_sent_and_not_stored(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair[0].set(key="secret")
    monkeypatch.setenv("GATEKEEPER_SERVERS_KEY", "secret")
    claim = claimed(pair, "equivalence")
    opened = PROVIDER.open(claim.artifact, cache=Path(), max_batch=1, device="cpu")
    assert "secret" not in repr(opened.info)


@pytest.fixture(scope="module")
def sound(servers: tuple[FakeServer, FakeServer]) -> dict[str, pd.DataFrame]:
    """Tables of one serving run on sound servers, to plant faults in."""
    servers[0].faults, servers[1].faults = Faults(token_s=0.04), Faults(speculates=True)
    files = run(servers, "serving").files
    tables = {name: pd.read_parquet(io.BytesIO(data)) for name, data in files.items()}
    return {**tables, "health": tables["health"].assign(lag_p95_s=0.001)}


def judged(sound: dict[str, pd.DataFrame], **changed: pd.DataFrame) -> Any:
    return servers_serving.evaluate(policy().serving, {**sound, **changed})


def test_sound_tables_pass(sound: Any) -> None:
    assert judged(sound).outcome is Outcome.PASS


@pytest.mark.parametrize("lag", [0.5, float("nan")])
def test_a_starved_client_voids_whatever_the_blocks_say(sound: Any, lag: float) -> None:
    health = sound["health"].assign(lag_p95_s=lag)
    result = judged(sound, health=health)
    assert result.outcome is Outcome.ERROR
    assert part(result, "client health").outcome is Outcome.ERROR
    assert result.summary["gamma_by_concurrency"] == {}
    assert result.summary["envelope"] is None
    assert "client health" in result.still_needed


def test_a_few_late_ticks_do_not(sound: Any) -> None:
    health = sound["health"].copy()
    health.loc[health.index[-1], "lag_p95_s"] = 0.5
    assert judged(sound, health=health).outcome is Outcome.PASS


def broken_off(table: pd.DataFrame, arm: str, n: int) -> pd.DataFrame:
    """The first ``n`` answers of an arm as the worker books a dropped stream."""
    rows = table.index[table["arm"] == arm][:n]
    table = table.copy()
    table.loc[rows, "reason"] = "dropped"
    table.loc[rows, ["tokens", "first_tokens"]] = 0
    table.loc[rows, "first_s"] = float("nan")
    return table


def test_lost_answers_are_never_passed_over(sound: Any) -> None:
    one = judged(sound, confirm=broken_off(sound["confirm"], "speculative", 1))
    assert one.outcome is Outcome.INCONCLUSIVE
    assert "1 of 6 of the candidate broke off (dropped 1)" in part(one, "complete answers").detail
    many = pd.concat(
        [sound["confirm"].assign(pair=lambda t, k=k: t["pair"] + 5 * k) for k in range(4)],
        ignore_index=True,
    )
    assert judged(sound, confirm=many).outcome is Outcome.PASS
    lossy = judged(sound, confirm=broken_off(many, "speculative", 15))
    assert lossy.outcome is Outcome.FAIL
    both = broken_off(broken_off(many, "speculative", 15), "ordinary", 15)
    assert judged(sound, confirm=both).outcome is Outcome.INCONCLUSIVE


def test_counters_that_are_unknown_for_one_block_make_no_total(sound: Any) -> None:
    drafts = sound["drafts"].copy()
    drafts.loc[drafts.index[-1], ["rounds", "drafted", "accepted"]] = pd.NA
    drafts["arm"] = "speculative"
    result = judged(sound, drafts=drafts)
    assert part(result, "candidate speculates").outcome is Outcome.INCONCLUSIVE
    assert result.outcome is Outcome.PASS
    assert result.summary["acceptance_matrix"][0]["acceptance_rate"] is None
