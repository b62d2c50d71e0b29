"""The detection stage: its rivals are real tests, and its promise can be broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmark_scripts import FOLDER, script
from faults.benign import CONTROLS
from faults.catalogue import FAULTS
from faults.markov import MarkovLM
from faults.sampler import Sampler
from faults.synthetic import decode_with

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.core.stats.evidence import RequestEvidence


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return script("equivalence")


def texts(fault: str | None, seed: int, gamma: int = 4) -> list[RequestEvidence]:
    lm = MarkovLM.make(np.random.default_rng(3), vocabulary=40, contexts=256, noise=1.2)
    sampler = Sampler if fault is None else FAULTS[fault].sampler
    rng = np.random.default_rng(seed)
    return decode_with(sampler, lm, rng, requests=160, tokens=16, gamma=gamma, prompts=4)


def test_each_rival_tells_a_coarse_fault_from_exact_decoding() -> None:
    rivals = script("rivals")
    exact, faulty, ordinary = texts(None, 0), texts("argmax_draft", 1), texts(None, 2, gamma=0)
    rng = np.random.default_rng(0)
    for test in (rivals.per_prompt, rivals.two_sample):
        assert test(exact, ordinary) > 0.001 >= test(faulty, ordinary)
    assert rivals.hamming(exact, ordinary, length=16, rng=rng) > 0.001
    assert rivals.hamming(faulty, ordinary, length=16, rng=rng) <= 0.001
    looks = (256, 512, 1024, 2048)
    assert rivals.group_sequential(exact, looks, alpha=0.001) == np.inf
    assert rivals.group_sequential(faulty, looks, alpha=0.001) <= 2048


def test_sparse_bins_are_merged_and_never_dropped() -> None:
    rivals = script("rivals")
    common = np.repeat([0, 1], 200)
    rare = np.arange(2, 52)  # fifty ids of one token each in this arm, none in the other
    assert rivals._homogeneity(np.concatenate([common, rare]), common) < 1e-6
    assert rivals._homogeneity(common, common) == 1.0
    assert rivals._homogeneity(rare, rare) == 1.0


def row(reference: float | None, median: float | None, not_found: int = 0) -> dict[str, Any]:
    return {"reference": reference, "bank": {"median": median}, "not_found": not_found}


def test_the_promise_is_found_by_every_seed_within_one_and_a_half_times(bench: Any) -> None:
    assert bench.holds(row(100, 150))
    assert not bench.holds(row(100, 151))
    assert not bench.holds(row(100, 90, not_found=1))
    assert not bench.holds(row(100, None, not_found=15))
    assert bench.holds(row(4000, None, not_found=15))
    assert bench.holds(row(None, 5000))
    assert not bench.holds(row(None, None))


def test_sizes_are_those_of_half_and_nine_tenths_of_the_seeds(bench: Any) -> None:
    assert bench._quantiles([5, 1, 4, 2, 3, 6, 7, 8, 9, 10, np.inf]) == {"median": 6, "90 %": 10}
    assert bench._quantiles([1, np.inf, np.inf])["median"] is None
    hits = [[False, True], [True, True], [True, False], [False, False], [True, True], [True, True]]
    assert bench._smallest(hits, 0.5) == bench.SIZES[0]
    assert bench._smallest(hits, 0.9) == bench.SIZES[1]
    assert bench._smallest([[False]] * 6, 0.5) is None


def test_the_page_shows_every_figure_it_has(bench: Any, tmp_path: Path) -> None:
    page = script("detection_page")
    found = {"median": 93.0, "90 %": 1210.0}
    none = {"median": None, "90 %": None}
    one = {"fault": "bonus_from_q", "setting": "plain", "source": "x", "reference": 852}
    one |= {"not_found": 0, **dict.fromkeys(page.TESTS, none), "bank": found}
    parts = {
        "faults-1": {"rows": [one]},
        "exact-1": {"runs": 1000, "alarms": 1},
        "one-hot-exact": {"runs": 200, "failed": 0},
        "stopping": {"false_pass_continued": 0.01, "false_pass_restarted": 0.1, "bound": 0.05},
    }
    runs = [{"outcome": "FAIL", "tokens": 1234, "acceptance": 0.7}]
    runs += [{"outcome": "PASS", "tokens": 5000, "acceptance": None}]
    parts["real-bonus"] = {"real_fault": "bonus_from_q", "limit": 5000, "runs_of_seeds": runs}
    parts["gate-cost"] = {"ms_per_token": {"generation": 20.0, "bank": 1.5}, "ratio": 1.25}
    one_format = {
        "other": "bfloat16",
        "base": "float32",
        "bitwise": False,
        "sigma": 0.02,
        "tau": 0.2,
    }
    one_format |= {"differing": 1, "ties": 3, "faults": 0, "largest": 0.05}
    parts["formats"] = {"formats": [one_format]}
    document = {"commit": "0" * 40, "summary": bench.summary(list(parts.values())), "parts": parts}
    (tmp_path / "detection.json").write_text(json.dumps(document))
    text = page.write(tmp_path).read_text()
    assert "| bonus from q | 852 | 93 / 1,210 | — | — | — | — |" in text
    assert "exact: 1 alarms in 1,000 runs" in text
    assert "one hot exact: 0 FAIL in 200 runs" in text
    assert "0.010 pass where the sequence goes on" in text
    assert document["summary"]["promise_broken"] == []
    assert "bonus from q: FAIL in 1 of 2 seeds, after 1,234, 5,000 sampled tokens" in text
    assert "acceptance 0.70, unknown" in text
    assert "ms of CPU time a token: generation 20.00, bank 1.50; in all 1.25 times" in text
    assert "| bfloat16 | float32 | others | 0.02 | 0.2 | 1 | 3 | 0 | 0.05 |" in text
    for name in ("real-bonus", "gate-cost", "formats"):
        del parts[name]
    document["parts"] = parts
    (tmp_path / "detection.json").write_text(json.dumps(document))
    assert page.write(tmp_path).read_text().count("Not run.") == 2


def test_every_fault_and_control_has_its_part(bench: Any) -> None:
    parts = bench.parts()
    faults = [part.args[0] for name, part in parts.items() if name.startswith("faults-")]
    assert sorted(name for names in faults for name in names) == sorted(FAULTS)
    controls = {name.replace(" ", "-") for name in CONTROLS if name != "exact"}
    assert controls < parts.keys()
    assert {"gate-cost", "formats", "real-exact"} < parts.keys()
    assert sum(name.startswith("real-") for name in parts) == 10
