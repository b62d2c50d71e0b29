"""The report of a pair of running servers: much is unknown, and nothing of it reads as a number."""

from __future__ import annotations

import copy
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain_cases
from fake_openai import Faults, fake_server
from gatekeeper_adapters.engines.openai_http.provider import HttpProvider
from shipped_policies import shipped_policy

from gatekeeper.core.decoding import GREEDY
from gatekeeper.core.policy_schema import Policy
from gatekeeper.core.running_pair import pair_document
from gatekeeper.core.verdicts import to_json
from gatekeeper.gates import servers_equivalence
from gatekeeper.reports.route_claims import derived, judged
from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_report import lay_out
from gatekeeper.worker.progress import Tracker
from gatekeeper.worker.run import ClaimedRun
from gatekeeper.worker.runner import measure

if TYPE_CHECKING:
    from reported import Reported


def policy() -> Policy:
    document = shipped_policy("demo")
    document["equivalence"] |= {"tokens_per_request": 8}
    document["equivalence"]["sampled"] |= {"min_tokens": 24, "max_tokens": 48}
    document["serving"] |= {
        "concurrency": [1],
        "tokens_per_request": 8,
        "requests_per_block": 1,
        "sweep_blocks": 1,
        "confirm_blocks": 5,
    }
    return Policy.from_dict(document)


def measured(document: dict[str, Any], gate: str) -> Any:
    provider = HttpProvider(loading_s=5.0, absent_s=0.2, pause_s=0.02)
    run = ClaimedRun(
        id=gate,
        gate=gate,
        route="prose",
        slice="prose",
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
    opened = provider.open(document, cache=Path(), max_batch=1, device="cpu")
    clock = time.monotonic
    return measure(run, opened, Tracker(clock), lambda: False, clock).result


def test_scored_tokens_are_never_said_to_be_untested(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    document["gates"]["equivalence"]["result"] = plain_cases.case("scored pass")["run"]["result"]
    document["claims"] = [c for c in document["claims"] if "equivalence.power." not in c["id"]]
    text = " ".join(render_html(lay_out(document)).split())
    assert "no sampled tokens were tested" not in text
    assert "a running server does not disclose those" in text


def test_sampled_texts_say_from_where_on_they_would_differ() -> None:
    parts = plain_cases.case("servers open")["run"]["result"]["parts"]
    (sampled,) = [part for part in parts if part["name"] == "sampled text"]
    assert "or less would be a difference" in sampled["detail"]


def test_no_difference_of_first_tokens_is_told_in_words() -> None:
    for across, words in ((0.0, "the very same log-probabilities"), (0.01, "at most 0.01 nats")):
        numbers = {"first_token_difference": across, "baseline_first_token_difference": 0.0}
        assert words in servers_equivalence._targets(numbers)


def test_what_servers_do_not_disclose_is_listed(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    version = HttpProvider().version()
    with fake_server() as baseline, fake_server() as candidate:
        candidate.faults = Faults(speculates=True)
        pair = pair_document(baseline.url, candidate.url, model=None, gamma=None, version=version)
        results = {gate: measured(pair, gate) for gate in ("equivalence", "serving")}
    claims: list[dict[str, Any]] = []
    for gate, result in results.items():
        entry = document["gates"][gate]
        entry |= {"run": gate, "outcome": str(result.outcome), "engine": None}
        entry["result"] = to_json(replace(result, claims=()))
        claims += [{**c.to_dict(), "id": f"run/{gate}/{c.id}"} for c in result.claims]
        claims += judged(gate, gate, entry["result"], {})
    claims += derived("prose", document["gates"])
    kept = [claim for claim in document["claims"] if "equivalence.power." not in claim["id"]]
    document["claims"] = kept + claims
    report = lay_out(document)
    assert report.unclaimed == ()
    text = " ".join(render_html(report).split())
    assert "prompts answered by both servers" in text
    assert "not run: no probabilities were at hand" in text
    assert text.count("Not disclosed by servers that already run") >= 2
    assert "The run recorded no memory ledger." in text
    assert "window up to unknown" not in text
    assert "none scored, size of the window not stated" in text
    assert text.count("1, candidate (window unknown)") == 1
    assert text.count("1, ordinary") == 2  # a row of the levels and one of the sweep
    assert "tokens of texts compared by two-sample tests, none scored" in text
    assert "no sampled tokens were tested" not in text
    assert "such tests miss mild faults" in text
    assert re.search(r">[^<]*\b(nan|None)\b[^<]*<", text) is None
